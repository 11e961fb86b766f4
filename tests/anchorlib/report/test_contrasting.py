"""A comparison as the page draws it: equal cells say so, of a cell the worst pair counts."""

from __future__ import annotations

import numpy as np
import pytest

from anchorlib.diagnosis import Origin, RecordPlace
from anchorlib.reading import open_run
from anchorlib.report.comparison_view import EQUAL, NONFINITE, UNMEASURED, view_of_comparison
from anchorlib.report.gathering import gather
from anchorlib.report.run_view import PageBudget
from tests.anchorlib.report.compared import compared
from tests.cli.made import make_run, record

VALUES = np.arange(1, 21, dtype=np.float32)
EPS = 2.0**-23


def changed(place, by):
    """VALUES with one element that differs."""
    values = VALUES.copy()
    values[place] = by
    return values


def pair_of_runs(store, steps=3, **planted):
    """fc1 and fc2 of two runs; `planted` replaces records of b: {"fc1_2": values at step 2}."""
    for run in "ab":
        parts = [
            record(
                name,
                "value",
                planted.get(f"{name}_{step}", VALUES) if run == "b" else VALUES,
                step=step,
            )
            for step in range(steps)
            for name in ("fc1", "fc2")
        ]
        make_run(store, parts, run=run)
    return open_run("a", store), open_run("b", store)


def drawn(a, b, budget=None, **changes):
    view = [gather(run) for run in (a, b)]
    return view_of_comparison(compared(a, b, **changes), *view, 1, budget=budget)


def test_equal_cells_say_so_and_the_others_hold_their_error(tmp_path):
    off = changed(7, 9.0)
    found = drawn(*pair_of_runs(tmp_path, fc2_1=off))
    assert found.grid[0].tolist() == [EQUAL] * 3
    assert found.grid[1, [0, 2]].tolist() == [EQUAL] * 2
    norm = np.linalg.norm(VALUES.astype(np.float64))
    assert found.grid[1, 1] == pytest.approx(1.0 / norm / EPS)
    assert found.cells["cell"].tolist() == [4]
    assert found.cells["worst"].tolist() == [7]
    assert (found.cells["value_a"][0], found.cells["value_b"][0]) == (8.0, 9.0)
    assert [found.plain["first"][name] for name in ("line", "column")] == [1, 1]


def test_what_is_not_finite_in_one_run_only_is_a_state_of_its_own(tmp_path):
    found = drawn(*pair_of_runs(tmp_path, fc1_2=changed(3, np.nan)))
    assert found.grid[0, 2] == NONFINITE


def test_a_pair_that_was_not_measured_differs_nevertheless(tmp_path):
    found = drawn(*pair_of_runs(tmp_path, fc1_2=changed(3, 7.0)), measures=None)
    assert found.grid[0, 2] == UNMEASURED
    assert np.isnan(found.cells["error_eps"]).all()


def test_cells_without_a_pair_are_empty(tmp_path):
    a, _ = pair_of_runs(tmp_path)
    make_run(tmp_path, [record("fc1", "value", VALUES, step=0)], run="c")
    found = drawn(a, open_run("c", tmp_path))
    assert found.grid[0, 0] == EQUAL
    assert np.isnan(found.grid[0, 1:]).all()
    assert np.isnan(found.grid[1]).all()
    assert found.plain["partners"] == [0, -1]


def test_of_a_cell_with_several_pairs_the_worst_counts(tmp_path):
    for run, worse in (("a", VALUES), ("b", changed(0, 100.0))):
        slightly = changed(5, 6.5) if run == "b" else VALUES
        parts = [slightly, worse, VALUES]
        make_run(
            tmp_path,
            [record("fc1", "value", raw, step=4, call=call) for call, raw in enumerate(parts)],
            run=run,
        )
    found = drawn(open_run("a", tmp_path), open_run("b", tmp_path))
    cells = {name: values.tolist() for name, values in found.cells.items()}
    assert (cells["call"], cells["pairs"], cells["differing"]) == ([1], [3], [2])
    assert cells["max_abs"] == [99.0]
    assert found.grid[0, 0] == found.cells["error_eps"][0]


def test_the_values_around_the_worst_element_are_those_of_both_runs(tmp_path):
    (near,) = drawn(*pair_of_runs(tmp_path, fc2_1=changed(7, 9.0))).nearby
    assert (near["cell"], near["start"], near["worst"]) == (4, 2, 7)
    assert near["a"] == [str(value) for value in VALUES[2:13]]
    assert near["b"] == [str(value) for value in changed(7, 9.0)[2:13]]
    assert near["difference"] == [1.0 if place == 7 else None for place in range(2, 13)]


def test_values_are_read_within_the_budget_origins_first(tmp_path):
    off = changed(7, 9.0)
    runs = pair_of_runs(tmp_path, steps=4, fc1_1=changed(2, 99.0), fc2_2=off, fc2_3=off)
    assert len(drawn(*runs).nearby) == 3
    two = drawn(*runs, budget=PageBudget(neighbourhoods=2)).nearby
    assert [one["cell"] for one in two] == [1, 4 + 2]
    measure = compared(*runs).measures.at(0)
    late = Origin(RecordPlace(3, 0, 0, 0, "train", "fc2", "value"), "rounding", (), (), measure)
    one = drawn(*runs, budget=PageBudget(neighbourhoods=1), first=None, origins=[late]).nearby
    assert [one["cell"] for one in one] == [4 + 3]
    assert drawn(*runs, budget=PageBudget(read_bytes=0)).nearby == []


def test_what_came_after_the_page_was_gathered_is_left_to_the_next(tmp_path):
    a, b = pair_of_runs(tmp_path, steps=3)
    early = gather(a)
    make_run(tmp_path / "later", [record("fc1", "value", VALUES, step=s) for s in range(5)], "a")
    make_run(
        tmp_path / "later",
        [record("fc1", "value", changed(1, float(s)), step=s) for s in range(5)],
        "b",
    )
    grown = [open_run(name, tmp_path / "later") for name in "ab"]
    found = view_of_comparison(compared(*grown), early, gather(b), 1)
    assert found.cells["step"].tolist() == [0, 1]  # at step 2 the element happens to be equal
    assert found.grid[0, 2] == EQUAL


def test_a_comparison_that_carries_no_pairs_is_its_sentence_alone(tmp_path):
    a, b = pair_of_runs(tmp_path, fc1_0=changed(0, 5.0))
    found = drawn(a, b, alignment=None, measures=None, sentence="They <differ>.")
    assert np.isnan(found.grid).all()
    (verdict,) = [one for one in found.plain["sections"] if one["key"] == "verdict"]
    assert verdict["head"] == "They <differ>."


def test_settings_are_said_as_people_read_them_and_modules_in_the_structure(tmp_path):
    differs = {
        "command": (["python", "train.py"], ["python", "train.py", "--lr", "1"]),
        "torch.backend": (None, "inductor"),
        "module.fc1": ("Linear(1, 2)", "Linear(1, 3)"),
    }
    found = drawn(*pair_of_runs(tmp_path), config_diff=differs)
    assert found.plain["config"] == [
        ["command", "...", "... --lr 1"],
        ["torch.backend", "absent", "inductor"],
    ]
