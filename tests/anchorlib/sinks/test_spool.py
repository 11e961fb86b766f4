"""A spool on disks that fill up, fail, lose and scramble what was written."""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchor_server import serve
from anchorlib.errors import OptionError, RunBusyError
from anchorlib.record import Edges, Gap
from anchorlib.sinks.remote import RemoteSink
from anchorlib.sinks.spool import OwnedSpool, make_spool
from anchorlib.sinks.spool_delivery import _Load
from anchorlib.sinks.spool_disk import Disk
from anchorlib.sinks.spool_format import OPEN, Damaged, Stored, entries, header
from anchorlib.sinks.spool_place import limit_of, parse_bytes, spool_place
from anchorlib.store import LocalLocation, RankReader
from anchorlib.wire import (
    Ack,
    Decoder,
    Encoder,
    Framed,
    Hello,
    Outbox,
    PushReply,
    Resume,
    parse_request,
)
from tests.delivery.lines import (
    check_store,
    free_port,
    numbered,
    push,
    sink_to,
    spools,
    told,
)
from tests.server.pushing import stored


class FailingDisk(Disk):
    """Takes `room` bytes, then fails with `code`; `short` writes a part before it fails."""

    def __init__(self, room: int, code: int = errno.ENOSPC, *, short: bool = True) -> None:
        self.room = room
        self.code = code
        self.short = short
        self.cannot_truncate = False
        self.synced: list[int] = []
        self.sync_fails = False

    def create(self, path: Path) -> int:
        if self.room <= 0:
            raise OSError(self.code, os.strerror(self.code))
        return super().create(path)

    def write(self, file: int, parts: Sequence[bytes]) -> int:
        data = b"".join(parts)
        if len(data) > self.room:
            part = data[: max(0, self.room)] if self.short else b""
            self.room = 0
            if part:
                return super().write(file, [part])
            raise OSError(self.code, os.strerror(self.code))
        self.room -= len(data)
        return super().write(file, [data])

    def truncate(self, file: int, size: int) -> None:
        if self.cannot_truncate:
            raise OSError(errno.EIO, "no truncate")
        super().truncate(file, size)

    def sync(self, file: int) -> None:
        if self.sync_fails:
            raise OSError(errno.EIO, "no sync")
        super().sync(file)
        self.synced.append(os.fstat(file).st_size)


class LazyDisk(Disk):
    """Brings nothing to the disk: for files that no test will miss."""

    def sync(self, file: int) -> None:
        pass


class Written:
    """A spool written by hand, without a sender."""

    def __init__(
        self, place: Path, disk: Disk | None = None, *, frame_bytes: int = 2000, **options
    ) -> None:
        hello = Hello(protocol=1, run="run1", rank=0, writer_id=os.urandom(16), header="{}")
        self.spool = make_spool(place, hello, "grpc://127.0.0.1:1", disk=disk, **options)
        self.encoder = Encoder(frame_bytes=frame_bytes)
        self.lineage: list[bytes] = []
        self.frames = self.spool.connect(self.encoder, self.lineage, threading.Condition())
        self.outbox = Outbox(self.encoder, frames=self.frames, lineage=self.lineage)

    @property
    def folder(self) -> Path:
        return self.spool.folder

    def put(self, numbers: Sequence[int]) -> None:
        made = [*self.encoder.encode([numbered(n) for n in numbers]), None]
        for frame, after in pairwise(made):
            assert frame is not None
            self.frames.store(frame, more=after is not None and after.end == frame.end)
            self.outbox.append(frame)
        self.spool.settle()

    def die(self) -> None:
        """As kill -9 does: nothing more is written."""
        self.spool._close()
        self.spool._work.release()


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.seg"))


