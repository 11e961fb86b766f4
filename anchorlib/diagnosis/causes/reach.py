"""Whether anything differs in the scope of a record."""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib.diagnosis.causes.parentage import Role, Scope
from anchorlib.diagnosis.pairing import Table

__all__ = ["Reach"]

Array = np.ndarray[Any, Any]
NEVER = np.iinfo(np.int64).max


class Reach:
    """The earliest difference of each sort, by rank and step: all that scopes ask for.

    differs, role: of each row of the table; roles hold for rows that differ.
    """

    def __init__(self, table: Table, differs: Array, role: Array) -> None:
        ranks = np.array([tensor.rank for tensor in table.tensors] or [0])
        self._ranks, self._rank = np.unique(ranks[table.tensor], return_inverse=True)
        self._steps, self._step = np.unique(table.step, return_inverse=True)
        self._table = table
        rows = np.flatnonzero(differs)
        self._first_step = table.step[rows].min() if len(rows) else NEVER
        body = rows[role[rows] != Role.OPTIMIZER]
        # The earliest pass with a difference, by step and rank.
        self._passes = self._earliest(body, table.pass_index, by_step=True)
        self._orders = self._earliest(rows, table.order)[:, 0]
        computed = rows[role[rows] == Role.COMPUTED]
        self._computed = self._earliest(computed, table.order)[:, 0]
        loose = rows[np.isin(role[rows], (Role.LOOSE, Role.INPUT))]
        self._loose = self._earliest(loose, table.order, by_step=True)

    def _earliest(self, rows: Array, values: Array, *, by_step: bool = False) -> Array:
        found = np.full((len(self._ranks), len(self._steps) if by_step else 1), NEVER)
        step = self._step[rows] if by_step else np.zeros(len(rows), np.int64)
        np.minimum.at(found, (self._rank[rows], step), values[rows])
        return found

    def any_in(self, rows: Array, scope: Array) -> Array:
        """Whether anything differs in the scope of each of these rows."""
        rank, step = self._rank[rows], self._step[rows]
        pass_index, order = self._table.pass_index[rows], self._table.order[rows]
        everywhere = self._passes.min(axis=0, initial=NEVER)[step]
        steps = self._first_step < self._table.step[rows]
        answers = {
            Scope.STEPS: steps,
            Scope.PASSES: everywhere < pass_index,
            Scope.BODY: everywhere < NEVER,
            Scope.RANKS: self._elsewhere(rank, step) <= pass_index,
            Scope.EARLIER: steps | (self._orders[rank] < order),
            Scope.LOOSE: self._loose[rank, step] < order,
            Scope.COMPUTED: self._computed[rank] < order,
        }
        found = np.zeros(len(rows), bool)
        for one, answer in answers.items():
            found |= ((scope & np.uint8(one)) != 0) & answer
        return found

    def _elsewhere(self, rank: Array, step: Array) -> Array:
        """The earliest pass of a step in which another rank differs."""
        if len(self._ranks) < 2:
            return np.full(len(rank), NEVER)
        ordered = np.sort(self._passes, axis=0)
        own = self._passes[rank, step]
        # Where the rank itself is the earliest, the second earliest is another's.
        found: Array = np.where(own == ordered[0, step], ordered[1, step], ordered[0, step])
        return found
