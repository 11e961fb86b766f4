"""Frames as columns hold what frames as records hold, and both refuse the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorlib.wire import DamagedError, Decoder, Encoder, Framed, joined_blocks, parse_request
from anchorlib.wire.blocks import read_block
from anchorlib.wire.sealing import SEAL_BYTES, sealed_bytes
from tests.anchorlib.wire.strategies import records
from tests.anchorlib.wire.test_codec import messages, record

NUMBERS = ("step", "pass_index", "call")


def frames(sent, decoder):
    for message in sent:
        request = parse_request(message)
        if isinstance(request, Framed):
            yield request
        else:
            decoder.define(request.define)


def told(block):
    """What a block says of each row, as records say it."""
    columns, tables = block.columns, block.tables
    ends = np.cumsum(columns["bins"]).astype(int)
    return [
        (
            tables.series[columns["series"][row]],
            tables.layouts[columns["layout"][row]],
            tables.phases[columns["phase"][row]],
            tuple(int(columns[name][row]) for name in NUMBERS),
            tuple(int(columns[name][row]) for name in ("order", "time_ns", "count", "flags")),
            columns["scale"][row].tobytes(),
            bytes(block.payload[block.starts[row] :][: block.sizes[row]]),
            bool(block.kept[row]),
            block.digest[row].astype(">u8").tobytes(),
            tuple(columns[name][row].tobytes() for name in ("min", "max", "sum", "l2")),
            tuple(int(columns[name][row]) for name in ("zero", "nan", "inf", "subnormal")),
            dict(
                zip(
                    block.exponents[end - int(columns["bins"][row]) : end].tolist(),
                    block.elements[end - int(columns["bins"][row]) : end].tolist(),
                    strict=True,
                )
            ),
        )
        for row, end in enumerate(ends)
    ]


def expected(one):
    summary, at = one.summary, one.coordinates
    histogram = summary.histogram
    return (
        (one.name, one.kind, one.mode),
        (one.dtype, one.shape),
        at.phase,
        (at.step, at.pass_index, at.call),
        (one.order, one.time_ns, one.count, int(one.flags)),
        np.float64(one.scale).tobytes(),
        b"" if one.raw is None else one.raw.tobytes(),
        one.raw is not None,
        summary.digest,
        tuple(np.float64(x).tobytes() for x in (summary.min, summary.max, summary.sum, summary.l2)),
        (histogram.zero, histogram.nan, histogram.inf, histogram.subnormal),
        dict(histogram.bins),
    )


@given(st.lists(st.lists(records(), min_size=1, max_size=5), min_size=1, max_size=3))
def test_columns_hold_what_records_hold(batches):
    decoder = Decoder(rank=0)
    blocks = [
        read_block(frame.head.columns, frame.payload, decoder._tables)
        for frame in frames(messages(Encoder(), batches), decoder)
    ]
    every = [one for batch in batches for one in batch]
    assert told(joined_blocks(blocks)) == [expected(one) for one in every]


@given(st.data())
def test_what_is_refused_as_records_is_refused_as_columns(data):
    sent = messages(Encoder(), [data.draw(st.lists(records(), min_size=1, max_size=4))])
    message = bytearray(sent[-1][:-SEAL_BYTES])
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    decoder = Decoder(rank=0, record_bytes=1 << 16)
    try:
        (frame,) = frames([*sent[:-1], sealed_bytes(bytes(message))], decoder)
    except ValueError:
        return
    if frame.head.HasField("fragment"):
        return
    try:
        found = decoder.decode(frame)
    except ValueError as refused:
        with pytest.raises(type(refused)):
            read_block(frame.head.columns, frame.payload, decoder._tables)
    else:
        block = read_block(frame.head.columns, frame.payload, decoder._tables)
        assert told(block) == [expected(one) for one in found]


def test_a_value_that_does_not_fit_its_digest_is_damaged():
    every = [record(np.arange(50, dtype=np.float32), step) for step in range(9)]
    sent = messages(Encoder(), [every])
    body = bytearray(sent[-1][:-SEAL_BYTES])
    body[-1] ^= 1
    decoder = Decoder(rank=0)
    (frame,) = frames([*sent[:-1], sealed_bytes(bytes(body))], decoder)
    with pytest.raises(DamagedError, match="'fc1'@grad at step 8"):
        decoder.block(frame)


@pytest.mark.parametrize(("count", "elements"), [(7, 4), (20, 1 << 14)])
def test_few_or_large_records_are_no_columns(count, elements):
    decoder = Decoder(rank=0)
    every = [record(np.arange(elements, dtype=np.float32), step) for step in range(count)]
    for frame in frames(messages(Encoder(), [every]), decoder):
        assert decoder.block(frame) is None
