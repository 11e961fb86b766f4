"""Of two runs, which is nearer to a third at each of their origins."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import anchorlib
from anchorlib.diagnosis.judgement.origins.nearness import nearness
from anchorlib.diagnosis.sizes import Measure
from anchorlib.report import page
from tests.cli.comparisons import MEASURE
from tests.cli.made import HOSTILE, anchor, make_run, record

EPS = 2.0**-23
TRUTH = np.random.default_rng(0).standard_normal(1024)
Values = np.ndarray[Any, Any]


def off(by: float, seed: int = 1) -> Values:
    """The truth in float32, each element wrong by about so many eps."""
    chance = np.random.default_rng(seed)
    return (TRUTH * (1 + by * EPS * chance.standard_normal(TRUTH.size))).astype(np.float32)


def bfloat16(values: Values) -> Values:
    """The upper halves of float32 numbers, which is how bfloat16 is stored."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def runs(store: Path, name: str = "h", **raws: Values | None) -> None:
    """A run each, which recorded one tensor at one step."""
    for run, raw in raws.items():
        if raw is None:
            made = record(name, "grad", None, dropped=off(0))
        else:
            made = record(name, "grad", raw, dtype="bfloat16" if raw.dtype == "u2" else None)
        make_run(store, [made], run)


def near(store: Path, **options: Any) -> Any:
    """What the first origin's JSON says of the reference `ref`."""
    found = anchorlib.compare("a", "b", store=store, reference="ref", **options)
    return found.to_dict()["origins"][0]["reference"]


def error(values: Values) -> float:
    return float(np.linalg.norm(values.astype("f8") - TRUTH) / np.linalg.norm(TRUTH))


def test_the_errors_are_those_from_the_reference_in_eps_and_by_norm(tmp_path: Path) -> None:
    a, b = off(2), off(40, seed=2)
    runs(tmp_path, ref=TRUTH, a=a, b=b)
    told = near(tmp_path)
    assert told["relative_a"] == pytest.approx(error(a))
    assert told["relative_b"] == pytest.approx(error(b))
    assert told["error_a"] == pytest.approx(error(a) / EPS)
    assert told["error_b"] == pytest.approx(error(b) / EPS)
    assert (told["eps"], told["nearer"], told["clear"], told["lacks"]) == (EPS, "a", True, "")


def test_element_types_that_differ_are_measured_in_the_coarsest(tmp_path: Path) -> None:
    runs(tmp_path, ref=TRUTH, a=bfloat16(TRUTH), b=off(3))
    told = near(tmp_path)
    assert (told["eps"], told["nearer"], told["clear"]) == (2.0**-7, "b", True)
    assert told["error_b"] == pytest.approx(error(off(3)) * 2**7)


def test_a_reference_changes_neither_verdict_nor_exit_code_nor_anything_else_that_is_said(
    tmp_path: Path,
) -> None:
    runs(tmp_path, ref=TRUTH, a=off(0.1), b=off(5))
    plain = anchor("compare", "a", "b", "--store", tmp_path, "--json")
    told = anchor("compare", "ref", "a", "b", "--store", tmp_path, "--json")
    assert told.code == plain.code == 1
    assert plain.json["reference"] is None
    with_reference = told.json
    assert with_reference.pop("reference") == "ref"
    assert with_reference["origins"][0].pop("reference")["nearer"] == "a"
    without = plain.json
    del without["reference"], without["origins"][0]["reference"]
    assert with_reference == without


def test_the_table_stands_in_the_report_and_in_narrow_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs(tmp_path, HOSTILE, ref=TRUTH, a=off(2), b=off(40, seed=2))
    line = ("compare", "ref", "a", "b", "--store", tmp_path)
    wide = anchor(*line).out
    head, heads, row = wide[wide.index("REFERENCE") :].splitlines()[:3]
    assert head == "REFERENCE  ref: how far A and B are from it, in eps of float32"
    assert heads.split() == ["where", "record", "A", "B", "A", "rel.", "B", "rel.", "nearer"]
    assert row.split()[:4] == ["step", "0", "pass", "0"]
    assert row.endswith("A")
    assert "\x1b" not in wide
    monkeypatch.setenv("COLUMNS", "50")
    narrow = anchor(*line).out.partition("NEXT")[0].splitlines()
    assert all(len(one) <= 50 for one in narrow)
    assert any(one.endswith("<b>&$x$</b>@grad  1.98  40.9  A") for one in narrow)


