"""Frames and stores say the same of the same records, and different things of different ones."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorlib.block import block_of
from anchorlib.store import Writer
from anchorlib.wire import Encoder, MemoryFrames, StoredRange, unconfirmed_ranges
from tests.anchorlib.wire.strategies import records
from tests.seeds import examples
from tests.writing import put


def questions(found, frame_bytes, links):
    encoder = Encoder(frame_bytes=frame_bytes)
    frames = MemoryFrames(0, encoder.definitions)
    for frame in encoder.encode(block_of(found)):
        frames.append(frame)
    return list(unconfirmed_ranges(frames.held(0), links))


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(st.lists(records(), min_size=1, max_size=8), st.sampled_from([64, 300, 1 << 20]), st.data())
def test_a_store_that_has_the_records_confirms_every_frame_of_them(found, frame_bytes, data):
    """Of any dtype and shape, in fragments or not, behind another attempt or not."""
    # `order` counts on from attempt to attempt, and a store keeps 63 bits of it.
    found = [replace(one, order=at, count=one.count % 2**63) for at, one in enumerate(found)]
    there = data.draw(st.integers(0, len(found)))
    with tempfile.TemporaryDirectory() as store:
        with Writer.open(Path(store), "run1", 0) as first:
            put(first, found[: data.draw(st.integers(0, len(found)))])
        with Writer.open(Path(store), "run1", 0, resume=True) as writer:
            put(writer, found[:there])
            asked = questions(found, frame_bytes, [StoredRange(1, 0, there)])
            assert [one.end for one in asked][-1:] == [there][: bool(there)]
            assert [one.first for one in asked] == [0, *(one.end for one in asked)][: len(asked)]
            for one in asked:
                assert writer.fingerprint(1, one.first, one.end) == one.fingerprint
