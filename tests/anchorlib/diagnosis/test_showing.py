"""Comparisons at a prompt, in a notebook and in pandas."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from anchor_cli.comparisons.terminal_report import report
from anchor_cli.terminal import Screen
from anchorlib.diagnosis import Comparison, RecordPlace, compare, sections
from anchorlib.errors import MissingExtraError, UnsupportedError
from anchorlib.operations import OpAlignment, OpDifference
from anchorlib.reading import open_run
from anchorlib.report import show
from tests.anchorlib.operations.made import made
from tests.anchorlib.reading.runs import make_run, training
from tests.anchorlib.store.records import record
from tests.cli.comparisons import IDENTICAL, ORIGIN, PLACE, SUSPECT
from tests.writing import put

said = Comparison.__repr__  # a dataclass made by hand has one of its own


@pytest.fixture
def found(tmp_path: Path):
    make_run(tmp_path, "a")
    make_run(tmp_path, "b", ranks=1)
    from anchorlib.store import Writer

    with Writer.open(tmp_path, "b", 0, overwrite=True) as writer:
        for step in range(3):
            those = training(step)
            if step == 1:
                those[1] = record("fc2", 1, np.full((2, 3), 10.5, "<f4"), kind="value", order=101)
            put(writer, those)
    return compare("a", "b", store=tmp_path)


def test_the_answer_comes_first_and_then_where(found):
    first, second, *origins = repr(found).splitlines()
    assert first == f"Comparison('a', 'b', {found.verdict}: {found.sentence})"
    assert second.startswith("  first: fc2@value at step 1 pass 0 (")
    assert len(origins) == len(found.origins)
    kind = found.origins[0].cls.replace("_", " ")
    assert origins[0].startswith(f"  origin: fc2@value at step 1 pass 0: {kind}, ")
    assert said(IDENTICAL).count("\n") == 0


def test_many_origins_are_counted():
    many = replace(IDENTICAL, origins=(ORIGIN,) * 14)
    assert said(many).splitlines()[-1] == "  and 11 more in .origins"
    assert many._repr_html_().count("<tr>") == 1 + 10
    assert "and 4 more in .origins" in many._repr_html_()


def test_a_notebook_gets_verdict_first_origins_and_notes(found):
    text = replace(found, notes=("a <gap>",))._repr_html_()
    told = (found.verdict.upper(), "<th>class</th>", "fc2@value", "GROWTH", "<p>a &lt;gap&gt;</p>")
    for part in told:
        assert part in text


def test_hostile_names_are_text():
    name = "\x1b[31m<script>alert(1)</script>"
    place = RecordPlace(0, 0, 0, 0, "<b>", name, "grad")
    told = replace(
        IDENTICAL, a="<i>", sentence=name, origins=(replace(ORIGIN, place=place, why=name),)
    )
    for text in (said(told), told._repr_html_()):
        assert "\x1b" not in text
    assert "<script" not in told._repr_html_()
    assert "<i>" not in told._repr_html_()


def test_nothing_measured_is_nothing_said():
    measure = ORIGIN.measure._replace(error_eps=math.nan)
    told = replace(IDENTICAL, origins=(replace(ORIGIN, measure=measure),))
    assert "nan" not in said(told) + told._repr_html_()
    assert PLACE.name in said(told)


def test_a_frame_has_a_row_for_each_pair(found):
    frame = found.to_pandas()
    pairs = list(found.pairs())
    assert len(frame) == len(pairs) == found.counts.matched
    assert frame["name"].tolist() == [pair.place.name for pair in pairs]
    assert int((~frame["equal"]).sum()) == found.counts.differing == 1
    (row,) = frame[~frame["equal"]].to_dict("records")
    assert (row["name"], row["kind"], row["step"], row["max_abs"]) == ("fc2", "value", 1, 0.5)
    assert frame[frame["equal"]]["error_eps"].isna().all()
    assert list(IDENTICAL.to_pandas().columns) == list(frame.columns)


def test_without_pandas_the_line_that_installs_it_is_said(found, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"anchorlib\[pandas\]"):
        found.to_pandas()


@pytest.mark.slow
def test_a_table_is_bounded_whatever_there_is_of_parents_operations_and_notes():
    many = tuple(f"{at}{'x' * 1000}" for at in range(5000))
    told = replace(IDENTICAL, origins=(replace(ORIGIN, parents=many, ops=many),) * 500, notes=many)
    text = told._repr_html_()
    assert len(text) < 100_000
    assert "and 4,990 more in .notes" in text


def test_operations_and_parents_that_are_not_named_are_counted():
    many = tuple(f"op{at}" for at in range(5000))
    told = replace(IDENTICAL, origins=(replace(ORIGIN, parents=many, ops=many),))
    for text in (said(told), told._repr_html_()):
        assert "op7 and 4,992 more of op0, op1, op2 and 4,997 more (equal)" in text


def test_operations_that_only_move_bits_are_shown_nowhere():
    moved = replace(ORIGIN, ops=("ViewBackward0", "GeluBackward0", "TBackward0"))
    told = replace(SUSPECT, origins=(moved,), sentence="")
    for text in (said(told), told._repr_html_(), str(report(told, (), Screen()))):
        assert "GeluBackward0" in text
        assert "ViewBackward0" not in text


def traced(module="tanh2", stage="backward", op="aten.tanh_backward.default", **rest):
    """A comparison of two traced runs, of which A ran an operation that B did not."""
    one = OpDifference(stage, module, (made(op),), (), like_it=("tanh1",), **rest)
    return replace(SUSPECT, ops=OpAlignment(1234, 1, 0, (one,)))


@pytest.mark.parametrize("found", [SUSPECT, traced(arguments="p 1 | 2", outputs_equal=False)])
def test_every_way_out_says_the_same_sections(found):
    """Whatever a section says stands on a wide terminal and in a notebook."""
    drawn = ["\n".join(report(found, (), Screen(asked=2000))), found._repr_html_()]
    for section in sections(found):
        assert all(section.title in text for text in drawn)
        assert section.key != "ops" or all(section.head in text for text in drawn)
        for entry in section.entries:
            words = (entry.text, entry.name, entry.where, entry.made, entry.far)
            words += entry.sides if section.key == "ops" else ()
            assert all(word in text for text in drawn for word in words)


def test_operations_stand_at_a_prompt():
    assert "  operations: backward of tanh2: A tanh_backward | B -; the same bits come out" in said(
        traced(outputs_equal=True)
    )
    assert "operations" not in said(SUSPECT)


def test_names_of_operations_and_modules_are_text():
    hostile = "\x1b[31m<script>\n"
    found = traced(hostile, hostile, hostile, arguments=hostile)
    drawn = [said(found), found._repr_html_(), *report(found, (), Screen(asked=80))]
    assert not any("\x1b" in text or "<script" in text for text in drawn[1:2])
    assert not any("\x1b" in text for text in drawn)
    assert not any("\n" in line for line in drawn[2:])


def test_a_comparison_is_a_page_in_a_frame_of_its_own(found, tmp_path):
    shown = found.page(height=500)
    runs = [open_run(name, tmp_path) for name in "ab"]
    assert shown == show(*runs, comparisons=[found], height=500)
    frame = shown._repr_html_()
    assert frame.startswith("<iframe srcdoc=")
    assert 'sandbox="allow-scripts allow-downloads"' in frame
    assert "default-src &#x27;none&#x27;" in frame


def test_a_comparison_without_runs_says_who_makes_its_page():
    with pytest.raises(UnsupportedError, match=r"anchorlib\.report\.show\(a, b, comparisons="):
        IDENTICAL.page()