def warnings_in(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


# -- places and sizes


@pytest.mark.parametrize(
    ("text", "size"),
    [("1048576", 1 << 20), ("10GiB", 10 << 30), ("1.5 MiB", 3 << 19), ("2kb", 2000), ("3M", 3e6)],
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert parse_bytes(text, "X") == size


@pytest.mark.parametrize("text", ["", "ten", "-1", "10 GiBs", "1e9", "0x10", "GiB"])
def test_what_is_no_size_is_refused_with_the_variables_name(text):
    with pytest.raises(OptionError, match=r"ANCHOR_SPOOL_LIMIT='.*' is no size; write 10GiB"):
        parse_bytes(text, "ANCHOR_SPOOL_LIMIT")


def test_the_default_limit_is_the_smaller_of_10_gib_and_a_fifth_of_the_free_disk():
    assert limit_of(100 << 30, {}) == 10 << 30
    assert limit_of(10 << 30, {}) == 2 << 30
    assert limit_of(10 << 30, {"ANCHOR_SPOOL_LIMIT": "1MiB"}) == 1 << 20


def test_the_spools_place_is_told_or_the_jobs_or_the_users(tmp_path):
    assert spool_place({"ANCHOR_SPOOL": "/a", "SLURM_TMPDIR": "/b"}) == Path("/a")
    assert spool_place({"SLURM_TMPDIR": "/b", "HOME": "/c"}) == Path("/b/anchorlib/spool")
    assert spool_place({"HOME": str(tmp_path)}) == tmp_path / ".cache/anchorlib/spool"
    assert "anchorlib-" in str(spool_place({"HOME": "/nowhere"}))


# -- the format


@given(
    st.lists(
        st.tuples(st.integers(0, 1 << 40), st.booleans(), st.binary(min_size=2, max_size=60)),
        max_size=8,
    )
)
def test_what_was_written_is_read(parts):
    numbers = [number | (OPEN if more else 0) for number, more, _ in parts]
    data = b"".join(header(n, m) + m for n, (_, _, m) in zip(numbers, parts, strict=True))
    found = list(entries(data))
    assert all(isinstance(one, Stored) for one in found)
    assert [(one.seq, one.message) for one in found] == [  # type: ignore[union-attr]
        (n, m) for n, (_, _, m) in zip(numbers, parts, strict=True)
    ]


@given(st.integers(2, 6), st.data())
def test_one_damaged_byte_costs_one_entry(count, data):
    messages = [b"\x1a" + bytes([n]) * 40 for n in range(count)]
    parts = [header(n + 1, message) + message for n, message in enumerate(messages)]
    whole = bytearray(b"".join(parts))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    found = list(entries(bytes(whole)))
    kept = [one.message for one in found if isinstance(one, Stored)]
    hit = at // len(parts[0])
    assert kept == [m for n, m in enumerate(messages) if n != hit]
    assert sum(isinstance(one, Damaged) for one in found) == 1


# -- a spool that is left


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


# -- damage


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """Twelve records in frames of three, all in one segment."""
    left = Written(tmp_path_factory.mktemp("template"), frame_bytes=1 << 20)
    for start in range(0, 12, 3):
        left.put(range(start, start + 3))
    left.die()
    return left.folder


def _last_two(file: Path) -> list[Stored]:
    """The entries of the last two frames; what is defined for the last one stands between."""
    found = [one for one in entries(file.read_bytes()) if isinstance(one, Stored)]
    return [one for one in found if one.message[0] == 0x1A][-2:]


def _good(folder: Path) -> tuple[list[int], int]:
    """The records that a damaged spool still gives, and how many are known to be lost."""
    work = OwnedSpool.take(folder)
    changed = threading.Condition()
    load = _Load(work, "somewhere", changed)
    frames, decoder, defined, found = load.frames, Decoder(0), 0, []
    frames.rewind()
    frames.commit(0)
    while (frame := frames.first()) is not None:
        for message in frames.definitions[defined : frame.definitions]:
            decoder.define(parse_request(message).define)
        defined = frame.definitions
        framed = parse_request(frame.message)
        assert isinstance(framed, Framed)
        assert framed.head.first == len(found)  # no hole is left in the numbers
        found += [record.step for record in decoder.decode(framed)]
        frames.advance()
    load.damage()
    frames.close()
    work.release()
    return found, frames.lost


def test_a_segment_cut_at_any_byte_of_its_last_two_entries_gives_all_that_is_whole(
    template, tmp_path
):
    (source,) = segments(template)
    data = source.read_bytes()
    before, last = _last_two(source)
    folder = tmp_path / "spool"
    shutil.copytree(template, folder)
    for size in range(before.start, len(data)):
        (folder / source.name).write_bytes(data[:size])
        whole = 6 if size < before.end else 9
        assert _good(folder) == (list(range(whole)), 0), size
    assert last.end == len(data)


def test_any_byte_flipped_in_the_last_two_entries_costs_that_entry_alone(template, tmp_path):
    (source,) = segments(template)
    data = source.read_bytes()
    before, last = _last_two(source)
    folder = tmp_path / "spool"
    shutil.copytree(template, folder)
    for at in range(before.start, len(data)):
        scribbled = bytearray(data)
        scribbled[at] ^= 0x41
        (folder / source.name).write_bytes(scribbled)
        (folder / "lost").unlink(missing_ok=True)
        hit = [6, 7, 8] if at < before.end else [9, 10, 11]
        known = 3 if at < before.end else 0
        assert _good(folder) == ([n for n in range(12) if n not in hit], known), at
    assert last.end == len(data)


def test_damage_is_told_stored_and_set_aside(tmp_path):
    left = Written(tmp_path / "spools", segment_bytes=3000)
    left.put(range(200))
    left.spool.writer.notes(closed=True)
    left.die()
    victim = segments(left.folder)[3]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 0xFF
    victim.write_bytes(data)
    done = push(left.folder, tmp_path / "store")
    assert done.set_aside == 1
    assert 0 < done.lost < 50
    found = stored(tmp_path / "store")
    assert len(found) == 200 - done.lost == done.records
    assert set(found) <= {told(numbered(n)) for n in range(200)}
    (gap,) = RankReader(LocalLocation(tmp_path / "store/run1.zarr"), 0).catalogue.gaps.values()
    assert (gap.count, gap.reason) == (done.lost, "damaged on the trainer's disk")
    assert [path.suffix for path in left.folder.glob("0*")] == [".bad"]


def test_a_definition_that_is_damaged_is_found_in_the_next_segment(tmp_path):
    left = Written(tmp_path / "spools", segment_bytes=3000)
    left.put(range(100))
    left.die()
    files = segments(left.folder)
    victim = files[2]
    data = bytearray(victim.read_bytes())
    defines = [
        one for one in entries(bytes(data)) if isinstance(one, Stored) and one.message[0] == 0x12
    ]
    for one in defines:
        data[one.start + 20] ^= 1
    victim.write_bytes(data)
    for file in files[:2]:
        file.unlink()
    first = int(victim.name.split(".")[1])
    assert push(left.folder, tmp_path / "store").lost == 0
    assert stored(tmp_path / "store") == [told(numbered(n)) for n in range(first, 100)]


@pytest.mark.parametrize("seed", range(20))
def test_a_spool_scribbled_over_at_random_gives_nothing_wrong(tmp_path, seed):
    chance = random.Random(seed)
    left = Written(tmp_path / "spools", segment_bytes=4000)
    left.put(range(150))
    left.die()
    for _ in range(chance.randrange(1, 6)):
        victim = chance.choice(segments(left.folder))
        data = bytearray(victim.read_bytes())
        at = chance.randrange(max(1, len(data)))
        data[at : at + 64] = chance.randbytes(min(64, len(data) - at))
        victim.write_bytes(data[: chance.choice([len(data), at + 10])])
    try:
        done = push(left.folder, tmp_path / "store")
    except Exception as fault:
        raise AssertionError(f"seed {seed}") from fault
    assert done.set_aside
    found = stored(tmp_path / "store")
    steps = [step for _, step, _ in found]
    assert steps == sorted(set(steps)), f"seed {seed}"
    assert found == [told(numbered(step)) for step in steps], f"seed {seed}"


def test_damage_while_the_session_lives_is_counted_and_stored_too(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    sink = sink_to(address, tmp_path / "spools")
    for start in range(0, 100, 10):
        sink.put([numbered(n) for n in range(start, start + 10)])
    (segment,) = segments(sink.spool)
    data = bytearray(segment.read_bytes())
    at = len(data) // 2
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ 1]))
    with serve(tmp_path / "store", address):
        assert sink.close(20) == 0
    assert 0 < sink.dropped <= 20
    found = stored(tmp_path / "store")
    assert len(found) == 100 - sink.dropped
    assert set(found) <= {told(numbered(n)) for n in range(100)}
    (gap,) = RankReader(LocalLocation(tmp_path / "store/run1.zarr"), 0).catalogue.gaps.values()
    assert gap.count == sink.dropped
    assert [path.suffix for path in sink.spool.glob("0*")] == [".bad"]


