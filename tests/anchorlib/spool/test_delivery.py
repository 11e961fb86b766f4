"""Spools that are left: delivered by another process, whoever owned them."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import pytest

from anchorlib.block import block_of
from anchorlib.errors import RunBusyError
from anchorlib.record import Edges, Gap
from anchorlib.spool.dead_spool import SpoolContent
from anchorlib.spool.destination import Destination
from anchorlib.spool.segments import Segments
from anchorlib.spool.spools import OwnedSpool
from anchorlib.spool.writer import SegmentSize, SpoolWriter
from anchorlib.store import LocalLocation, RankReader
from anchorlib.wire import EncodedFrame
from tests.anchorlib.spool.spooling import (
    LazyDisk,
    Taker,
    Written,
    segments,
)
from tests.delivery.lines import (
    check_store,
    numbered,
    push,
    spools,
    told,
)
from tests.server.pushing import stored

pytestmark = pytest.mark.slow


def test_a_spool_is_delivered_by_another_process_and_removed(tmp_path):
    left = Written(tmp_path / "spools")
    left.put(range(100))
    left.die()
    done = push(left.folder, tmp_path / "store")
    assert (done.records, done.already, done.lost, done.set_aside) == (100, 0, 0, 0)
    assert check_store(tmp_path / "store", 100) == 100
    assert not left.folder.exists()


def test_segments_are_self_contained(tmp_path):
    left = Written(tmp_path / "spools", segment_bytes=3000)
    left.put(range(200))
    left.die()
    files = segments(left.folder)
    assert len(files) > 10
    for file in files[:-3]:
        file.unlink()
    first = int(files[-3].name.split(".")[1])
    push(left.folder, tmp_path / "store")
    assert stored(tmp_path / "store") == [told(numbered(n)) for n in range(first, 200)]


def test_gaps_and_lineage_stand_in_the_spool(tmp_path):
    left = Written(tmp_path / "spools", segment_bytes=3000)
    gap = Gap("fc1", "grad", "all", "queue full", 3, 0, 2)
    edges = Edges("fc1", "train", 0, 0, (4,))
    for part in range(5):
        if part == 1:
            left.spool.writer.gap([gap])
            left.outbox.edges([edges])
        left.put(range(part * 20, part * 20 + 20))
    left.die()
    push(left.folder, tmp_path / "store")
    catalogue = RankReader(LocalLocation(tmp_path / "store/run1.zarr"), 0).catalogue
    assert list(catalogue.gaps.values()) == [gap]
    assert [one.name for one in catalogue.edges.values()] == ["fc1"]
    assert catalogue.state == "open"  # nobody closed that session


def test_a_spool_with_an_owner_is_left_alone(tmp_path):
    live = Written(tmp_path / "spools")
    live.put(range(3))
    with pytest.raises(RunBusyError, match=rf"belongs to process {os.getpid()} on .* alive"):
        push(live.folder, tmp_path / "store")
    live.die()
    push(live.folder, tmp_path / "store")


def test_empty_spools_of_the_dead_are_swept_away(tmp_path):
    dead = Written(tmp_path)
    dead.die()
    live = Written(tmp_path)
    assert spools(tmp_path) == [live.folder]
    live.die()


def test_a_spool_without_its_label_is_delivered_all_the_same(tmp_path):
    left = Written(tmp_path / "spools")
    left.put(range(30))
    left.die()
    (left.folder / "spool.json").write_text("{")
    push(left.folder, tmp_path / "store")
    assert check_store(tmp_path / "store", 30) == 30


def test_a_segment_is_longer_where_much_stands_at_its_beginning(tmp_path):
    size = SegmentSize(3000, 20_000)
    for lineage, least, most in (((), 3000, 6000), ((b":" + bytes(600),), 18_000, 24_000)):
        segments = Segments(tmp_path)
        writer = SpoolWriter(
            segments, b"\x0ahello", definitions=(), lineage=lineage, size=size, sync=False
        )
        for number in range(200):
            writer.frame(EncodedFrame((b"\x1a" + bytes(500),), number + 1, 0), number, more=False)
            writer.publish()
        writer.close()
        assert all(least <= one.size <= most for one in segments.listed[:-1])
        segments.clear()


def test_what_is_delivered_is_removed_when_there_is_time(tmp_path):
    left = Written(tmp_path / "spools", segment_bytes=3000)
    left.put(range(200))
    there = len(segments(left.folder))
    taker = Taker(left.outbox)
    while taker.take():
        pass
    taker.answer(150)  # which the training thread may have to wait for
    assert len(segments(left.folder)) == there
    left.outbox.tidy()
    assert 1 <= len(segments(left.folder)) < there / 2
    left.die()


def test_a_backlog_of_more_segments_than_files_may_be_open_opens(tmp_path):
    # A process may have 1,024 files open, unless it asks for more.
    left = Written(tmp_path / "spools", LazyDisk(), segment_bytes=1)
    for number in range(2_500):
        frame = next(iter(left.encoder.encode(block_of([_tiny(number)]))))
        left.frames.store(frame, more=False)
        left.outbox.append(frame)
    left.die()
    assert len(segments(left.folder)) == 2_500
    work = OwnedSpool.take(left.folder)
    content = SpoolContent(work, Destination("somewhere"), threading.Condition())
    content.frames.rewind()
    content.frames.commit(2_490)
    content.frames.tidy()
    first = content.frames.first()
    assert (content.notes.end, first.end if first else 0) == (2_500, 2_491)
    assert len(segments(left.folder)) == 11  # one more than those that are needed
    content.frames.close()
    work.release()


def _tiny(number: int):
    one = numbered(number % 50)
    return replace(one, coordinates=replace(one.coordinates, step=number))
