"""The values of several records of one run, joined into those of one record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.pairing.groups import Group
from anchorlib.diagnosis.pairing.rows import whole
from anchorlib.diagnosis.pairing.table import Table
from anchorlib.errors import StoreError
from anchorlib.summary import digest

__all__ = ["LAYOUTS", "halves_of", "intact", "joined", "norm_of_parts", "summable", "together"]

Array = np.ndarray[Any, Any]
LAYOUTS = ("block", "strided")
"""How a batch may be dealt out: in blocks, or one sample after the other in turn."""
Held = Mapping[int, Array]
NOTHING: Held = MappingProxyType({})
MUCH = 1 << 22  # elements that are read together
BFLOAT16 = "bfloat16"


def summable(dtype: str) -> bool:
    """Whether sums can be rounded to this element type."""
    kind = dtypes.dtype(dtype)
    return dtype == BFLOAT16 or (kind.storage == kind.decoded and kind.family != "bool")


def intact(table: Table, group: Group, layout: str = "block", held: Held = NOTHING) -> Array | None:
    """What `joined` gives; None where a part cannot be read or is not what was recorded."""
    try:
        return joined(table, group, layout, held)
    except StoreError:
        return None


def joined(table: Table, group: Group, layout: str = "block", held: Held = NOTHING) -> Array:
    """The raw storage of the one record that these rows are, flat.

    held: what was read of some rows already.
    Sums are those of float64 numbers, rounded once.
    Raises StoreError where a part cannot be read or is not what was recorded.
    """
    name = table.dtypes[table.dtype[group.rows[0]]]
    parts = [_whole(table, row, held) for row in group.rows]
    if group.way == "concatenated":
        found = _together(parts, group.axis, layout).reshape(-1)
        return found if group.factor == 1.0 else _encoded(_wide(found, name) * group.factor, name)
    total = sum((_wide(part, name) for part in parts[1:]), start=_wide(parts[0], name))
    return _encoded(np.asarray(total * group.factor), name).reshape(-1)


def together(table: Table, groups: Iterable[Group]) -> Iterator[tuple[Group, Held]]:
    """Groups of several rows with what was read of them: many small records at once."""
    numel = table.figures["numel"]
    some: list[Group] = []
    elements = 0
    for group in sorted(groups, key=lambda one: int(table.tensor[one.rows[0]])):
        some.append(group)
        elements += int(numel[list(group.rows)].sum())
        if elements >= MUCH:
            held = _held(table, some)
            yield from ((one, held) for one in some)
            some, elements = [], 0
    held = _held(table, some)
    yield from ((one, held) for one in some)


def _held(table: Table, groups: Iterable[Group]) -> Held:
    """The values of all rows that `stack` can read together."""
    alike: dict[tuple[int, int], list[int]] = {}
    for row in (row for group in groups for row in group.rows):
        key = (int(table.dtype[row]), int(table.figures["numel"][row]))
        alike.setdefault(key, []).append(row)
    found: dict[int, Array] = {}
    for (_, numel), rows in alike.items():
        if table.stack is None or not numel or numel * len(rows) > 2 * MUCH:
            continue
        with suppress(StoreError):  # each is read by itself then, and told of
            found.update(zip(rows, table.stack(np.array(rows, np.int64)), strict=True))
    return found


def norm_of_parts(table: Table, group: Group) -> float:
    """How large what was summed is, whatever of it cancels; 0 where nothing was."""
    if group.way != "summed":
        return 0.0
    norms = table.figures["l2"][list(group.rows)]
    return float(np.sqrt(np.square(norms).sum())) * group.factor


def _whole(table: Table, row: int, held: Held) -> Array:
    shape = table.shapes[table.shape[row]]
    raw = held[row] if row in held else whole(table, row)
    if halves_of(digest(raw)) != tuple(table.digest[row].tolist()):
        raise StoreError(f"row {row} is not what was recorded")
    return raw.reshape(shape)


def _together(parts: Sequence[Array], axis: int, layout: str) -> Array:
    if layout == "strided" and len({part.shape for part in parts}) == 1:
        stacked = np.stack(parts, axis=axis + 1)
        shape = parts[0].shape
        return stacked.reshape(*shape[:axis], -1, *shape[axis + 1 :])
    return np.concatenate(parts, axis=axis)


def _wide(raw: Array, name: str) -> Array:
    values = dtypes.decode(np.ascontiguousarray(raw), name)
    whole = dtypes.dtype(name).family
    wide = {"complex": np.complex128, "float": np.float64}.get(whole)
    return values if wide is None else values.astype(wide)


def _encoded(values: Array, name: str) -> Array:
    kind = dtypes.dtype(name)
    with np.errstate(over="ignore"):
        if name != BFLOAT16:
            return values.astype(kind.storage)
        bits = np.ascontiguousarray(values.astype("<f4")).view("<u4")
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype("<u2")


def halves_of(one: bytes) -> tuple[int, int]:
    """A digest as a table holds it."""
    return int.from_bytes(one[:8]), int.from_bytes(one[8:])