# -- disks that fail


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
@pytest.mark.parametrize("short", [True, False])
def test_a_disk_that_fails_costs_nothing_while_memory_lasts(tmp_path, caplog, code, short):
    disk = FailingDisk(6000, code, short=short)
    left = Written(tmp_path / "spools", disk)
    for number in range(100):
        left.put([number])
    assert left.frames.spilling
    assert left.outbox.waiting == 100
    (warning,) = warnings_in(caplog)
    assert "records wait in memory until it can" in warning
    assert left.frames.save() is False
    disk.room = 1 << 30  # space returns
    left.put([100])
    assert left.frames.save() is True
    left.die()
    push(left.folder, tmp_path / "store")
    assert check_store(tmp_path / "store", 101) == 101


def test_a_disk_that_cannot_even_cut_back_leaves_whole_records(tmp_path):
    disk = FailingDisk(6000)
    disk.cannot_truncate = True
    left = Written(tmp_path / "spools", disk)
    for number in range(50):
        left.put([number])
    disk.room = 1 << 30
    assert left.frames.save()
    left.die()
    assert len(segments(left.folder)) == 2
    done = push(left.folder, tmp_path / "store")
    assert (check_store(tmp_path / "store", 50), done.lost) == (50, 0)


@pytest.mark.parametrize("seed", range(10))
def test_frames_are_sent_once_in_order_while_the_disk_comes_and_goes(tmp_path, seed):
    chance = random.Random(seed)
    disk = FailingDisk(4000)
    live = Written(tmp_path / "spools", disk, segment_bytes=5000)
    taker = Taker(live.outbox)
    number = 0
    for _ in range(300):
        event = chance.randrange(8)
        if event < 3:
            live.put(range(number, number + 3))
            number += 3
        elif event == 3:
            disk.room = chance.choice([0, 0, 3000, 20_000])
            live.frames._retry_at = 0.0
        elif event == 4:
            taker.answer(chance.randrange(len(taker.steps) + 1))
        elif event == 5 and chance.random() < 0.3:
            taker.begin()
        else:
            taker.take()
    disk.room = 1 << 30
    live.frames._retry_at = 0.0
    live.put([number])
    while taker.take():
        taker.answer(len(taker.steps))
    assert taker.steps == list(range(number + 1)), f"seed {seed}"
    live.die()