@pytest.mark.slow
def test_prompt_notebook_page_and_ci_tell_it(tmp_path: Path) -> None:
    runs(tmp_path, ref=TRUTH, a=off(2), b=off(40, seed=2))
    found = anchorlib.compare("a", "b", store=tmp_path, reference="ref")
    said = "A is nearer to the reference"
    assert said in repr(found)
    assert "<b>REFERENCE</b> ref: how far" in found._repr_html_()
    assert found.runs is not None
    assert "how far A and B are from it" in page(list(found.runs), [found])
    line = ("compare", "ref", "a", "b", "--store", tmp_path)
    assert said in anchor(*line, "--github").out.rpartition("::error")[2]
    assert said in anchor(*line, "--junit", "-").out
    summary = anchor(*line, "--jsonl", "-").out.splitlines()[-1]
    assert '"reference": "ref"' in summary


@pytest.mark.parametrize(
    ("ref", "why"),
    [
        ([record("other", "grad", TRUTH)], "not recorded"),
        ([record("h", "value", TRUTH)], "not recorded"),
        ([record("h", "grad", TRUTH, step=7)], "not recorded there"),
        ([record("h", "grad", TRUTH[:5])], "its shape differs there"),
        ([record("h", "grad", None, dropped=TRUTH)], "values were not kept"),
    ],
)
def test_where_the_reference_lacks_a_record_it_is_said_in_a_line(
    tmp_path: Path, ref: Any, why: str
) -> None:
    runs(tmp_path, a=off(0.1), b=off(5))
    make_run(tmp_path, ref, "ref")
    told = near(tmp_path)
    assert (told["lacks"], told["nearer"], told["error_a"]) == (why, None, None)
    done = anchor("compare", "ref", "a", "b", "--store", tmp_path)
    assert done.code == 1
    assert f"REFERENCE  ref: it tells nothing of the 1 origin: {why}\n" in done.out


def test_runs_without_an_origin_say_so(tmp_path: Path) -> None:
    runs(tmp_path, ref=TRUTH, a=off(1), b=off(1))
    done = anchor("compare", "ref", "a", "b", "--store", tmp_path)
    assert done.code == 0
    assert "REFERENCE  ref: A and B have no origin to measure from it\n" in done.out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["a"], "1 run given: compare takes two, as `anchor compare A B`, or a reference and two"),
        (["ref", "a", "b", "a"], "4 runs given: compare takes two"),
        (["nowhere", "a", "b"], "no run 'nowhere' in"),
    ],
)
def test_a_wrong_number_of_runs_or_no_such_run_is_one_line(
    tmp_path: Path, given: list[str], said: str
) -> None:
    runs(tmp_path, ref=TRUTH, a=off(1), b=off(2))
    done = anchor("compare", *given, "--store", tmp_path)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert said in done.err


def test_of_integers_the_run_with_fewer_wrong_elements_is_nearer(tmp_path: Path) -> None:
    truth = np.arange(64)
    runs(tmp_path, ref=truth, a=np.where(truth < 8, 0, truth), b=np.where(truth < 4, 0, truth))
    told = near(tmp_path)
    assert (told["nearer"], told["clear"], told["error_a"]) == ("b", True, None)
    assert (told["share_a"], told["share_b"]) == (7 / 64, 3 / 64)
    assert " 10.9 %  4.69 %" in anchor("compare", "ref", "a", "b", "--store", tmp_path).out


