"""Frames as columns: what was sent, and nothing that was damaged on the way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorlib.block import COLUMNS, block_of, joined_blocks
from anchorlib.errors import AnchorError
from anchorlib.wire import Decoder, Encoder, FrameError, GarbledError, ParsedFrame, parse_request
from anchorlib.wire.messages.checksum import SEAL_BYTES, sealed_bytes
from tests.anchorlib.wire.strategies import records
from tests.anchorlib.wire.test_codec import bits, messages, record
from tests.writing import records_of


def blocks(sent, decoder):
    for message in sent:
        request = parse_request(message)
        if isinstance(request, ParsedFrame):
            yield decoder.block(request)
        else:
            decoder.define(request.define)


@pytest.mark.slow
@given(st.lists(st.lists(records(), min_size=1, max_size=5), min_size=1, max_size=3))
def test_frames_joined_as_one_block_hold_every_record(batches):
    found = joined_blocks(list(blocks(messages(Encoder(), batches), Decoder())))
    every = [one for batch in batches for one in batch]
    assert [bits(one) for one in records_of(found)] == [bits(one) for one in every]


@pytest.mark.slow
@given(st.lists(records(), max_size=8), st.data())
def test_a_block_of_records_says_what_they_say_and_so_do_parts_of_it(every, data):
    block = block_of(every)
    assert [bits(one) for one in records_of(block)] == [bits(one) for one in every]
    chosen = [data.draw(st.booleans()) for _ in every]
    part = block.only(np.array(chosen, bool))
    wanted = [one for one, taken in zip(every, chosen, strict=True) if taken]
    assert [bits(one) for one in records_of(part)] == [bits(one) for one in wanted]
    assert set(block.columns) == set(COLUMNS)


@pytest.mark.slow
@given(st.data())
def test_a_frame_whose_bits_changed_is_refused_or_is_still_records(data):
    sent = messages(Encoder(), [data.draw(st.lists(records(), min_size=1, max_size=4))])
    message = bytearray(sent[-1][:-SEAL_BYTES])
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    decoder = Decoder(record_bytes=1 << 16)
    try:
        found = list(blocks([*sent[:-1], sealed_bytes(bytes(message))], decoder))
    except (FrameError, GarbledError, AnchorError):
        return
    for block in found:
        assert len(records_of(block)) == (0 if block is None else len(block))


def test_a_value_that_does_not_fit_its_digest_is_damaged():
    every = [record(np.arange(50, dtype=np.float32), step) for step in range(9)]
    sent = messages(Encoder(), [every])
    body = bytearray(sent[-1][:-SEAL_BYTES])
    body[-1] ^= 1
    with pytest.raises(GarbledError, match="'fc1'@grad at step 8"):
        list(blocks([*sent[:-1], sealed_bytes(bytes(body))], Decoder()))