class Taker:
    """A collector that keeps steps, forgets what it did not acknowledge, and checks numbers."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.steps: list[int] = []
        self.acked = 0
        self.begin()

    def begin(self) -> None:
        """A new stream."""
        self.decoder = Decoder(0)
        self.frames = 0
        del self.steps[self.acked :]
        self.outbox.restart()
        self.outbox.take(PushReply(resume=Resume(committed=self.acked)))

    def take(self) -> bool:
        message = self.outbox.next()
        if message is None:
            return False
        request = parse_request(message)
        if isinstance(request, Framed):
            assert request.head.first <= len(self.steps)
            self.frames += 1
            records = self.decoder.decode(request)
            self.steps += [r.step for r in records][len(self.steps) - request.head.first :]
        elif request.WhichOneof("message") == "define":
            self.decoder.define(request.define)
        return True

    def answer(self, committed: int) -> None:
        self.acked = max(self.acked, committed)
        self.outbox.take(PushReply(ack=Ack(committed=self.acked, frames=self.frames)))


def test_under_power_a_put_returns_after_the_disk_has_it(tmp_path):
    disk = FailingDisk(1 << 30)
    live = Written(tmp_path / "spools", disk, power=True)
    live.put([0])
    assert disk.synced[-1] == segments(live.folder)[0].stat().st_size
    live.die()


def test_without_power_the_disk_has_it_soon_all_the_same(tmp_path):
    disk = FailingDisk(1 << 30)
    live = Written(tmp_path / "spools", disk)
    live.put([0])
    deadline = time.monotonic() + 5
    while not disk.synced:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    live.die()


def test_a_disk_that_does_not_sync_is_told_of_once(tmp_path, caplog):
    disk = FailingDisk(1 << 30)
    disk.sync_fails = True
    live = Written(tmp_path / "spools", disk, power=True)
    live.put([0])
    live.put([1])
    live.die()
    (warning,) = warnings_in(caplog)
    assert "may be lost with power" in warning


def test_a_backlog_of_10000_segments_opens_quickly(tmp_path):
    left = Written(tmp_path / "spools", LazyDisk(), segment_bytes=1)
    for number in range(10_000):
        frame = next(iter(left.encoder.encode([_tiny(number)])))
        left.frames.store(frame, more=False)
        left.outbox.append(frame)
    left.die()
    assert len(segments(left.folder)) == 10_000
    work = OwnedSpool.take(left.folder)
    began = time.process_time()
    load = _Load(work, "somewhere", threading.Condition())
    load.frames.rewind()
    load.frames.commit(9_990)
    first = load.frames.first()
    assert time.process_time() - began < 5
    assert (load.notes.end, first.end if first else 0) == (10_000, 9_991)
    assert len(segments(left.folder)) == 11  # one more than those that are needed
    load.frames.close()
    work.release()


def _tiny(number: int):
    one = numbered(number % 50)
    return replace(one, coordinates=replace(one.coordinates, step=number))


# -- as a session sees it


@pytest.fixture
def nowhere() -> str:
    return f"127.0.0.1:{free_port()}"


def test_a_close_leaves_the_spool_and_one_line_that_delivers_it(tmp_path, nowhere, caplog):
    sink = sink_to(nowhere, tmp_path / "spools")
    sink.put([numbered(n) for n in range(50)])
    assert sink.close(0.2) == 0
    (folder,) = spools(tmp_path / "spools")
    line = warnings_in(caplog)[-1]
    assert f"`anchor push {folder} --to grpc://{nowhere}`" in line
    assert "50 records of run run1 did not reach" in line
    assert sum("anchor push" in text for text in warnings_in(caplog)) == 1
    push(folder, tmp_path / "store")
    reader = RankReader(LocalLocation(tmp_path / "store/run1.zarr"), 0)
    assert (check_store(tmp_path / "store", 50), reader.catalogue.state) == (50, "closed")
    assert dict(reader.catalogue.attempts[0].header) == {"seed": 1}


def test_a_close_that_waits_says_so_once_where_nobody_sees_a_bar(tmp_path, nowhere, caplog):
    sink = sink_to(nowhere, tmp_path / "spools")
    sink.put([numbered(0)])
    sink.close(1.5)
    waits = [text for text in warnings_in(caplog) if "waits up to" in text]
    assert waits == [f"anchorlib: closing run run1 waits up to 1.5 s for 1 records to reach "
                     f"grpc://{nowhere}"]  # fmt: skip


def test_a_delivered_session_leaves_nothing_on_disk(tmp_path):
    with serve(tmp_path / "store") as collector:
        sink = sink_to(collector.address, tmp_path / "spools")
        for start in range(0, 400, 10):
            sink.put([numbered(n) for n in range(start, start + 10)])
        assert sink.close(20) == 0
    assert check_store(tmp_path / "store", 400) == 400
    assert spools(tmp_path / "spools") == []


def test_a_refusal_keeps_the_spool_and_warns_once(tmp_path, caplog):
    with serve(tmp_path / "store", token="secret-token") as collector:
        sink = sink_to(collector.address, tmp_path / "spools")
        deadline = time.monotonic() + 20
        while not sink._sender.refusal:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        sink.put([numbered(n) for n in range(20)])
        began = time.monotonic()
        assert sink.close(20) == 0
        assert time.monotonic() - began < 10
    lines = [text for text in warnings_in(caplog) if "anchor push" in text]
    assert len(lines) == 1
    assert "the token is missing or wrong" in lines[0]
    (folder,) = spools(tmp_path / "spools")
    assert push(folder, tmp_path / "other").records == 20


def test_a_full_spool_drops_values_then_everything_and_counts_both(tmp_path, nowhere, monkeypatch):
    monkeypatch.setenv("ANCHOR_SPOOL_LIMIT", "200kB")
    sink = sink_to(nowhere, tmp_path / "spools")
    records = [numbered(n, 4000) for n in range(1500)]
    for one in records:
        sink.put([one])
    assert sum(file.stat().st_size for file in segments(sink.spool)) < 230_000
    dropped = sink.dropped
    with serve(tmp_path / "store", nowhere):
        assert sink.close(30) == 0
    reader = RankReader(LocalLocation(tmp_path / "store/run1.zarr"), 0)
    bare = int((reader.column("flags") & 1).sum())
    assert reader.committed + (dropped - bare) == 1500
    by_reason: dict[str, int] = {}
    for gap in reader.catalogue.gaps.values():
        by_reason[gap.reason] = by_reason.get(gap.reason, 0) + gap.count
    assert by_reason == {"line full: values dropped": bare, "line full": dropped - bare}
    assert bare
    assert dropped > bare


def test_a_full_spool_that_is_only_left_states_its_gaps_too(tmp_path, nowhere, monkeypatch):
    monkeypatch.setenv("ANCHOR_SPOOL_LIMIT", "100kB")
    sink = sink_to(nowhere, tmp_path / "spools")
    for number in range(800):
        sink.put([numbered(number, 4000)])
    dropped = sink.dropped
    sink.close(0.1)
    push(sink.spool, tmp_path / "store")
    gaps = RankReader(LocalLocation(tmp_path / "store/run1.zarr"), 0).catalogue.gaps.values()
    assert sum(gap.count for gap in gaps) == dropped


def test_block_waits_until_the_spool_has_room(tmp_path, nowhere, monkeypatch):
    monkeypatch.setenv("ANCHOR_SPOOL_LIMIT", "100kB")
    sink = sink_to(nowhere, tmp_path / "spools", on_full="block")
    puts = threading.Thread(target=lambda: [sink.put([numbered(n, 9000)]) for n in range(100)])
    puts.start()
    puts.join(0.3)
    assert puts.is_alive()
    with serve(tmp_path / "store", nowhere):
        puts.join(30)
        assert not puts.is_alive()
        assert sink.close(20) == 0
    assert check_store(tmp_path / "store", 100, 9000) == 100


def test_where_no_spool_can_be_made_records_wait_in_memory(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with serve(tmp_path / "store") as collector:
        sink = sink_to(collector.address, tmp_path / "file/spools")
        sink.put([numbered(0)])
        assert sink.close(20) == 0
    assert check_store(tmp_path / "store", 1) == 1
    (warning,) = warnings_in(caplog)
    assert "no spool can be made" in warning
    assert "set ANCHOR_SPOOL" in warning


@pytest.mark.parametrize("fsync", [True, False])
def test_a_collector_that_promises_less_than_was_asked_for_is_told_of_once(tmp_path, caplog, fsync):
    with serve(tmp_path / "store", fsync=fsync) as collector:
        sink = sink_to(collector.address, tmp_path / "spools", power=True)
        for number in range(5):
            sink.put([numbered(number)])
            sink.flush(20)
        sink.close(20)
    lines = [text for text in warnings_in(caplog) if "--durability power" in text]
    assert len(lines) == (0 if fsync else 1)


def test_a_bad_limit_is_an_error_of_the_user(tmp_path, nowhere, monkeypatch):
    monkeypatch.setenv("ANCHOR_SPOOL_LIMIT", "lots")
    with pytest.raises(OptionError, match="ANCHOR_SPOOL_LIMIT='lots'"):
        sink_to(nowhere, tmp_path / "spools")
    assert spools(tmp_path / "spools") == []


def test_the_spool_is_the_owners_alone(tmp_path, nowhere):
    sink = sink_to(nowhere, tmp_path / "spools")
    sink.put([numbered(0)])
    for path in [tmp_path / "spools", sink.spool, *segments(sink.spool), sink.spool / "lock"]:
        assert path.stat().st_mode & 0o077 == 0, path
    sink.close(0)


def test_the_spools_header_holds_no_token(tmp_path, nowhere, monkeypatch):
    monkeypatch.setenv("ANCHOR_TOKEN", "secret-token-1")
    sink = sink_to(nowhere, tmp_path / "spools")
    sink.put([numbered(0)])
    sink.close(0)
    for path in sink.spool.iterdir():
        assert b"secret-token-1" not in path.read_bytes()


needs_mount = pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")


@needs_mount
def test_a_real_disk_that_is_full_costs_nothing_while_memory_lasts(tmp_path, monkeypatch):
    monkeypatch.setenv("ANCHOR_SPOOL_LIMIT", "1GiB")
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(small)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        port = free_port()
        sink = RemoteSink(f"grpc://127.0.0.1:{port}", "run1", 0, spool=small)
        for number in range(400):
            sink.put([numbered(number, 3000)])
        assert sink._spool.frames.spilling or sink.dropped
        (small / "other").unlink(missing_ok=True)
        with serve(tmp_path / "store", f"127.0.0.1:{port}"):
            assert sink.close(30) == 0
        reader = RankReader(LocalLocation(tmp_path / "store/run1.zarr"), 0)
        assert reader.committed == 400
        assert sink.dropped == int((reader.column("flags") & 1).sum())
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_the_spool_is_no_dependency_of_the_import():
    code = (
        "import sys, anchorlib.sinks; print(sorted({'grpc', 'zarr', 'torch'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
