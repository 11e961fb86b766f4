"""Gradients that one run's larger loss scale made infinite, in steps that its scaler skipped.

GradScaler begins with a large loss scale and tries larger ones as it goes on. A scale that is too
large makes gradients infinite; the scaler then skips the step and halves the scale. That is its
ordinary work, and no fault of what is computed. It is taken for that where the records show it: the
run alone skipped the step, it states a larger scale than the other run, and the other run's finite
values, times the ratio of the two scales, exceed the largest number of the type they have. Once
that was seen, the runs have other parameters: the values of one no longer tell how large those of
the other are, and later steps are taken for it by what both state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.causes.skips import SCALED, Skips
from anchorlib.diagnosis.pairing import Alignment, Table

__all__ = ["Overflows", "overflows"]

Array = np.ndarray[Any, Any]
AUTOCAST = "amp.autocast"


@dataclass(frozen=True, slots=True)
class Overflows:
    """The steps of one rank each, as A counts them, in which a larger loss scale overflowed.

    steps: (rank, step) -> how many times the other run's scale it is.
    """

    alignment: Alignment
    steps: dict[tuple[int, int], float]

    @property
    def first(self) -> int | None:
        """The first such step, from which on the runs went other ways; None without one."""
        return min((step for _, step in self.steps), default=None)

    def of(self, rows: Array) -> Array:
        """Whether these rows of A are gradients of such steps."""
        table = self.alignment.a
        if not self.steps:
            return np.zeros(len(rows), bool)
        where = zip(table.tensor[rows].tolist(), table.step[rows].tolist(), strict=True)
        found = [
            table.tensors[tensor].kind in SCALED
            and (table.tensors[tensor].rank, step) in self.steps
            for tensor, step in where
        ]
        return np.array(found, bool)

    def times(self, row: int) -> float:
        """How many times the other run's loss scale the one is that overflowed at a row of A."""
        table = self.alignment.a
        return self.steps[table.tensors[table.tensor[row]].rank, int(table.step[row])]


def overflows(alignment: Alignment, skips: Skips) -> Overflows:
    """The steps that one run alone skipped because of its larger loss scale."""
    return Overflows(alignment, dict(_overflows(alignment, skips)) if skips.a ^ skips.b else {})


def _overflows(alignment: Alignment, skips: Skips) -> Iterator[tuple[tuple[int, int], float]]:
    a, b = alignment.a, alignment.b
    rows_a, rows_b = alignment.a_row, alignment.b_row
    broken = _nonfinite(a, rows_a) != _nonfinite(b, rows_b)
    rank = np.array([one.rank for one in a.tensors] or [0])[a.tensor[rows_a]]
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
    found: Array = (table.figures["nan"][rows] + table.figures["inf"][rows]) > 0
    return found


def _times(over: tuple[Table, int], finite: tuple[Table, int]) -> float:
    """The ratio of the loss scales of two gradients; 0.0 where the second one is not finite."""
    table, row = finite
    if table.tensors[table.tensor[row]].kind not in SCALED or _nonfinite(table, np.array([row]))[0]:
        return 0.0
    return float(over[0].scale[over[1]] / table.scale[row])


def _exceeds(over: tuple[Table, int], finite: tuple[Table, int], times: float) -> bool:
    """Whether so many times the finite gradient exceeds the numbers of the other one's type."""
    figures, row = finite[0].figures, finite[1]
    largest = max(abs(float(figures["min"][row])), abs(float(figures["max"][row])))
    return largest * times > _largest(*over)


def _largest(table: Table, row: int) -> float:
    """The largest number that a gradient can be: of its own type, or of autocast's beneath it."""
    header = table.header.get(table.tensors[table.tensor[row]].rank, {})
    names = [table.dtypes[table.dtype[row]], *str(header.get(AUTOCAST) or "").split("|")]
    found = [dtypes.DTYPES[name].max for name in names if name in dtypes.DTYPES]
    return min((one for one in found if one is not None), default=np.inf)
