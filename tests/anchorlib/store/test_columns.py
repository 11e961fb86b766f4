"""Small records written as columns are stored like those written one by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorlib.errors import StoreError
from anchorlib.record import Record
from anchorlib.store import LocalLocation, RankAudit, RankReader, Writer
from anchorlib.store.variants import FlatVariant
from anchorlib.wire import Decoder, Encoder, Framed, RowBlock, parse_request
from anchorlib.wire.blocks import read_block
from tests.anchorlib.store.records import assert_holds, filled, record

NAMES = st.sampled_from(["a", "b", "C"])
SHAPES = st.sampled_from([(), (3,), (2, 2), (0, 4), (5000,)])


@st.composite
def batches(draw: st.DrawFn) -> list[list[Record]]:
    """Records of few series, whose values are mostly kept, in several batches."""
    order = 0
    found = []
    for _ in range(draw(st.integers(1, 4))):
        batch = []
        for _ in range(draw(st.integers(1, 8))):
            dtype = draw(st.sampled_from(["float32", "bfloat16", "int64"]))
            one = record(
                draw(NAMES),
                draw(st.integers(0, 5)),
                filled(dtype, draw(SHAPES), order),
                dtype=dtype,
                order=order,
                values=draw(st.integers(0, 3)) > 0,
                pass_index=draw(st.integers(0, 1)),
                phase=draw(st.sampled_from(["train", "eval"])),
            )
            batch.append(one)
            order += 1
        found.append(batch)
    return found


def blocks(every: list[list[Record]]) -> list[RowBlock]:
    """The same as a collector sees them."""
    encoder, decoder, told = Encoder(), Decoder(rank=0), 0
    found = []
    for batch in every:
        for frame in encoder.encode(batch):
            for message in encoder.definitions[told : frame.definitions]:
                defined = parse_request(message)
                assert not isinstance(defined, Framed)
                decoder.define(defined.define)
            told = frame.definitions
            request = parse_request(frame.message)
            assert isinstance(request, Framed)
            found.append(read_block(request.head.columns, request.payload, decoder._tables))
    return found


def files(run: Path) -> dict[str, bytes]:
    """Every file but the catalogue and what has a time in it."""
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in run.rglob("*")
        if path.is_file() and "catalog" not in path.parts and path.parent.name != "rank0"
    }


@settings(max_examples=25)
@given(batches())
def test_both_ways_put_down_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, every: list[list[Record]]
) -> None:
    place = tmp_path_factory.mktemp("both")
    with Writer.open(place, "rows", 0) as rows, Writer.open(place, "block", 0) as block:
        for batch, one in zip(every, blocks(every), strict=True):
            rows.write(batch)
            if not block.write_block(one):  # only a tensor of many shapes needs the other way
                assert any(isinstance(v, FlatVariant) for v in rows._shelf.variants)
                block.write(batch)
        assert rows.committed == block.committed
    assert files(place / "rows.zarr" / "rank0") == files(place / "block.zarr" / "rank0")
    found = RankReader(LocalLocation(place / "block.zarr"), 0)
    assert_holds(found, [one for batch in every for one in batch])
    assert RankAudit(LocalLocation(place / "block.zarr"), found).rows(0, found.committed).bad == []


def test_what_needs_a_look_at_each_record_is_not_written_as_columns(tmp_path: Path) -> None:
    shapes = [record("x", step, filled("float32", (step + 1,)), order=step) for step in range(12)]
    (block,) = blocks([shapes])
    with Writer.open(tmp_path, "shapes", 0) as writer:
        assert not writer.write_block(block)
        assert writer.committed == 0
        writer.write(shapes)
    assert_holds(RankReader(LocalLocation(tmp_path / "shapes.zarr"), 0), shapes)
    with Writer.open(tmp_path, "small", 0, max_bytes=100) as writer:
        assert not writer.write_block(block)
        assert writer.committed == 0


def test_an_order_beyond_the_table_is_refused_as_before(tmp_path: Path) -> None:
    last = replace(record("x", 0, np.ones(2, "<f4")), order=(1 << 63) - 1)
    with Writer.open(tmp_path, "run1", 0) as writer:
        writer.write([record("x", 0, np.ones(2, "<f4"), order=4)])
    with Writer.open(tmp_path, "run1", 0, resume=True) as writer:
        (block,) = blocks([[last]])
        assert not writer.write_block(block)
        with pytest.raises(StoreError, match="out of range"):
            writer.write([last])
