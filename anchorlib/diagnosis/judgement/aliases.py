"""Two names of one tensor, which one run alone takes apart: compiled code, or a copy.

A model that returns a tensor that it also computes with (the mean of an encoder, hidden states) has
one tensor under two names, and the gradient of each name is all that comes back to the tensor. A
compiled graph returns a copy under the second name: that name's gradient is then only what comes
back from outside the model, and the whole gradient is recorded under the first name as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from anchorlib.diagnosis.pairing import Alignment

__all__ = ["second_names"]

Array = np.ndarray[Any, Any]
Bits = tuple[int, int]


class _Name(NamedTuple):
    """A value of one step, pass and call: the bits of it and of its gradient in A and in B."""

    order: int
    tensor: int
    values: tuple[Bits, Bits]
    gradients: tuple[Bits, Bits]


def second_names(alignment: Alignment, pairs: Array) -> Array:
    """Which of these differing pairs are gradients of second names that one run took apart.

    The tensors are told by the first step that differs: both runs have the same value under both
    names there; one run has one gradient under both names, the other run two.
    """
    a = alignment.a
    rows = alignment.a_row[pairs]
    gradient = np.array([one.kind == "grad" for one in a.tensors] or [False], bool)[a.tensor[rows]]
    if not gradient.any():
        return gradient
    step = int(a.step[rows[gradient]].min())
    found = [one.tensor for same in _alike(alignment, step) for one in _parted(same)]
    return gradient & np.isin(a.tensor[rows], found)


def _alike(alignment: Alignment, step: int) -> Iterator[list[_Name]]:
    """The names of a step in groups whose values have equal bits, in order of execution."""
    a = alignment.a
    pairs = np.flatnonzero(a.step[alignment.a_row] == step)
    pairs = pairs[a.figures["l2"][alignment.a_row[pairs]] > 0]  # zeros are alike by chance
    told: dict[Any, dict[str, int]] = {}
    for pair in pairs.tolist():
        row = alignment.a_row[pair]
        one = a.tensors[a.tensor[row]]
        where = (one.rank, int(a.phase[row]), int(a.pass_index[row]), int(a.call[row]))
        told.setdefault((where, one.name), {})[one.kind] = pair
    names = sorted(
        (where, _name(alignment, kinds["value"], kinds["grad"]))
        for (where, _), kinds in told.items()
        if "value" in kinds and "grad" in kinds
    )
    for _, same in groupby(sorted(names, key=_of_bits), _of_bits):
        yield [name for _, name in same]


def _of_bits(told: tuple[Any, _Name]) -> Any:
    return told[0], told[1].values


def _name(alignment: Alignment, value: int, gradient: int) -> _Name:
    a = alignment.a
    row = int(alignment.a_row[value])
    bits = [
        (_bits(a.digest[alignment.a_row[pair]]), _bits(alignment.b.digest[alignment.b_row[pair]]))
        for pair in (value, gradient)
    ]
    tensor = int(a.tensor[alignment.a_row[gradient]])
    return _Name(int(a.order[row]), tensor, bits[0], bits[1])


def _bits(digest: Array) -> Bits:
    return int(digest[0]), int(digest[1])


def _parted(same: list[_Name]) -> Iterator[_Name]:
    """The later names of one tensor whose gradient equals an earlier name's in one run alone."""
    for at, later in enumerate(same):
        for first in same[:at]:
            alike = [first.gradients[run] == later.gradients[run] for run in (0, 1)]
            if alike[0] != alike[1]:
                yield later
                break
