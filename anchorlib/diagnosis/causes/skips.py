"""Optimizer steps that a GradScaler skipped, in both runs or in one run alone.

A loss scale that has grown too large makes gradients infinite; the scaler then skips the step and
halves the scale. Where both runs skip a step, the scaler did its ordinary work, and it does not
matter which elements became infinite. Where one run alone skips a step, the runs part.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlib.diagnosis.pairing import Alignment, Table
from anchorlib.names import escape
from anchorlib.record import Flag

__all__ = ["SCALED", "Skips", "gradients_of", "skips"]

Array = np.ndarray[Any, Any]
SCALED = ("grad", "pass_grad")
SHOWN = 3


@dataclass(frozen=True, slots=True)
class Skips:
    """The steps that a GradScaler skipped in A, and in B, as (rank, step as A counts)."""

    alignment: Alignment
    a: frozenset[tuple[int, int]]
    b: frozenset[tuple[int, int]]

    def in_both(self, rows: Array) -> Array:
        """Return a mask of the rows (of A) that are gradients of a step that both runs skipped."""
        return gradients_of(self.alignment.a, rows, self.a & self.b)

    def alone(self, row: int) -> str:
        """Return the escaped name of the run that alone skipped the step of a row of A, or ""."""
        table = self.alignment.a
        where = (table.tensors[table.tensor[row]].rank, int(table.step[row]))
        if (where in self.a) == (where in self.b):
            return ""
        return escape(table.run if where in self.a else self.alignment.b.run)

    def lines(self) -> Iterable[str]:
        """Yield a sentence for each run that skipped steps which the other run took."""
        sides = (self.alignment.a, self.a - self.b), (self.alignment.b, self.b - self.a)
        for table, own in sides:
            if own:
                run = escape(table.run)
                steps = _listed(sorted({step for _, step in own}))
                yield f"the scaler skipped {steps} in {run} only: the ways part there"


def skips(alignment: Alignment) -> Skips:
    """Return the steps that each run skipped, among the steps that both runs have."""
    a, b = alignment.a, alignment.b
    common = _steps(a, np.ones(len(a), bool), 0)
    common &= _steps(b, np.ones(len(b), bool), alignment.step_offset)
    skipped = [
        _steps(table, _skipped(table), offset) & common
        for table, offset in ((a, 0), (b, alignment.step_offset))
    ]
    return Skips(alignment, frozenset(skipped[0]), frozenset(skipped[1]))


def gradients_of(table: Table, rows: Array, steps: Collection[tuple[int, int]]) -> Array:
    """Return a mask of the rows that are gradients of one of these steps, given as (rank, step)."""
    if not steps:
        return np.zeros(len(rows), bool)
    where = zip(table.tensor[rows].tolist(), table.step[rows].tolist(), strict=True)
    of_steps = [
        table.tensors[tensor].kind in SCALED and (table.tensors[tensor].rank, step) in steps
        for tensor, step in where
    ]
    return np.array(of_steps, bool)


def _skipped(table: Table) -> Array:
    if table.flags is None:
        return np.zeros(len(table), bool)
    flagged: Array = (table.flags & int(Flag.STEP_SKIPPED)) != 0
    return flagged


def _steps(table: Table, which: Array, offset: int) -> set[tuple[int, int]]:
    ranks = table.rank[which]
    pairs = np.unique(np.stack([ranks, table.step[which] - offset], 1), axis=0)
    return {(rank, step) for rank, step in pairs.tolist()}


def _listed(steps: list[int]) -> str:
    shown = ", ".join(map(str, steps[:SHOWN]))
    more = f" and {len(steps) - SHOWN} more" if len(steps) > SHOWN else ""
    return f"step{'s' * (len(steps) > 1)} {shown}{more}"
