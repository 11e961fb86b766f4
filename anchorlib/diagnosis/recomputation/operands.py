"""The operands of the operation that made one record, as both runs stored them.

own       the record itself
child     for a gradient: the gradient that came into the operation's backward
output    for a gradient: the value that the operation made in forward
inputs    the values that the operation read, without parameters
weights   the parameters that the operation read
beside    other values of the step, which the operation may have read without autograd's knowledge
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.causes import Frontier, Role
from anchorlib.diagnosis.pairing import Table
from anchorlib.diagnosis.sizes import DigestChecks
from anchorlib.errors import StoreError

__all__ = ["MOST_ELEMENTS", "Operands", "StoredOperand", "operands_of", "values_at"]

Array = np.ndarray[Any, Any]
Fits = Callable[[tuple[int, ...], str], bool]
MOST_ELEMENTS: Final = 1 << 24
"""Elements of one record that are read for a replay."""


@dataclass(frozen=True, slots=True)
class StoredOperand:
    """A record that both runs stored, as an operand of a replay (an operation computed again).

    name, kind: the tensor's name in A, and the record's kind. shape, dtype: those of both runs,
    which are equal.
    read: returns the decoded values of a run, "a" or "b".
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[str], Array]


@dataclass(frozen=True, slots=True)
class Operands:
    """The records that are needed to compute the record `own` again.

    child: for a gradient, the gradient that came into the operation's backward; else None.
    output: for a gradient, the value that the operation made in forward; None where it has no
        record.
    inputs, weights: the values, and the parameters, that the operation read.
    beside: returns other values of the record's pass that may be operands. It is given a function
        that says whether a shape and a dtype fit.
    """

    own: StoredOperand
    child: StoredOperand | None
    output: StoredOperand | None
    inputs: tuple[StoredOperand, ...]
    weights: tuple[StoredOperand, ...]
    beside: Callable[[Fits], list[StoredOperand]] = lambda _fits: []


def operands_of(frontier: Frontier, row: int) -> Operands | None:
    """Return the operands of the record in a row of A; None if any of them lacks values in a run.

    None, too, where the operation is not determined: for a gradient with no recorded gradient that
    came in, or for a record with several such gradients.
    """
    own = _operand(frontier, row)
    direct = frontier.parents(row)
    every = [(parent, _operand(frontier, parent)) for parent in frontier.parents(row, saved=True)]
    if own is None or any(operand is None for _, operand in every):
        return None
    known = [(one, operand) for one, operand in every if operand is not None]
    children = [operand for one, operand in known if one in direct and operand.kind != "value"]
    if len(children) > 1 or (own.kind != "value" and not children):
        return None
    values = [(one, operand) for one, operand in known if operand.kind == "value"]
    child = children[0] if children else None
    output = next((one for _, one in values if child and one.name == child.name), None)
    rest = [(one, operand) for one, operand in values if operand is not output]
    return Operands(
        own=own,
        child=child,
        output=output,
        inputs=tuple(operand for one, operand in rest if not _is_parameter(frontier, one)),
        weights=tuple(operand for one, operand in rest if _is_parameter(frontier, one)),
        beside=lambda fits: _beside(frontier, row, fits),
    )


def _beside(frontier: Frontier, row: int, fits: Fits) -> list[StoredOperand]:
    """Return the values in a row's rank, phase, step and pass that fit and that both runs stored.

    Of each tensor, only the first value that fits is looked at. row: a row of A. fits: says whether
    a shape and a dtype fit.
    """
    a = frontier.alignment.a
    of_pass = (
        (a.step == a.step[row]) & (a.pass_index == a.pass_index[row]) & (a.phase == a.phase[row])
    )
    fitting: dict[int, StoredOperand | None] = {}
    for candidate in np.flatnonzero(of_pass).tolist():
        number = int(a.tensor[candidate])
        tensor, shape = a.tensors[number], a.shapes[int(a.shape[candidate])]
        if (
            number in fitting
            or tensor.kind != "value"
            or tensor.rank != a.tensors[a.tensor[row]].rank
        ):
            continue
        if fits(shape, a.dtypes[int(a.dtype[candidate])]):
            fitting[number] = _operand(frontier, candidate)
    return [operand for operand in fitting.values() if operand is not None]


def _is_parameter(frontier: Frontier, row: int) -> bool:
    layout = frontier.layouts[int(frontier.blocks.layout[frontier.block_of[row]])]
    return int(layout.role[frontier.place_of[row]]) == Role.PARAMETER


def _operand(frontier: Frontier, row: int) -> StoredOperand | None:
    """Return the record at a row of A as an operand; None unless both runs keep its values.

    None, too, where the runs have other shapes or dtypes, and for more than MOST_ELEMENTS elements.
    """
    alignment = frontier.alignment
    pair = int(np.searchsorted(alignment.a_row, row))
    if pair >= len(alignment) or int(alignment.a_row[pair]) != row:
        return None
    sides = {"a": (alignment.a, row), "b": (alignment.b, int(alignment.b_row[pair]))}
    if not all(table.kept[place] for table, place in sides.values()):
        return None
    shapes = {table.shapes[int(table.shape[place])] for table, place in sides.values()}
    names = {table.dtypes[int(table.dtype[place])] for table, place in sides.values()}
    if len(shapes) > 1 or len(names) > 1:
        return None
    a = alignment.a
    tensor, shape, name = a.tensors[int(a.tensor[row])], shapes.pop(), names.pop()
    if int(a.figures["numel"][row]) > MOST_ELEMENTS:
        return None
    return StoredOperand(
        tensor.name, tensor.kind, shape, name, lambda side: values_at(*sides[side], shape, name)
    )


def values_at(table: Table, row: int, shape: tuple[int, ...], name: str) -> Array:
    """Return the values of one record, in `shape`, decoded from the dtype `name`.

    Raises StoreError where they cannot be read, or do not have the digest that was recorded.
    """
    parts = list(table.read(row, 1 << 24))
    raw = np.concatenate(parts) if parts else np.empty(0, dtypes.dtype(name).storage)
    seals = DigestChecks(table.digest[[row]])
    seals.add(raw[None])
    if seals.broken:
        raise StoreError(f"values of {table.run} are not those that were recorded")
    return dtypes.decode(raw, name).reshape(shape)
