"""Records as training never makes them, but might."""

from __future__ import annotations

import struct

from hypothesis import strategies as st

from anchorlib import dtypes
from anchorlib.record import Coordinates, Flag, Record
from anchorlib.summary import ArraySummary, Log2Histogram, digest
from tests.strategies import shapes, storage_arrays

INT64 = st.integers(-(2**63), 2**63 - 1)
NATURAL = st.integers(0, 2**63 - 1)
COUNT = st.integers(0, 2**40)

NAMES = st.one_of(
    st.sampled_from(
        ["fc1", "fc1.weight", "../../etc/passwd", "a@grad", "\x00", "\x1b[31m", "é", "é"]
    ),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=40),
)
KINDS = st.sampled_from(["value", "grad", "pass_grad", "updated", "delta", "opt.exp_avg", "opt.@"])
MODES = st.sampled_from(["all", "summary", "sum", "sum:window=run", "every_n:10:unit=step"])
PHASES = st.sampled_from(["train", "eval", "warm up \u202e"])

# Every bit pattern, payloads of nan and the sign of zero among them.
DOUBLES = st.integers(0, 2**64 - 1).map(
    lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0]
)


@st.composite
def histograms(draw: st.DrawFn) -> Log2Histogram:
    bins = draw(st.dictionaries(st.integers(-1074, 1023), st.integers(1, 2**40), max_size=6))
    counts = [draw(COUNT) for _ in range(4)]
    return Log2Histogram(dict(sorted(bins.items())), *counts)


@st.composite
def records(draw: st.DrawFn, rank: int = 0) -> Record:
    dtype = draw(st.sampled_from(sorted(dtypes.DTYPES)))
    shape = draw(shapes())
    raw = draw(st.none() | storage_arrays(dtype, shape))
    where = Coordinates(draw(INT64), draw(NATURAL), draw(NATURAL), draw(PHASES))
    return Record(
        name=draw(NAMES),
        kind=draw(KINDS),
        mode=draw(MODES),
        coordinates=where,
        order=draw(INT64),
        time_ns=draw(INT64),
        dtype=dtype,
        shape=shape,
        raw=raw,
        summary=ArraySummary(
            digest(raw) if raw is not None else draw(st.binary(min_size=16, max_size=16)),
            draw(DOUBLES),
            draw(DOUBLES),
            draw(DOUBLES),
            draw(DOUBLES),
            draw(histograms()),
        ),
        count=draw(st.just(1) | NATURAL),
        rank=rank,
        flags=draw(st.integers(0, 7).map(Flag)),
        scale=draw(st.just(1.0) | DOUBLES),
    )


def bits(record: Record) -> tuple[object, ...]:
    """All of a record, as something that is equal when every bit is."""
    summary = record.summary
    assert summary is not None
    raw = record.raw
    return (
        (record.name, record.kind, record.mode, record.coordinates, record.order, record.time_ns),
        (record.dtype, record.shape, record.count, record.rank, record.flags),
        None if raw is None else (raw.dtype.str, raw.shape, raw.tobytes()),
        struct.pack("<d", record.scale),
        (summary.digest, struct.pack("<4d", summary.min, summary.max, summary.sum, summary.l2)),
        (list(summary.histogram.bins.items()), summary.histogram),
    )
