"""Records as columns: every record enters a store in a block of columns.

    block_of(records) ──┐
    a drain's columns ──┼──▶ RowBlock ──▶ Writer.write_block
    a collector's frame ┘

Every column of a block has one entry for each record. Values that many records share (series, dtype
and shape, phase) stand once in the block's `Tables`, and columns hold their indices there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np

from anchorlib import dtypes
from anchorlib.errors import AnchorError, StoreError
from anchorlib.record import Coordinates, Flag, Record
from anchorlib.summary import Log2Histogram, Summary

__all__ = [
    "COLUMNS",
    "Buffer",
    "Misfit",
    "RowBlock",
    "Tables",
    "block_of",
    "joined_blocks",
    "layout_bytes",
    "payloads_of",
    "records_of",
]

Array: TypeAlias = np.ndarray[Any, Any]
Buffer: TypeAlias = bytes | memoryview
Series: TypeAlias = tuple[str, str, str]
Layout: TypeAlias = tuple[str, tuple[int, ...]]

_I8: Final = np.dtype(np.int64)
_U8: Final = np.dtype(np.uint64)
_F8: Final = np.dtype(np.float64)

COLUMNS: Final[dict[str, np.dtype[Any]]] = {
    "series": _I8,
    "layout": _I8,
    "phase": _I8,
    "step": _I8,
    "pass_index": _I8,
    "call": _I8,
    "order": _I8,
    "time_ns": _I8,
    "count": _U8,
    "flags": np.dtype(np.uint32),
    "scale": _F8,
    "zero": _U8,
    "nan": _U8,
    "inf": _U8,
    "subnormal": _U8,
    "min": _F8,
    "max": _F8,
    "sum": _F8,
    "l2": _F8,
    "bins": _I8,
}
"""The columns of a block, and the dtype in which `block_of` makes each."""

DIGEST_BYTES: Final = 16
MAX_DIMS: Final = 64  # numpy's own limit
MAX_ELEMENTS: Final = 1 << 60
MAX_STEP: Final = 1 << 63
_JOINED_BYTES: Final = 1 << 14  # values of more bytes are not copied into a common payload


@dataclass(frozen=True, slots=True)
class Tables:
    """The series, layouts and phases to which indices in columns refer.

    The lists may grow; their entries never change.

    series: (name, kind, mode's text) of each series.
    layouts: (dtype by torch's name, shape) of each layout.
    sizes: for each layout, the bytes of one record's values.
    """

    series: Sequence[Series]
    layouts: Sequence[Layout]
    sizes: Sequence[int]
    phases: Sequence[str]


@dataclass(frozen=True, slots=True)
class Misfit:
    """A record that cannot be stored, and the reason; it is counted as a gap."""

    name: str
    kind: str
    mode: str
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Records of one rank, column by column, in the order in which they were made.

    columns: each of `COLUMNS`, with one entry for each record. "series", "layout" and "phase" are
        indices into `tables`; "bins" is the number of bins in the record's histogram; the others
        are fields of `Record` and of its summary.
    digest: (records, 2), big-endian halves of the xxh3-128 of the values.
    kept: whether a record has values. They lie in `payloads[source]`, from byte `starts` on, as
        many bytes as its layout has; `source` and `starts` of other records mean nothing.
    exponents, elements: the bins of all histograms, one record's after the other's.
    misfits: records that are left out because a column cannot hold them.
    """

    tables: Tables
    columns: dict[str, Array]
    digest: Array
    kept: Array
    payloads: Sequence[Buffer]
    source: Array
    starts: Array
    exponents: Array
    elements: Array
    misfits: tuple[Misfit, ...] = ()

    def __len__(self) -> int:
        return len(self.kept)

    @property
    def sizes(self) -> Array:
        """Bytes of each record's values; 0 for a record without values."""
        sizes: Array = np.array(self.tables.sizes, np.int64)[self.columns["layout"]]
        return np.where(self.kept, sizes, 0)

    def buffers(self, rows: Array) -> list[Buffer]:
        """The values of these records, as buffers in order; nothing is copied.

        rows: rows of records that have values. Values that lie end to end in one payload come as
            one buffer.
        """
        starts, sizes, source = self.starts[rows], self.sizes[rows], self.source[rows]
        ends = starts + sizes
        follows = (starts[1:] == ends[:-1]) & (source[1:] == source[:-1])
        first = np.concatenate([[True], ~follows]) if len(rows) else np.empty(0, bool)
        last = np.concatenate([~follows, [True]]) if len(rows) else first
        spans = zip(
            source[first].tolist(), starts[first].tolist(), ends[last].tolist(), strict=True
        )
        return [memoryview(self.payloads[at])[start:end] for at, start, end in spans]

    def values(self) -> list[Buffer]:
        """The values of all records that have values, as buffers in order; nothing is copied."""
        return self.buffers(np.flatnonzero(self.kept))

    def cut(self, bounds: Sequence[int]) -> Iterator[RowBlock]:
        """The rows between each two neighbours of `bounds`, as blocks that share this memory."""
        bins = np.concatenate([[0], np.cumsum(self.columns["bins"])]).astype(np.int64)
        for first, last in pairwise(bounds):
            rows, pairs = slice(first, last), slice(int(bins[first]), int(bins[last]))
            yield replace(
                self,
                columns={name: column[rows] for name, column in self.columns.items()},
                digest=self.digest[rows],
                kept=self.kept[rows],
                source=self.source[rows],
                starts=self.starts[rows],
                exponents=self.exponents[pairs],
                elements=self.elements[pairs],
                misfits=(),
            )

    def without_values(self, bare: Array) -> RowBlock:
        """This block without the values of records where `bare` is true; they get VALUE_DROPPED."""
        flags = self.columns["flags"].copy()
        flags[bare & self.kept] |= int(Flag.VALUE_DROPPED)
        return replace(self, columns={**self.columns, "flags": flags}, kept=self.kept & ~bare)

    @property
    def names(self) -> list[Series]:
        """The series of each record: (name, kind, mode's text)."""
        return [self.tables.series[number] for number in self.columns["series"].tolist()]

    def nothing(self) -> RowBlock:
        """This block without any of its records."""
        return self.only(np.zeros(len(self), bool))

    def only(self, chosen: Array) -> RowBlock:
        """The records where `chosen` is true."""
        bins = np.repeat(chosen, self.columns["bins"].astype(np.int64))
        return replace(
            self,
            columns={name: column[chosen] for name, column in self.columns.items()},
            digest=self.digest[chosen],
            kept=self.kept[chosen],
            source=self.source[chosen],
            starts=self.starts[chosen],
            exponents=self.exponents[bins],
            elements=self.elements[bins],
        )

    def after(self, rows: int) -> RowBlock:
        """This block without its first `rows` records."""
        return self if rows <= 0 else self.only(np.arange(len(self)) >= rows)

    def misfit(self, row: int, reason: str) -> Misfit:
        """The misfit that says that the record at `row` cannot be stored."""
        name, kind, mode = self.tables.series[self.columns["series"][row]]
        return Misfit(name, kind, mode, int(self.columns["step"][row]), reason)


def joined_blocks(blocks: Sequence[RowBlock]) -> RowBlock:
    """One block of the records of several blocks, in order; all have the same tables."""
    if len(blocks) == 1:
        return blocks[0]
    offsets = np.cumsum([0, *(len(block.payloads) for block in blocks[:-1])]).tolist()
    pairs = list(zip(blocks, offsets, strict=True))
    return RowBlock(
        blocks[-1].tables,
        {name: np.concatenate([one.columns[name] for one in blocks]) for name in COLUMNS},
        np.concatenate([one.digest for one in blocks]),
        np.concatenate([one.kept for one in blocks]),
        list(chain.from_iterable(one.payloads for one in blocks)),
        np.concatenate([one.source + at for one, at in pairs]),
        np.concatenate([one.starts for one in blocks]),
        np.concatenate([one.exponents for one in blocks]),
        np.concatenate([one.elements for one in blocks]),
        tuple(chain.from_iterable(one.misfits for one in blocks)),
    )


def layout_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor of this dtype and shape in storage.

    Raises UnknownDTypeError, or StoreError for a shape that no tensor has.
    """
    kind = dtypes.dtype(dtype)
    if len(shape) > MAX_DIMS or any(size < 0 for size in shape):
        raise StoreError(f"no tensor has the shape {shape}")
    if prod(max(size, 1) for size in shape) >= MAX_ELEMENTS:
        raise StoreError(f"a shape of {shape} is too large to be a tensor's")
    return kind.storage.itemsize * prod(shape)


def block_of(records: Sequence[Record]) -> RowBlock:
    """The block of these records, each of which has its summary; only small values are copied.

    A record that contradicts itself (a figure that no column holds, values of another shape)
    becomes one of the block's `misfits`; the other records are kept.
    """
    try:
        return _block(records)
    except _UNFIT:
        fit, misfits = [], []
        for record in records:
            try:
                _block([record])
                fit.append(record)
            except _UNFIT as error:
                misfits.append(_misfit(record, error))
        return replace(_block(fit), misfits=tuple(misfits))


_UNFIT: Final = (AnchorError, OverflowError, ValueError, TypeError)


def _misfit(record: Record, error: Exception) -> Misfit:
    step = max(-MAX_STEP, min(int(record.coordinates.step), MAX_STEP - 1))
    told = str(error) if isinstance(error, AnchorError) else f"a figure out of range ({error})"
    return Misfit(record.name, record.kind, record.mode, step, told[:200])


def _block(records: Sequence[Record]) -> RowBlock:
    numbers: dict[str, dict[Any, int]] = {"series": {}, "layout": {}, "phase": {}}
    series, layouts, phases = numbers.values()
    summaries = [_summary(record) for record in records]
    histograms = [summary.histogram for summary in summaries]
    wheres = [record.coordinates for record in records]
    read: dict[str, Iterable[Any]] = {
        "series": [series.setdefault((r.name, r.kind, r.mode), len(series)) for r in records],
        "layout": [layouts.setdefault((r.dtype, r.shape), len(layouts)) for r in records],
        "phase": [phases.setdefault(where.phase, len(phases)) for where in wheres],
        **{name: [getattr(at, name) for at in wheres] for name in ("step", "pass_index", "call")},
        **{name: [getattr(r, name) for r in records] for name in _OWN},
        **{name: [getattr(one, name) for one in summaries] for name in _SUMS},
        **{name: [getattr(one, name) for one in histograms] for name in _COUNTS},
        "bins": [len(one.bins) for one in histograms],
    }
    sizes = [layout_bytes(*layout) for layout in layouts]
    tables = Tables(list(series), list(layouts), sizes, list(phases))
    bins = [one.bins for one in histograms]
    payloads, source, starts = payloads_of([_values(record) for record in records])
    return RowBlock(
        tables,
        {name: np.array(read[name], dtype) for name, dtype in COLUMNS.items()},
        np.frombuffer(b"".join([one.digest for one in summaries]), ">u8").reshape(-1, 2),
        np.array([record.raw is not None for record in records], bool),
        payloads,
        source,
        starts,
        np.array([e for one in bins for e in one], "<i2"),
        np.array([n for one in bins for n in one.values()], _U8),
    )


_OWN: Final = ("order", "time_ns", "count", "flags", "scale")
_SUMS: Final = ("min", "max", "sum", "l2")
_COUNTS: Final = ("zero", "nan", "inf", "subnormal")


def _summary(record: Record) -> Any:
    summary = record.summary
    if summary is None:
        raise StoreError("the record has no summary")
    if len(summary.digest) != DIGEST_BYTES:
        raise StoreError(f"the digest has {len(summary.digest)} bytes, not {DIGEST_BYTES}")
    return summary


def _values(record: Record) -> Buffer | None:
    raw = record.raw
    if raw is None:
        return None
    if raw.dtype != dtypes.dtype(record.dtype).storage or raw.shape != record.shape:
        raise StoreError(
            f"the record claims {record.dtype} {record.shape}, but carries {raw.dtype} {raw.shape}"
        )
    return np.ascontiguousarray(raw).reshape(-1).view(np.uint8).data


def payloads_of(values: Sequence[Buffer | None]) -> tuple[list[Buffer], Array, Array]:
    """The `payloads`, `source` and `starts` of a RowBlock with these values.

    Small values are copied together into the first payload; each larger value is a payload itself.
    """
    small: list[Buffer] = []
    payloads: list[Buffer] = [b""]
    source, starts, end = [0] * len(values), [0] * len(values), 0
    for at, value in enumerate(values):
        if value is None:
            continue
        size = len(value)
        if size > _JOINED_BYTES:
            source[at] = len(payloads)
            payloads.append(value)
            continue
        small.append(value)
        starts[at] = end
        end += size
    payloads[0] = b"".join(small)
    return payloads, np.array(source, np.int64), np.array(starts, np.int64)


def records_of(block: RowBlock, rank: int = 0) -> list[Record]:
    """The records of a block as objects; their values share the block's memory."""
    ends = np.cumsum(block.columns["bins"]).tolist()
    return [_record(block, row, end, rank) for row, end in enumerate(ends)]


def _record(block: RowBlock, row: int, end: int, rank: int) -> Record:
    cell = {name: column[row].item() for name, column in block.columns.items()}
    bins = slice(end - cell["bins"], end)
    counts = {name: cell[name] for name in _COUNTS}
    histogram = Log2Histogram.from_pairs(block.exponents[bins], block.elements[bins], **counts)
    dtype, shape = block.tables.layouts[cell["layout"]]
    raw = None
    if block.kept[row]:
        (data,) = block.buffers(np.array([row]))
        storage = dtypes.dtype(dtype).storage
        raw = np.frombuffer(data, storage) if len(data) else np.empty(0, storage)
        raw = raw.reshape(shape)
    name, kind, mode = block.tables.series[cell["series"]]
    phase = block.tables.phases[cell["phase"]]
    digest = block.digest[row].astype(">u8").tobytes()
    return Record(
        name,
        kind,
        mode,
        Coordinates(cell["step"], cell["pass_index"], cell["call"], phase),
        cell["order"],
        cell["time_ns"],
        dtype,
        tuple(shape),
        raw,
        Summary(digest, cell["min"], cell["max"], cell["sum"], cell["l2"], histogram),
        cell["count"],
        rank,
        Flag(cell["flags"]),
        cell["scale"],
    )
