"""Makes a `RowBlock` of `Record` objects, and `Record` objects of a `RowBlock`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from anchorlib import dtypes
from anchorlib.block.columns import COLUMNS, Array, Buffer, Misfit, Tables, layout_bytes
from anchorlib.block.row_block import RowBlock
from anchorlib.errors import AnchorError, StoreError
from anchorlib.record import Coordinates, Flag, Record
from anchorlib.summary import ArraySummary, Log2Histogram

__all__ = ["block_of", "payloads_of", "records_of"]

DIGEST_BYTES: Final = 16
MAX_STEP: Final = 1 << 63
_JOINED_BYTES: Final = 1 << 14  # of one record: larger ones are not copied


def block_of(records: Sequence[Record]) -> RowBlock:
    """Return one block of `records`; only small values are copied.

    A record that does not fit (without a summary, with a number too large for its column, or with
    values of another shape than it states) is left out, and listed in the block's `misfits`. The
    other records are kept.
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
    reason = str(error) if isinstance(error, AnchorError) else f"a figure out of range ({error})"
    return Misfit(record.name, record.kind, record.mode, step, reason[:200])


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
        np.array([n for one in bins for n in one.values()], np.uint64),
    )


_OWN: Final = ("order", "time_ns", "count", "flags", "scale")
_SUMS: Final = ("min", "max", "sum", "l2")
_COUNTS: Final = ("zero", "nan", "inf", "subnormal")


def _summary(record: Record) -> Any:
    summary = record.summary
    if summary is None:
        raise StoreError("it came to the store without its summary")
    if len(summary.digest) != DIGEST_BYTES:
        raise StoreError(f"its digest has {len(summary.digest)} bytes, not {DIGEST_BYTES}")
    return summary


def _values(record: Record) -> Buffer | None:
    raw = record.raw
    if raw is None:
        return None
    if raw.dtype != dtypes.dtype(record.dtype).storage or raw.shape != record.shape:
        raise StoreError(
            f"it claims {record.dtype} {record.shape}, but carries {raw.dtype} {raw.shape}"
        )
    return np.ascontiguousarray(raw).reshape(-1).view(np.uint8).data


def payloads_of(values: Sequence[Buffer | None]) -> tuple[list[Buffer], Array, Array]:
    """Return the fields `payloads`, `source` and `starts` of a `RowBlock` with these values.

    values: the bytes of each record; None for a record without values.
    Values of at most 16 KiB are copied together into the first buffer; each larger value is a
    buffer of its own, and not copied.
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
    """Return the records of a block as `Record` objects, whose values share the block's memory.

    rank: the rank that the block's records belong to; a block itself does not say it.
    """
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
        ArraySummary(digest, cell["min"], cell["max"], cell["sum"], cell["l2"], histogram),
        cell["count"],
        rank,
        Flag(cell["flags"]),
        cell["scale"],
    )
