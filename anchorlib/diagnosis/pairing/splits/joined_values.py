"""The values of several records of one run, joined into those of one record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.pairing.splits.groups import RowGroup
from anchorlib.diagnosis.pairing.tables import Table, whole
from anchorlib.errors import StoreError
from anchorlib.summary import digest

__all__ = ["LAYOUTS", "halves_of", "intact", "joined", "norm_of_parts", "summable", "together"]

Array = np.ndarray[Any, Any]
LAYOUTS = ("block", "strided")
"""How a batch may be dealt out: in blocks, or one sample after the other in turn."""
Held = Mapping[int, Array]
NOTHING: Held = MappingProxyType({})
MUCH = 1 << 22  # elements of records that are read at once, about
BFLOAT16 = "bfloat16"
MOST_PARTS = 1 << 20  # of one record: factors are ratios of such counts


def summable(dtype: str) -> bool:
    """Return whether `joined` can round a sum to this dtype: bfloat16 and numpy's, except bool."""
    kind = dtypes.dtype(dtype)
    return dtype == BFLOAT16 or (kind.storage == kind.decoded and kind.family != "bool")


def intact(
    table: Table, group: RowGroup, layout: str = "block", held: Held = NOTHING
) -> Array | None:
    """Return the array that `joined` returns; None if a part cannot be read or is damaged."""
    try:
        return joined(table, group, layout, held)
    except StoreError:
        return None


def joined(table: Table, group: RowGroup, layout: str = "block", held: Held = NOTHING) -> Array:
    """Return the raw storage of the record that a group's rows make up, as a flat array.

    Floats are added in float64 and complex numbers in complex128, and rounded once to the record's
    dtype. Integers are added in their own dtype; their sum times the group's factor is computed
    exactly, and rounded to the nearest integer.
    layout: how a batch was dealt out, "block" or "strided".
    held: the values of rows that were read already, row -> flat array.
    Raises StoreError where a part cannot be read or does not have its recorded digest.
    """
    name = table.dtypes[table.dtype[group.rows[0]]]
    parts = [_whole(table, row, held) for row in group.rows]
    if group.combined == "concatenated":
        values = _together(parts, group.axis, layout).reshape(-1)
        scaled = group.factor != 1.0
        return _encoded(_times(_wide(values, name), group.factor), name) if scaled else values
    weights = group.weights or (1.0,) * len(parts)
    wide = [_times(_wide(part, name), of) for part, of in zip(parts, weights, strict=True)]
    total = sum(wide[1:], start=wide[0])
    return _encoded(_times(np.asarray(total), group.factor), name).reshape(-1)


def together(table: Table, groups: Iterable[RowGroup]) -> Iterator[tuple[RowGroup, Held]]:
    """Yield each group with values (row -> values) that were read for several groups at once.

    A row that is missing in these values has to be read alone. The groups come in the order of
    their tensors, not in the order given.
    """
    numel = table.figures["numel"]
    waiting: list[RowGroup] = []
    elements = 0
    for group in sorted(groups, key=lambda each: int(table.tensor[each.rows[0]])):
        waiting.append(group)
        elements += int(numel[list(group.rows)].sum())
        if elements >= MUCH:
            held = _held(table, waiting)
            yield from ((each, held) for each in waiting)
            waiting, elements = [], 0
    held = _held(table, waiting)
    yield from ((each, held) for each in waiting)


def _held(table: Table, groups: Iterable[RowGroup]) -> Held:
    """Return the values of the rows that `table.stack` can read at once: row -> values.

    Other rows are read one by one by `joined`.
    """
    alike: dict[tuple[int, int], list[int]] = {}
    for row in (row for group in groups for row in group.rows):
        key = (int(table.dtype[row]), int(table.figures["numel"][row]))
        alike.setdefault(key, []).append(row)
    values: dict[int, Array] = {}
    for (_, numel), rows in alike.items():
        if table.stack is None or not numel or numel * len(rows) > 2 * MUCH:
            continue
        with suppress(StoreError):  # `joined` then reads each record alone, and finds the damaged
            values.update(zip(rows, table.stack(np.array(rows, np.int64)), strict=True))
    return values


def norm_of_parts(table: Table, group: RowGroup) -> float:
    """Return the norm of all terms of a sum together, times the group's factor.

    That is the root of the sum of their squared norms, each times its weight. Terms may cancel, so
    that the sum has a smaller norm; its rounding is relative to the norm of the terms. 0 for a
    group whose rows are not added up.
    """
    if group.combined != "summed":
        return 0.0
    norms = table.figures["l2"][list(group.rows)] * (group.weights or 1.0)
    return float(np.sqrt(np.square(norms).sum())) * group.factor


def _whole(table: Table, row: int, held: Held) -> Array:
    """Return the values of one row in their shape.

    held: values that were read already; other rows are read here. Raises StoreError where values
    cannot be read, or do not have the digest that was recorded.
    """
    shape = table.shapes[table.shape[row]]
    raw = held[row] if row in held else whole(table, row)
    if halves_of(digest(raw)) != tuple(table.digest[row].tolist()):
        raise StoreError(f"row {row} is not what was recorded")
    return raw.reshape(shape)


def _together(parts: Sequence[Array], axis: int, layout: str) -> Array:
    """Return the parts concatenated along an axis.

    If the layout is "strided" and all shapes are equal, they are interleaved along the axis: the
    first sample of each part, then the second of each, up to the last.
    """
    if layout == "strided" and len({part.shape for part in parts}) == 1:
        stacked = np.stack(parts, axis=axis + 1)
        shape = parts[0].shape
        return stacked.reshape(*shape[:axis], -1, *shape[axis + 1 :])
    return np.concatenate(parts, axis=axis)


def _wide(raw: Array, name: str) -> Array:
    """Return the decoded values; floats and complex numbers in double precision.

    raw: as they are stored. name: the dtype's name.
    """
    values = dtypes.decode(np.ascontiguousarray(raw), name)
    whole = dtypes.dtype(name).family
    wide = {"complex": np.complex128, "float": np.float64}.get(whole)
    return values if wide is None else values.astype(wide)


def _times(values: Array, factor: float) -> Array:
    """Return the values times a factor; integers exactly, then rounded to the nearest integer."""
    if factor == 1.0 or values.dtype.kind not in "iu":
        return values * factor if factor != 1.0 else values
    ratio = Fraction(factor).limit_denominator(MOST_PARTS)
    twice = 2 * ratio.numerator * values.astype(object) + ratio.denominator
    return np.asarray(twice // (2 * ratio.denominator)).astype(values.dtype)


def _encoded(values: Array, name: str) -> Array:
    """Return the raw storage of values: floats rounded once to nearest even, to inf if too large.

    name: the dtype's name.
    """
    kind = dtypes.dtype(name)
    with np.errstate(over="ignore"):
        if name != BFLOAT16:
            return values.astype(kind.storage)
        # The distance between neighbours in bfloat16: 8 bits of each number, and 2**-133 at least.
        unit = np.ldexp(1.0, np.maximum(np.frexp(values)[1] - 8, -133))
        exact = np.ascontiguousarray((np.rint(values / unit) * unit).astype("<f4"))
    rounded = (exact.view("<u4") >> np.uint32(16)).astype("<u2")
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def halves_of(whole: bytes) -> tuple[int, int]:
    """Return the two halves of a digest, high and low, as `Table.digest` holds them."""
    return int.from_bytes(whole[:8]), int.from_bytes(whole[8:])
