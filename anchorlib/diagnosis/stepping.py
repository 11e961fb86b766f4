"""By how much the steps of one run are numbered differently in the other, as the digests tell.

A resumed run may count on or anew; then its first batch, its parameters, whatever it recorded, have
the bits that the other run's have at another step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from anchorlib.diagnosis.identity import Identities, same_bits, series_codes, shared_codes
from anchorlib.diagnosis.keys import joined, packed
from anchorlib.diagnosis.table import Table

__all__ = ["step_offset"]

Array = np.ndarray[Any, Any]
ENOUGH = 200_000  # records to look at
CLEAR = 3
"""Steps that must agree on an offset before runs that have steps in common are shifted."""


def step_offset(a: Table, b: Table, to_b: Mapping[str, str], plain: Identities) -> int:
    """What to add to A's steps to get B's; 0 unless the digests clearly say another.

    plain: the identities of records whose steps are taken as they are.

    Where runs have coordinates in common they are believed, unless not one record has its
    counterpart's bits there, and elsewhere those of at least three steps, and of half of all that
    would be compared, do.
    """
    one, two = joined(plain.key_a, plain.key_b)
    common = len(one)
    equal = same_bits(a, b, plain.row_a[one], plain.row_b[two])
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
    """The steps of records that have the same bits and all but the step in common.

    Only bits that a tensor has at one step of its run alone: constants say nothing of steps.
    """
    rows = [_earliest(table) for table in (a, b)]
    series, phases = series_codes(a, b, to_b), shared_codes(a.phases, b.phases)
    sides = []
    for n, table in enumerate((a, b)):
        own = rows[n]
        bits = (table.digest[own, 0] ^ table.digest[own, 1]).view(np.int64)
        names = (series[n][table.tensor[own]], phases[n][table.phase[own]])
        sides.append((*names, table.pass_index[own], table.call[own], bits))
    keys = packed([np.concatenate(columns) for columns in zip(*sides, strict=True)])
    one, two = (_once(part) for part in (keys[: len(rows[0])], keys[len(rows[0]) :]))
    place_a, place_b = joined(one[0], two[0])
    return a.step[rows[0][one[1][place_a]]], b.step[rows[1][two[1][place_b]]]


def _earliest(table: Table) -> Array:
    """The rows of the tensors that a run recorded first (its inputs are), as many as are enough."""
    if len(table) <= ENOUGH:
        return np.arange(len(table))
    tensors, first, count = np.unique(table.tensor, return_index=True, return_counts=True)
    order = np.argsort(first, kind="stable")
    # Those of the lowest rank come first; all ranks count their steps alike.
    many = max(int(np.searchsorted(np.cumsum(count[order]), ENOUGH)), 1)
    return np.flatnonzero(np.isin(table.tensor, tensors[order[:many]]))


def _once(keys: Array) -> tuple[Array, Array]:
    """The keys that occur once, and where."""
    found, place, count = np.unique(keys, return_index=True, return_counts=True)
    return found[count == 1], place[count == 1]


def _votes(step_a: Array, step_b: Array) -> tuple[Array, Array]:
    """Each offset, and how many of A's steps speak for it."""
    if not len(step_a):
        return step_a, step_a
    told = np.unique(np.stack([step_b - step_a, step_a]), axis=1)
    offsets, votes = np.unique(told[0], return_counts=True)
    return offsets, votes
