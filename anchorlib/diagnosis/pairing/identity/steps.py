"""The offset between the step numbers of two runs, found by equal digests.

A run that resumes from a checkpoint may count its steps anew. Its batches, parameters and other
records then have the bits that the other run's records have at another step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from anchorlib.diagnosis.pairing.identity.identity import (
    Identities,
    same_bits,
    series_codes,
    shared_codes,
)
from anchorlib.diagnosis.pairing.identity.keys import joined, packed
from anchorlib.diagnosis.pairing.tables import Table

__all__ = ["step_offset"]

Array = np.ndarray[Any, Any]
ENOUGH = 200_000  # the most records of a run that are examined
CLEAR = 3
"""Steps that must agree on an offset before runs that have coordinates in common are shifted."""


def step_offset(a: Table, b: Table, to_b: Mapping[str, str], plain: Identities) -> int:
    """Return what to add to A's steps to get B's; 0 unless digests clearly show another offset.

    to_b: the matches of names, A's name -> B's. plain: the identities of both runs' records, with
        each run's own numbers of steps.

    An offset gets one vote for each step of A at which a record has the bits of B's record so many
    steps later. Runs without common coordinates take the offset with most votes; 0 in a tie. Runs
    with common coordinates keep 0 where most records at equal steps are equal, or where one record
    has equal bits at equal steps, and these bits at no other step. Otherwise an offset must have at
    least CLEAR votes, half of the steps that it makes common, and twice the votes of any other
    offset.
    """
    places_a, places_b = joined(plain.key_a, plain.key_b)
    common = len(places_a)
    equal = same_bits(a, b, plain.row_a[places_a], plain.row_b[places_b])
    if 2 * np.count_nonzero(equal) > common:
        return 0
    step_a, step_b = _equal_bits(a, b, to_b)
    offsets, votes = _votes(step_a, step_b)
    if not len(offsets) or (common and 0 in offsets):
        return 0
    ranked = np.argsort(-votes, kind="stable")
    best, most = int(offsets[ranked[0]]), int(votes[ranked[0]])
    rival = int(votes[ranked[1]]) if len(ranked) > 1 else 0
    if not common:
        return best if most > rival else 0
    overlap = len(np.intersect1d(np.unique(a.step) + best, b.step))
    return best if most >= max(CLEAR, overlap / 2, 2 * rival) else 0


def _equal_bits(a: Table, b: Table, to_b: Mapping[str, str]) -> tuple[Array, Array]:
    """Return the steps, in A and in B, of record pairs that are equal in bits and all but the step.

    Only bits that occur at a single step of their run are paired: constants do not identify a step.
    """
    rows = [_first_distinctive(table) for table in (a, b)]
    series, phases = series_codes(a, b, to_b), shared_codes(a.phases, b.phases)
    sides = []
    for n, table in enumerate((a, b)):
        own = rows[n]
        bits = (table.digest[own, 0] ^ table.digest[own, 1]).view(np.int64)
        names = (series[n][table.tensor[own]], phases[n][table.phase[own]])
        sides.append((*names, table.pass_index[own], table.call[own], bits))
    keys = packed([np.concatenate(columns) for columns in zip(*sides, strict=True)])
    cut = len(rows[0])
    key_a, step_a = _at_one_step(keys[:cut], a.step[rows[0]])
    key_b, step_b = _at_one_step(keys[cut:], b.step[rows[1]])
    place_a, place_b = joined(key_a, key_b)
    return step_a[place_a], step_b[place_b]


def _first_distinctive(table: Table) -> Array:
    """Return the rows whose bits are compared: those of the tensors recorded first, such as inputs.

    There are at most ENOUGH rows, unless the first tensor alone has more. Single numbers and
    constants are left out: the value of a counter shows its own count, not the step of the run.
    """
    figures = table.figures
    rows = np.flatnonzero((figures["numel"] > 1) & (figures["min"] < figures["max"]))
    if len(rows) <= ENOUGH:
        return rows
    tensors, first, count = np.unique(table.tensor[rows], return_index=True, return_counts=True)
    order = np.argsort(first, kind="stable")
    # Tensors of the lowest rank come first and may fill it: all ranks count their steps alike.
    many = max(int(np.searchsorted(np.cumsum(count[order]), ENOUGH)), 1)
    chosen: Array = rows[np.isin(table.tensor[rows], tensors[order[:many]])]
    return chosen


def _at_one_step(keys: Array, steps: Array) -> tuple[Array, Array]:
    """Return the keys that occur at one step alone, ascending, and the step of each.

    keys, steps: the key and the step of each record.
    """
    if not len(keys):
        return keys, steps
    order = np.lexsort((steps, keys))
    distinct, starts = np.unique(keys[order], return_index=True)
    ends = np.append(starts[1:], len(keys)) - 1
    first, last = steps[order][starts], steps[order][ends]
    return distinct[first == last], first[first == last]


def _votes(step_a: Array, step_b: Array) -> tuple[Array, Array]:
    """Return the offsets between equal records, and for each how many of A's steps show it.

    step_a, step_b: the steps of records with equal bits, pair by pair.
    """
    if not len(step_a):
        return step_a, step_a
    differences = np.unique(np.stack([step_b - step_a, step_a]), axis=1)
    offsets, votes = np.unique(differences[0], return_counts=True)
    return offsets, votes