def test_a_run_that_overflows_where_the_reference_does_not_is_farther(tmp_path: Path) -> None:
    infinite = off(0)
    infinite[3] = np.inf
    runs(tmp_path, ref=TRUTH, a=infinite, b=off(500))
    told = near(tmp_path)
    assert (told["nearer"], told["clear"], told["error_a"]) == ("b", True, None)


def test_the_reference_may_have_the_names_of_either(tmp_path: Path) -> None:
    runs(tmp_path, "h", a=off(2))
    runs(tmp_path, "other", ref=TRUTH, b=off(40, seed=2))
    told = near(tmp_path, names={"h": "other"})
    assert (told["nearer"], told["lacks"]) == ("a", "")


def test_values_that_carry_a_loss_scale_are_measured_without_it(tmp_path: Path) -> None:
    runs(tmp_path, ref=TRUTH)
    for run, raw in (("a", off(2)), ("b", off(2.1, seed=2))):
        make_run(tmp_path, [record("h", "grad", raw * np.float32(1024), scale=1024.0)], run)
    told = near(tmp_path)
    assert told["relative_a"] == pytest.approx(error(off(2)))
    plain = tmp_path / "plain"
    runs(plain, ref=TRUTH, a=off(2), b=off(2.1, seed=2))
    assert near(plain)["clear"] == told["clear"]


def test_damaged_values_of_the_reference_are_said_and_decide_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs(tmp_path, a=off(0.1), b=off(5))
    one = record("h", "grad", TRUTH)
    assert one.raw is not None
    make_run(tmp_path, [replace(one, raw=one.raw + 1)], "ref")
    assert near(tmp_path)["lacks"] == "values are damaged: anchor verify"
    assert anchor("compare", "ref", "a", "b", "--store", tmp_path).code == 1


def measures(a: Values, b: Values, truth: Values) -> tuple[Measure, Measure, float]:
    size = float(np.linalg.norm(truth))
    one, two = (
        MEASURE._replace(error_eps=float(np.linalg.norm(x - truth)) / size / EPS, numel=truth.size)
        for x in (a, b)
    )
    return one, two, float(np.linalg.norm(b - a)) / size


@given(st.integers(0, 10**6), st.floats(0, 20), st.floats(0.2, 20), st.sampled_from([1, 7, 300]))
def test_exchanging_a_and_b_exchanges_what_is_said_of_them(
    seed: int, a: float, b: float, numel: int
) -> None:
    chance = np.random.default_rng(seed)
    truth, noise, other = chance.standard_normal((3, numel))
    one, two, apart = measures(truth + a * EPS * noise, truth + b * EPS * other, truth)
    there, back = nearness(one, two, apart), nearness(two, one, apart)
    assert (there.error_a, there.relative_b) == (back.error_b, back.relative_a)
    assert {there.nearer, back.nearer} in ({"a", "b"}, {None})
    assert there.clear == back.clear


def test_what_both_inherit_is_no_merit_of_either_and_a_better_formula_shows_behind_it() -> None:
    """Two runs whose own errors are alike, below a common error that is ten times as large."""
    chance = np.random.default_rng(3)
    claimed = 0
    for _ in range(300):
        truth, common, own, other = chance.standard_normal((4, 4096))
        a, b = (truth + EPS * (10 * common + x) for x in (own, other))
        claimed += nearness(*measures(a, b, truth)).clear
    assert claimed <= 3
    chance = np.random.default_rng(4)
    truth, common, own, other = chance.standard_normal((4, 1 << 16))
    told = nearness(*measures(*(truth + EPS * (2 * common + x) for x in (own, 2 * other)), truth))
    assert (told.nearer, told.clear) == ("a", True)


def test_few_elements_decide_nothing_but_by_far() -> None:
    truth = np.ones(1)
    close = nearness(*measures(truth * (1 + EPS), truth * (1 - 3 * EPS), truth))
    assert (close.nearer, close.clear) == ("a", False)
    far = nearness(*measures(truth * (1 + EPS), truth * (1 + 900 * EPS), truth))
    assert (far.nearer, far.clear) == ("a", True)
    assert math.isclose(far.error_b, 900)
