"""Reads the rows of a frame, a message with records, as columns, and checks them.

A frame may hold thousands of small records. No object is made of each: that would cost more than
its bytes.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import xxhash

from anchorlib.block import RowBlock, Tables
from anchorlib.wire.messages.checksum import GarbledError
from anchorlib.wire.messages.malformed import FrameError
from anchorlib.wire.v1.collector_pb2 import Columns

__all__ = ["entries", "read_block"]

Array: TypeAlias = np.ndarray[Any, Any]

DIGEST_BYTES: Final = 16
_MAX_NUMBER: Final = 1 << 63
_MAX_FLAGS: Final = 1 << 16
_MAX_COUNT: Final = 1 << 48
_MAX_EXPONENT: Final = 1 << 14
_SIGNED: Final = {"step", "order", "time_ns"}
_FIGURES: Final = ("min", "max", "sum", "l2")
_BOUNDS: Final = {
    "pass_index": _MAX_NUMBER,
    "call": _MAX_NUMBER,
    "flags": _MAX_FLAGS,
    "zero": _MAX_COUNT,
    "nan": _MAX_COUNT,
    "inf": _MAX_COUNT,
    "subnormal": _MAX_COUNT,
    "bins": 2 * _MAX_EXPONENT,
}


def read_block(columns: Columns, payload: memoryview, tables: Tables) -> RowBlock:
    """Return the records of a message, whose values are in `payload`, as a block.

    columns: the records' rows. payload: the bytes of all values, in the order of the rows.
    tables: the series, layouts (dtype and shape) and phases that the stream has defined.
    Raises FrameError for a malformed frame, GarbledError for values that do not fit their digest.
    """
    rows, rest = divmod(len(columns.digest), DIGEST_BYTES)
    if rest:
        raise FrameError(f"{len(columns.digest)} bytes of digests, which is no multiple of 16")
    read = {
        name: _numbers(getattr(columns, name), rows, name, len(known))
        for name, known in (
            ("series", tables.series),
            ("layout", tables.layouts),
            ("phase", tables.phases),
        )
    }
    for name in _SIGNED:
        read[name] = entries(getattr(columns, name), rows, name, np.int64)
    for name, bound in _BOUNDS.items():
        read[name] = _bounded(entries(getattr(columns, name), rows, name, np.uint64), bound)
    for name in _FIGURES:
        read[name] = entries(getattr(columns, name), rows, name, np.float64)
    read["count"] = entries(columns.count, rows, "count", np.uint64, 1)
    read["scale"] = entries(columns.scale, rows, "scale", np.float64, 1.0)
    # The column is checked and then ignored: a store counts attempts itself.
    entries(columns.attempt, rows, "attempt", np.int64)
    kept = ~entries(columns.summary_only, rows, "summary_only", np.bool_)
    sizes = np.where(kept, np.array(tables.sizes, np.int64)[read["layout"]], 0)
    ends = np.cumsum(sizes)
    if (rows and int(ends[-1]) != len(payload)) or (not rows and len(payload)):
        end = int(ends[-1]) if rows else 0
        raise FrameError(f"a payload of {len(payload)} bytes; its rows have {end}")
    exponents, elements = _histograms(columns, read["bins"])
    digests = np.frombuffer(columns.digest, ">u8").reshape(rows, 2)
    starts = ends - sizes
    source = np.zeros(rows, np.int64)
    block = RowBlock(tables, read, digests, kept, [payload], source, starts, exponents, elements)
    _check_digests(block, columns.digest, ends)
    return block


def _histograms(columns: Columns, bins: Array) -> tuple[Array, Array]:
    exponents = entries(columns.exponent, None, "exponent", np.int64)
    elements = _bounded(entries(columns.elements, None, "elements", np.uint64), _MAX_COUNT)
    if not int(bins.sum()) == len(exponents) == len(elements):
        raise FrameError(f"{len(exponents)} exponents where {int(bins.sum())} were told")
    if len(exponents) and not (np.abs(exponents) < _MAX_EXPONENT).all():
        raise FrameError("a histogram has an exponent that no float has")
    first = np.zeros(len(exponents) + 1, np.bool_)
    first[np.cumsum(bins).astype(np.int64)] = True
    ascending = (np.diff(exponents) > 0) | first[1:-1] if len(exponents) else first[:0]
    if not ascending.all():
        owner = np.repeat(np.arange(len(bins)), bins.astype(np.int64))
        if len(np.unique(owner * (1 << 16) + exponents)) != len(exponents):
            raise FrameError("a histogram names one exponent twice")
    return exponents.astype("<i2"), elements


def _check_digests(block: RowBlock, digests: bytes, ends: Array) -> None:
    spans = zip(block.starts.tolist(), ends.tolist(), block.kept.tolist(), strict=True)
    payload, digest = block.payloads[0], xxhash.xxh3_128_digest
    for row, (start, end, kept) in enumerate(spans):
        at = DIGEST_BYTES * row
        if kept and digest(payload[start:end]) != digests[at : at + DIGEST_BYTES]:
            name, kind, _ = block.tables.series[block.columns["series"][row]]
            raise GarbledError(
                f"the values of {name!r}@{kind} at step {block.columns['step'][row]} were damaged "
                "on the way: their digest does not fit"
            )


def entries(
    values: Any, rows: int | None, name: str, dtype: type[Any], default: float = 0
) -> Array:
    """Return a column of a message with records as an array of `rows` entries.

    Raises FrameError, whose text has the column's `name`, if the column is not empty and has
    another number of entries.

    values: the column; an empty column stands for `rows` times `default`.
    rows: the number of rows in the message; None returns as many entries as `values` has.
    """
    if rows is not None and not values:
        return np.full(rows, default, dtype)
    if rows is not None and len(values) != rows:
        raise FrameError(f"column {name} has {len(values)} entries for {rows} rows")
    return np.array(list(values), dtype)


def _numbers(values: Any, rows: int, name: str, known: int) -> Array:
    """Return a column of indices into a table of `known` entries, as an array.

    Raises FrameError if an index is beyond the table, and where the column has neither 0 nor
    `rows` entries. An empty column stands for index 0 in every row.
    """
    column = entries(values, rows, name, np.int64)
    if rows and int(column.max()) >= known:
        raise FrameError(f"a row names a {name} that was not defined")
    return column


def _bounded(column: Array, limit: int) -> Array:
    if len(column) and int(column.max()) >= limit:
        raise FrameError(f"{column.max()} in a frame, where numbers are below {limit}")
    return column
