"""Figures of steps are read as they were written, and lies are refused before memory is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anchorlib.store.seal import index_format
from anchorlib.store.seal.step_figures import (
    COUNTS,
    MOST_CELLS,
    OFFSET,
    SPAN,
    StepFigures,
    StepLine,
)
from anchorlib.store.seal.step_format import _packed, read_step_figures, step_figures_document
from anchorlib.summary import ExactSums

I64 = np.iinfo(np.int64)
KEY = ("fc1", "grad", "all", "train")


def figures(*steps: int) -> StepFigures:
    """Those of one line of rank 0, with one record of 3.0 at each step; of nothing without any."""
    cells = np.arange(len(steps))
    ones, threes = np.ones(len(steps), np.int64), np.full(len(steps), 3.0)
    return StepFigures(
        (0,),
        np.array(steps, np.int64),
        1,
        np.array(steps, np.int64),
        (StepLine(KEY, 0, steps[0], steps[-1], (0,)),) if steps else (),
        {name: ones * (name in ("records", "numel")) for name in COUNTS},
        threes,
        threes,
        ExactSums.of(cells, threes),
        ExactSums.of_squares(cells, threes),
        cells * SPAN + OFFSET + 1,
        ones,
        None,
    )


@pytest.mark.parametrize("steps", [(), (0,), (-3, 0, 7)])
def test_what_was_written_is_read(steps: tuple[int, ...]) -> None:
    assert read_step_figures(step_figures_document(figures(*steps))) == figures(*steps)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("records", [-1, 1, 1]),
        ("records", [1, 1]),
        ("low", [3.0]),
        ("bins", [0, 0, 1]),
        ("bins", [-1, 0, 1]),
        ("bins", [0, 1, 3 * SPAN]),
        ("bins", [0, I64.max, I64.min, -1, 5]),
        ("bin_counts", [1, -1, 1]),
        ("square_counts", [-1, -1, -1]),
        ("squares", [0, 0, 0]),
    ],
)
def test_arrays_that_cannot_be_are_refused(name: str, values: list[Any]) -> None:
    told = step_figures_document(figures(0, 1, 2))
    dtype = np.float64 if name == "low" else np.int64
    told["arrays"] |= {name: _packed(np.array(values, dtype))}
    if len(values) > 3:
        told["arrays"]["bin_counts"] = _packed(np.ones(len(values), np.int64))
    with pytest.raises(ValueError, match=r"its figures of steps|a count is negative"):
        read_step_figures(told)


def test_a_lie_is_refused_before_it_takes_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_format, "MOST_STEPS", 1 << 14)
    told = step_figures_document(figures(0, 1, 2)) | {"ranks": [[0, 1 << 12]]}
    line = told["lines"][0]
    lies = (
        {"lines": [[*line[:-1], [[one, 1 << 12]]] for one in range(5)]},
        {"lines": [line] * (MOST_CELLS + 1)},
        {"arrays": told["arrays"] | {"low": _packed(np.zeros(1 << 20))}},
    )
    for lie in lies:
        with pytest.raises(ValueError, match=r"more ranks|more lines|larger than 24 bytes"):
            read_step_figures(told | lie)
