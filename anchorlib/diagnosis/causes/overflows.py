"""Gradients that one run's larger loss scale made infinite, in steps that its scaler skipped.

GradScaler begins with a large loss scale and tries larger scales as it goes on. A scale that is too
large makes gradients infinite; the scaler then skips the step and halves the scale. Such an
overflow is the ordinary work of a scaler, and no fault of the computation. A step counts as such an
overflow where the records show three things: one run alone skipped the step, that run states a
larger scale than the other run, and the other run's finite values, times the ratio of the two
scales, exceed the largest number of their type. After the first such step, the runs have different
parameters, so that the values of one run no longer show how large those of the other run are. Later
steps therefore need only the first two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.causes.skips import SCALED, Skips, gradients_of
from anchorlib.diagnosis.pairing import Alignment, Table

__all__ = ["AUTOCAST", "Overflows", "overflows"]

Array = np.ndarray[Any, Any]
AUTOCAST = "amp.autocast"


@dataclass(frozen=True, slots=True)
class Overflows:
    """The steps that one run skipped because its larger loss scale made gradients infinite.

    steps: (rank, step as A counts) -> the ratio of that loss scale to the other run's.
    """

    alignment: Alignment
    steps: dict[tuple[int, int], float]

    @property
    def first(self) -> int | None:
        """The first step in which a loss scale overflowed; None without one.

        From this step on the runs have different parameters.
        """
        return min((step for _, step in self.steps), default=None)

    def of(self, rows: Array) -> Array:
        """Return a mask of the rows (of A) that are gradients of steps with an overflow."""
        return gradients_of(self.alignment.a, rows, self.steps)

    def times(self, row: int) -> float:
        """Return the ratio of the overflowing loss scale to the other run's, in the step of a row.

        row: a row of A.
        """
        table = self.alignment.a
        return self.steps[table.tensors[table.tensor[row]].rank, int(table.step[row])]


def overflows(alignment: Alignment, skips: Skips) -> Overflows:
    """Return the steps that one run alone skipped because its loss scale was larger."""
    return Overflows(alignment, dict(_overflows(alignment, skips)) if skips.a ^ skips.b else {})


def _overflows(alignment: Alignment, skips: Skips) -> Iterator[tuple[tuple[int, int], float]]:
    a, b = alignment.a, alignment.b
    rows_a, rows_b = alignment.a_row, alignment.b_row
    broken = _nonfinite(a, rows_a) != _nonfinite(b, rows_b)
    rank = a.rank[rows_a]
    parted: set[int] = set()
    for where in sorted(skips.a ^ skips.b):
        at = np.flatnonzero(broken & (rank == where[0]) & (a.step[rows_a] == where[1]))
        if not len(at):
            continue
        first = int(at[np.argmin(a.order[rows_a[at]])])
        sides = (a, int(rows_a[first])), (b, int(rows_b[first]))
        over, finite = sides if where in skips.a else sides[::-1]
        times = _times(over, finite)
        if times > 1 and (where[0] in parted or _exceeds(over, finite, times)):
            parted.add(where[0])
            yield where, times


def _nonfinite(table: Table, rows: Array) -> Array:
    broken: Array = (table.figures["nan"][rows] + table.figures["inf"][rows]) > 0
    return broken


def _times(over: tuple[Table, int], finite: tuple[Table, int]) -> float:
    """Return the loss scale of the infinite gradient divided by that of the finite one.

    over, finite: the two gradients, each as a table and a row. 0.0 where the record `finite` is no
    gradient, or is not finite.
    """
    table, row = finite
    if table.tensors[table.tensor[row]].kind not in SCALED or _nonfinite(table, np.array([row]))[0]:
        return 0.0
    return float(over[0].scale[over[1]] / table.scale[row])


def _exceeds(over: tuple[Table, int], finite: tuple[Table, int], times: float) -> bool:
    """Return whether a finite gradient, times a ratio, exceeds what the infinite one can hold.

    over, finite: the infinite gradient and the finite one, each as a table and a row. times: the
    ratio of their loss scales.
    """
    figures, row = finite[0].figures, finite[1]
    largest = max(abs(float(figures["min"][row])), abs(float(figures["max"][row])))
    return largest * times > _largest(*over)


def _largest(table: Table, row: int) -> float:
    """Return the largest number that a gradient can hold.

    That is the largest number of its dtype, or of autocast's dtype if that is smaller.
    """
    header = table.header.get(table.tensors[table.tensor[row]].rank, {})
    names = [table.dtypes[table.dtype[row]], *str(header.get(AUTOCAST) or "").split("|")]
    maxima = [dtypes.DTYPES[name].max for name in names if name in dtypes.DTYPES]
    return min((largest for largest in maxima if largest is not None), default=np.inf)
