"""Whether any record differs that may be a parent of a record without autograd knowing it.

A parent is a record from which another was computed. A record's scope (`CauseScope`) is the set of
records that may be further parents of it.

Only an earlier record explains a record. On the record's own rank, the order of execution decides
which records are earlier. The records of other ranks are counted separately: of these, steps and
passes decide.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.causes.parentage import CauseScope, Role
from anchorlib.diagnosis.pairing import Table

__all__ = ["Reach"]

Array = np.ndarray[Any, Any]
NEVER = np.iinfo(np.int64).max


class Reach:
    """The earliest difference of each role, by rank and step.

    All answers of this class follow from these. A role is what a record is in its step (`Role`).
    differs, role, first_order, unfollowed: arrays with an entry for each row of the table.
    role: meaningful for rows that differ.
    first_order: the row's order, or that of an earlier record of its tensor under another name.
    unfollowed: whether the row is a value that a module computed without gradients.
    """

    def __init__(
        self, table: Table, differs: Array, role: Array, first_order: Array, unfollowed: Array
    ) -> None:
        self._ranks, self._rank = np.unique(table.rank, return_inverse=True)
        self._steps, self._step = np.unique(table.step, return_inverse=True)
        self._table, self._first_order = table, first_order
        rows = np.flatnonzero(differs)
        self._any = self._earliest(rows, table.order)
        body = rows[role[rows] != Role.OPTIMIZER]
        self._body = self._earliest(body, table.order)
        # The earliest pass with a difference, and when each pass had its first.
        self._passes = self._earliest(body, table.pass_index)
        self._began = _Began(self._place(body), table.pass_index[body], table.order[body])
        computed = rows[role[rows] == Role.COMPUTED]
        self._computed = self._earliest(computed, table.order).min(axis=1, initial=NEVER)
        given = rows[np.isin(role[rows], (Role.INPUT, Role.BUFFER))]
        self._given = self._earliest(given, table.order)
        self._unfollowed = self._earliest(rows[unfollowed[rows]], table.order)
        loose = rows[(role[rows] == Role.LOOSE) & ~_single_numbers(table)[rows]]
        self._loose = self._earliest(loose, table.order).min(axis=1, initial=NEVER)

    def _earliest(self, rows: Array, values: Array) -> Array:
        """Return the smallest of `values` among these rows for each rank and step: (ranks, steps).

        NEVER where a rank and step has none of the rows. values: one for each row of the table.
        """
        earliest = np.full((len(self._ranks), len(self._steps)), NEVER)
        np.minimum.at(earliest, (self._rank[rows], self._step[rows]), values[rows])
        return earliest

    def _place(self, rows: Array) -> Array:
        """Return a number for the rank and step of each row; rows of one rank and step share it."""
        places: Array = self._rank[rows] * len(self._steps) + self._step[rows]
        return places

    def any_in(self, rows: Array, scope: Array) -> Array:
        """Return for each of these rows whether any record in its scope differs.

        A scope is the set of records from which the row may have been computed without autograd's
        knowledge. scope: the `CauseScope` flags of each row.
        """
        rank, step = self._rank[rows], self._step[rows]
        pass_index, order = self._table.pass_index[rows], self._first_order[rows]
        elsewhere = self._elsewhere(rank, step)
        steps = self._in_steps_before(rows)
        earlier = self._began.before(self._place(rows), pass_index) < order
        answers = {
            CauseScope.STEPS: steps,
            CauseScope.PASSES: earlier | (elsewhere < pass_index),
            CauseScope.BODY: (self._body[rank, step] < order) | (elsewhere <= self._open(rows)),
            CauseScope.RANKS: elsewhere <= pass_index,
            CauseScope.EARLIER: steps | (self._any.min(axis=1, initial=NEVER)[rank] < order),
            CauseScope.LOOSE: np.minimum(self._given[rank, step], self._loose[rank]) < order,
            CauseScope.COMPUTED: self._computed[rank] < order,
            CauseScope.UNFOLLOWED: self._unfollowed[rank, step] < order,
        }
        reached = np.zeros(len(rows), bool)
        for part, differs in answers.items():
            reached |= ((scope & np.uint8(part)) != 0) & differs
        return reached

    def _in_steps_before(self, rows: Array) -> Array:
        """Return for each row whether a record of an earlier step differs.

        A record on the row's own rank counts only if it was recorded before the row.
        """
        before = np.full((len(self._ranks), len(self._steps)), NEVER)
        before[:, 1:] = np.minimum.accumulate(self._any, axis=1)[:, :-1]
        rank, step = self._rank[rows], self._step[rows]
        # A gradient may be recorded when a later step has begun. Then a record of an earlier step
        # comes after records of the later step, so that the order has to be compared too.
        own = before[rank, step] < self._first_order[rows]
        others = (before < NEVER).sum(axis=0)[step] > (before[rank, step] < NEVER)
        differs: Array = own | others
        return differs

    def _elsewhere(self, rank: Array, step: Array) -> Array:
        """Return, for each rank and step, the first pass of the step in which another rank differs.

        NEVER where no other rank differs in the step.
        """
        if len(self._ranks) < 2:
            return np.full(len(rank), NEVER)
        ordered = np.sort(self._passes, axis=0)
        own = self._passes[rank, step]
        # Where the rank itself is the earliest, the second earliest belongs to another rank.
        passes: Array = np.where(own == ordered[0, step], ordered[1, step], ordered[0, step])
        return passes

    def _open(self, rows: Array) -> Array:
        """Return, for each row, the last pass that its rank had begun in the step up to the row.

        Zeros in a run of one rank.
        """
        if len(self._ranks) < 2:
            return np.zeros(len(rows), np.int64)
        every = np.arange(len(self._table))
        order = np.lexsort((self._table.order, self._place(every)))
        last_begun = np.empty(len(every), np.int64)
        last_begun[order] = -_least(self._place(order), -self._table.pass_index[order])
        return last_begun[rows]


def _single_numbers(table: Table) -> Array:
    """Return, for each row, whether it is a single floating-point number, such as a loss.

    Loose values may be unknown parents, since operations read indices and masks without a trace in
    the graph. A single number is not counted among them: a program that computes one without
    gradients mostly just reports it.
    """
    floats = [dtypes.dtype(name).family == "float" for name in table.dtypes]
    numbers: Array = np.array(floats or [False])[table.dtype] & (table.figures["numel"] == 1)
    return numbers


class _Began:
    """Finds the order of execution of the earliest difference before a given pass.

    A place is a number that stands for a rank and step (`Reach._place`).
    """

    def __init__(self, place: Array, pass_index: Array, order: Array) -> None:
        self._span = int(pass_index.max(initial=0)) + 1
        keys, which = np.unique(place * self._span + pass_index, return_inverse=True)
        first = np.full(len(keys), NEVER)
        np.minimum.at(first, which.reshape(-1), order)
        self._keys, self._first = keys, _least(keys // self._span, first)

    def before(self, place: Array, pass_index: Array) -> Array:
        """Return the order of the earliest difference in a place's passes before `pass_index`.

        NEVER where there is none.
        """
        if not len(self._keys):
            return np.full(len(place), NEVER)
        at = np.searchsorted(self._keys, place * self._span + np.minimum(pass_index, self._span))
        known = (at > 0) & (self._keys[at - 1] // self._span == place)
        return np.where(known, self._first[at - 1], NEVER)


def _least(group: Array, values: Array) -> Array:
    """Return the running minimum of the values within each group.

    group: the group of each value, ascending.
    """
    if not len(values):
        return values
    low = values.min()
    span = int(values.max() - low) + 1
    # Each group is shifted below the one before it, so that one accumulation starts anew in each.
    lowered = (values - low) - group * span
    minima: Array = np.minimum.accumulate(lowered) + group * span + low
    return minima
