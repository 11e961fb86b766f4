"""What CI reads of a comparison: JUnit XML, annotations and summaries of GitHub Actions."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchor_cli.comparisons.github import annotated, guarded, summarise
from anchor_cli.comparisons.junit import write_junit
from anchor_cli.exits import ExitCode
from tests.cli.comparisons import IDENTICAL, ORIGIN, PLACE, SUSPECT, UNEXPECTED, pair
from tests.cli.made import BIAS, HOSTILE, anchor, make_run, record

# What the schemas of Ant's JUnit task and of Jenkins' xUnit plugin both allow: attributes that
# an element must have and may have, its children in their order, and whether it holds text.
SUITE = {"name", "tests", "failures", "errors", "time", "timestamp", "hostname", "id", "package"}
ELEMENTS = {
    "testsuites": (set(), set(), ["testsuite"], False),
    "testsuite": (
        SUITE, {"skipped"}, ["properties", "testcase", "system-out", "system-err"], False,
    ),
    "properties": (set(), set(), ["property"], False),
    "property": ({"name", "value"}, set(), [], False),
    "testcase": ({"name", "classname", "time"}, set(), ["skipped", "failure"], False),
    "failure": ({"type", "message"}, set(), [], True),
    "skipped": ({"message"}, set(), [], False),
    "system-out": (set(), set(), [], True),
    "system-err": (set(), set(), [], True),
}  # fmt: skip
NUMBERS = ("tests", "failures", "errors", "skipped", "id")


def check(element):
    must, may, children, text = ELEMENTS[element.tag]
    assert must <= set(element.attrib) <= must | may, element.tag
    assert text or not (element.text or "").strip()
    tags = [child.tag for child in element]
    assert set(tags) <= set(children)
    assert tags == sorted(tags, key=children.index)
    for child in element:
        check(child)


def junit(found, code):
    """The cases of the document by name, and its one suite; valid, and counted as they are."""
    file = io.StringIO()
    write_junit(found, code, file)
    suites = ET.fromstring(file.getvalue())
    check(suites)
    [suite] = suites
    assert [one.tag for one in suite[-2:]] == ["system-out", "system-err"]
    assert all(re.fullmatch(r"\d+", suite.attrib[name]) for name in NUMBERS)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.attrib["timestamp"])
    cases = suite.findall("testcase")
    counted = [sum(one.find(kind) is not None for one in cases) for kind in ("failure", "skipped")]
    assert [int(suite.attrib[name]) for name in ("failures", "skipped")] == counted
    assert int(suite.attrib["tests"]) == len(cases)
    return {one.attrib["name"]: one for one in cases}, suite


@pytest.fixture
def store(tmp_path):
    """a and b, whose second records differ, and `same`."""
    records = [record("h", "value", BIAS, order=0), record(HOSTILE, "grad", BIAS, order=1)]
    other = [records[0], record(HOSTILE, "grad", BIAS * 2, order=1)]
    for run, those in (("a", records), ("same", records), ("b", other)):
        make_run(tmp_path, those, run)
    return tmp_path


def test_junit_has_a_case_for_the_verdict_and_each_tensor(store):
    file = store / "x.xml"
    done = anchor("compare", "a", "b", "--store", store, "--junit", file)
    assert done.code == 1
    suites = ET.parse(file).getroot()
    check(suites)
    names = [one.attrib["name"] for one in suites.iter("testcase")]
    assert names[:2] == ["verdict", "h@value"]
    assert names[2].isprintable()
    failed = [one.attrib["name"] for one in suites.iter("testcase") if one.find("failure")
              is not None]  # fmt: skip
    assert failed == ["verdict", names[2]]
    assert anchor("compare", "a", "same", "--store", store, "--junit", file).code == 0
    assert [*ET.parse(file).getroot().iter("failure")] == []


def test_junit_fails_origins_and_skips_what_follows_from_them():
    found = replace(UNEXPECTED, given=(
        pair("fc1"),
        pair("tanh3", equal=False)._replace(place=PLACE),
        pair("after", equal=False, step=3), pair("after", step=4),
    ))  # fmt: skip
    cases, suite = junit(found, ExitCode.DIFFERENCE)
    assert cases["fc1@value"].find("failure") is cases["fc1@value"].find("skipped") is None
    failure = cases["tanh3@grad"].find("failure")
    assert failure.attrib["type"] == "not_rounding"
    assert failure.attrib["message"].startswith("not rounding at step 0 pass 0: TanhBackward0 of ")
    assert cases["after@value"].find("skipped").attrib["message"] == (
        "1 of 2 records differ, from step 3 on; no origin is among them"
    )
    assert cases["tanh3@grad"].attrib["classname"] == "anchor.grad"
    told = {one.attrib["name"]: one.attrib["value"] for one in suite.iter("property")}
    assert (told["a"], told["b"], told["verdict"], told["matched"]) == (
        "eager", "compiled", "unexpected", "400",
    )  # fmt: skip


def test_junit_fails_nothing_where_the_exit_code_is_0():
    for found in (IDENTICAL, replace(SUSPECT, verdict="expected"), SUSPECT):
        cases, _ = junit(found, ExitCode.DONE)
        assert all(len(one) == 0 for one in cases.values())


def test_junit_says_what_is_incomplete_and_what_cannot_be_compared():
    found = replace(IDENTICAL, incomplete=True, notes=("3 records were not recorded",))
    failure = junit(found, ExitCode.INCOMPLETE)[0]["verdict"].find("failure")
    assert failure.attrib["type"] == "incomplete"
    assert "3 records were not recorded" in failure.text
    allowed = replace(SUSPECT, verdict="expected", incomplete=True)
    assert [name for name, case in junit(allowed, ExitCode.INCOMPLETE)[0].items() if len(case)] == [
        "verdict"
    ]
    assert len(annotated(allowed, ExitCode.INCOMPLETE)) == 1
    nothing = replace(IDENTICAL, verdict="incomparable", given=())
    cases, _ = junit(nothing, ExitCode.USAGE)
    assert cases["verdict"].find("failure").attrib["type"] == "incomparable"


ANY = st.text(min_size=1, max_size=12)
ODD = st.text(st.sampled_from("%:,\r\n#[]a&<>'\"`|\x00\x1b\x85\u2028\ufffe\ud800"), min_size=1)


@pytest.mark.slow
@given(st.one_of(ANY, ODD))
def test_whatever_a_tensor_is_called_junit_is_xml_and_an_annotation_is_one_line(name):
    place = PLACE._replace(name=name)
    origin = replace(ORIGIN, place=place, parents=(name,), ops=(name,), why=name)
    found = replace(
        UNEXPECTED, sentence=name, notes=(name,), origins=(origin,),
        given=(pair(name, equal=False)._replace(place=place),),
    )  # fmt: skip
    cases, _ = junit(found, ExitCode.DIFFERENCE)
    assert len(cases) == 2
    for line in annotated(found, ExitCode.DIFFERENCE):
        assert line.isprintable()
        level, title, message = re.fullmatch(r"::(\w+) title=(.*?)::(.*)", line).groups()
        assert level == "error"
        assert not set(title) & set(":,")
        assert re.sub("%(25|3A|2C)", "", title + message).count("%") == 0


def test_annotations_say_the_verdict_and_at_most_nine_origins():
    many = replace(UNEXPECTED, origins=(ORIGIN,) * 30)
    lines = annotated(many, ExitCode.DIFFERENCE)
    assert len(lines) == 10
    assert lines[0].startswith("::error title=anchor%3A UNEXPECTED::They part at tanh3@grad, by")
    assert lines[1].startswith("::error title=anchor%3A tanh3@grad::rounding at step 0 pass 0: Tan")
    assert annotated(IDENTICAL, ExitCode.DONE) == [
        "::notice title=anchor%3A IDENTICAL::All 400 records of eager and again are bit-identical."
    ]
    allowed = annotated(SUSPECT, ExitCode.DONE)
    assert [one.partition(" ")[0] for one in allowed] == ["::warning", "::warning"]


def test_the_runner_reads_no_command_in_the_report(store):
    make_run(store, [record("::error::x ##[add-mask]y", "grad", BIAS)], "c")
    make_run(store, [record("::error::x ##[add-mask]y", "grad", BIAS * 3)], "d")
    lines = anchor("compare", "c", "d", "--store", store, "--github").out.splitlines()
    token = lines[0].removeprefix("::stop-commands::")
    assert len(token) == 32
    end = lines.index(f"::{token}::")
    assert any("##[add-mask]" in line for line in lines[1:end])
    assert [line.partition(" ")[0] for line in lines[end + 1 :]] == ["::error", "::error"]
    assert guarded([])[0] != guarded([])[0]


def test_the_summary_of_a_step_is_appended_and_holds_no_markdown_of_others(store, monkeypatch):
    summary = store / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    summary.write_text("before\n\n")
    assert anchor("compare", "a", "b", "--store", store, "--github").code == 1
    assert anchor("compare", "a", "same", "--store", store, "--github").code == 0
    text = summary.read_text(encoding="utf-8")
    assert text.startswith("before\n\n<h3>anchor: ")
    assert "<h3>anchor: IDENTICAL of a and same</h3>" in text
    assert "<b>" not in text
    assert "\x1b" not in text
    blocks = text.strip().split("\n\n")[1:]
    assert len(blocks) == 2
    assert all(line.startswith("<") for line in blocks[1].splitlines())
    assert "</pre>" in text


@pytest.mark.slow
def test_a_summary_is_bounded_and_one_that_cannot_be_written_is_a_note(
    tmp_path, monkeypatch, capsys
):
    summary = tmp_path / "s"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    long = replace(ORIGIN, place=PLACE._replace(name="x" * 1000), why="y" * 9000)
    summarise(replace(UNEXPECTED, origins=(long,) * 5000), ["anchor names a"])
    assert len(summary.read_bytes()) < 100_000
    assert "and 4,980 more origins" in summary.read_text()
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "no" / "folder"))
    summarise(IDENTICAL, [])
    assert capsys.readouterr().err.startswith("anchor: cannot write GITHUB_STEP_SUMMARY ")


@pytest.mark.parametrize("other", [("--json",), ("--csv", "-"), ("--junit", "-")])
def test_annotations_share_stdout_with_no_other_document(store, other):
    done = anchor("compare", "a", "b", "--store", store, "--github", *other)
    assert (done.code, done.out) == (2, "")
    assert "both go to stdout" in done.err
