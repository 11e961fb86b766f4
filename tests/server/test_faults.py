"""Full disks, signals, kills and rivals: nothing that was acknowledged is lost, nothing is torn."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from anchor_server import Collector, serve
from anchor_server.ports import listener
from anchorlib.block import block_of
from anchorlib.errors import CollectorError
from anchorlib.record import Gap
from anchorlib.sinks import RunOptions
from anchorlib.sinks.remote import RemoteSink
from anchorlib.store import LocalLocation, RankReader
from anchorlib.wire import DURABILITY_POWER, DURABILITY_PROCESS
from tests.anchorlib.store.auditing import faults
from tests.cli.made import anchor
from tests.delivery.lines import eventually
from tests.server.processes import COMMAND, bare_environment, served
from tests.server.pushing import Pusher, expected, record, stored

MIB = 1 << 20


@contextmanager
def small_disk(place: Path, size: int, inodes: int = 0) -> Iterator[Path]:
    """A file system of `size` bytes (0 inodes: many); skips the test where none can be mounted."""
    place.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"size={size}{f',nr_inodes={inodes}' if inodes else ''}".encode()
    if libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, options) != 0:
        pytest.skip(f"no tmpfs can be mounted: {errno.errorcode[ctypes.get_errno()]}")
    try:
        yield place
    finally:
        libc.umount2(os.fsencode(place), 2)  # MNT_DETACH


def push_until_refused(address: str, records) -> tuple[grpc.StatusCode, str]:
    """One stream that sends what is not there yet, as far as the collector takes it."""
    with Pusher(address) as stream:
        try:
            done = stream.reply().resume.committed
        except grpc.RpcError as error:
            return error.code(), error.details() or ""
        for one in records[done:]:
            stream.encoder.sequence = one.order
            stream.push(one)
        stream.send_end()
        return stream.refusal()


def test_a_full_disk_refuses_what_may_pass_and_heals_without_anyones_help(tmp_path):
    records = [record(step, MIB // 16) for step in range(40)]  # 10 MiB
    with small_disk(tmp_path / "disk", 8 * MIB) as disk, serve(disk / "store") as collector:
        (disk / "ballast").write_bytes(bytes(3 * MIB))
        code, details = push_until_refused(collector.address, records)
        assert (code, "No space left" in details) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True)
        held = stored(collector.store)  # every digest is checked there
        assert 0 < len(held) < 40
        assert held == expected(records)[: len(held)]
        assert push_until_refused(collector.address, records)[0] == code  # and again
        (disk / "ballast").unlink()
        push_until_refused(collector.address, records[:28])
        assert stored(collector.store) == expected(records[:28])
        reader = RankReader(LocalLocation(collector.store / "run1.zarr"), 0)
        assert reader.gaps() == []  # nothing was left out: it waited


def test_a_disk_without_inodes_is_full_and_a_twentieth_of_them_stays_free(tmp_path, monkeypatch):
    monkeypatch.setattr("anchorlib.store.write.register.FORMS_AT_ONCE", 1000)  # each with its files
    records = [record(step, 16 + step, name=f"t{step}") for step in range(1000)]
    with (
        small_disk(tmp_path / "disk", 256 * MIB, inodes=400) as disk,
        serve(disk / "store") as collector,
    ):
        code, details = push_until_refused(collector.address, records)
        assert (code, "No inodes left" in details) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True)
        assert os.statvfs(disk).f_favail >= 400 // 20
        held = stored(collector.store)
        assert 0 < len(held) < 1000
        assert held == expected(records)[: len(held)]


def test_statements_wait_for_room_as_records_do_and_are_all_there_when_there_is_some(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("anchorlib.store.disk.full.RECHECK_SECONDS", -1.0)  # asks each time
    lost = [Gap(f"t{number}", "grad", "all", "line full", 2, 0, 1) for number in range(300)]
    with small_disk(tmp_path / "disk", 8 * MIB) as disk, serve(disk / "store") as collector:
        sink = RemoteSink(f"grpc://{collector.address}", RunOptions("run1", 0))
        sink.put(block_of([record(0)]))
        sink.flush().wait(20)
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        (disk / "ballast").write_bytes(bytes(free - 64 * 1024))  # but for a part of the twentieth
        with eventually() as now:
            while not (refused := collector.tally.refused["disk"]):
                sink.gap(lost)
                assert now()
        assert refused
        reader = RankReader(LocalLocation(collector.store / "run1.zarr"), 0)
        assert reader.gaps() == []
        (disk / "ballast").unlink()
        assert sink.close(60) == 0
        reader = RankReader(LocalLocation(collector.store / "run1.zarr"), 0)
        assert sum(gap.count for gap in reader.gaps()) == 600


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_a_disk_that_fails_refuses_what_may_pass_and_heals(tmp_path, monkeypatch, code):
    records = [record(step, 1000) for step in range(60)]
    real, left = os.pwritev, 90

    def failing(descriptor: int, buffers, offset: int) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(code, os.strerror(code))
        return real(descriptor, buffers, offset)

    with serve(tmp_path) as collector:
        monkeypatch.setattr(os, "pwritev", failing)
        for _ in range(2):
            told, details = push_until_refused(collector.address, records)
            assert (told, os.strerror(code) in details) == (
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                True,
            )
        held = stored(tmp_path)
        assert len(held) < 60
        assert held == expected(records)[: len(held)]
        monkeypatch.setattr(os, "pwritev", real)
        push_until_refused(collector.address, records)
    assert stored(tmp_path) == expected(records)
    reader = RankReader(LocalLocation(tmp_path / "run1.zarr"), 0)
    assert reader.gaps() == []  # nothing was left out: it waited
    assert faults(tmp_path) == []


def test_a_sync_that_fails_acknowledges_nothing_even_if_the_next_one_succeeds(
    tmp_path, monkeypatch
):
    # Linux says once that pages were not written, and forgets them.
    real, files = os.fdatasync, []

    def failing(descriptor: int) -> None:
        files.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        if files[-1].endswith("records/seq/c.0") and sum("seq" in file for file in files) == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    records = [record(step) for step in range(3)]
    with serve(tmp_path, fsync=True) as collector:
        with Pusher(collector.address) as first:
            first.push(records[0])
            first.acked(1)
            monkeypatch.setattr(os, "fdatasync", failing)
            first.push(records[1])
            first.acked(2)
            first.push(records[2])
            assert first.refusal()[0] == grpc.StatusCode.RESOURCE_EXHAUSTED
        with Pusher(collector.address) as again:
            assert again.reply().resume.committed == 2
    assert stored(tmp_path) == expected(records[:2])


def test_a_disk_that_is_full_to_the_last_byte_tears_nothing(tmp_path):
    records = [record(step, 300, name=f"t{step}") for step in range(3000)]
    with small_disk(tmp_path / "disk", 2 * MIB) as disk, serve(disk / "store") as collector:
        code, details = push_until_refused(collector.address, records)
        assert (code, "\n" in details) == (grpc.StatusCode.RESOURCE_EXHAUSTED, False)
        held = stored(collector.store)
        assert held == expected(records)[: len(held)]
        assert anchor("verify", "run1", "--store", collector.store).code == 0


def test_a_bound_of_the_run_leaves_values_out_and_says_so(tmp_path):
    # Unlike a full disk: this is what was asked for, and it does not pass.
    records = [record(step, 1000) for step in range(10)]
    with serve(tmp_path, max_bytes=20_000) as collector, Pusher(collector.address) as stream:
        stream.push(*records)
        stream.acked(10)
        assert sum(collector.tally.dropped.values()) > 0
    done = anchor("verify", "run1", "--store", tmp_path, "--json")
    assert done.code == 3
    assert done.json["gaps"][0]["reason"] == "max_bytes"


def test_a_bound_of_the_run_holds_for_all_its_ranks_and_after_a_restart(tmp_path):
    # Each value takes a page of its own where each has an array of its own.
    bound, kept = 2 * MIB, []
    for rank in range(6):  # each meets what the ones before it left, in another collector
        with (
            serve(tmp_path, max_run_bytes=bound) as collector,
            Pusher(collector.address, rank=rank) as stream,
        ):
            stream.push(*(record(step, MIB // 16) for step in range(3)))
            stream.acked(3)
            kept.append(3 - collector.tally.dropped["no room in the store"])
    assert kept[0] == 3
    assert kept[-1] == 0
    used = sum(file.stat().st_blocks * 512 for file in (tmp_path / "run1.zarr").rglob("*"))
    assert MIB < used < bound + 12 * MIB // 4  # summaries go on: rows, labels and metadata
    done = anchor("verify", "run1", "--store", tmp_path, "--json")
    assert done.code == 3
    assert {gap["reason"] for gap in done.json["gaps"]} == {"max_run_size"}


def test_ranks_that_write_at_once_share_the_bound_of_their_run(tmp_path):
    with serve(tmp_path, max_run_bytes=3 * MIB) as collector:
        one, two = (Pusher(collector.address, rank=rank) for rank in range(2))
        with one, two:
            for step in range(20):
                for stream in (one, two):
                    stream.push(record(step, MIB // 16))
            for stream in (one, two):
                stream.acked(20)
        # Fewer than twelve values fit. What both write when it is full is a batch of eight each.
        assert 40 - 12 - 2 * 8 <= collector.tally.dropped["no room in the store"] <= 40 - 8


def test_a_rank_that_is_overwritten_gives_its_room_to_the_run(tmp_path):
    with serve(tmp_path, max_run_bytes=2 * MIB) as collector:
        for number in range(4):
            with Pusher(
                collector.address, writer_id=bytes([number]) * 16, overwrite=number > 0
            ) as stream:
                stream.push(*(record(step, MIB // 16) for step in range(4)))
                stream.acked(4)
        assert collector.tally.dropped["no room in the store"] == 0


@pytest.mark.parametrize(("fsync", "told"), [(False, DURABILITY_PROCESS), (True, DURABILITY_POWER)])
def test_an_ack_comes_after_the_write_and_says_what_it_survives(tmp_path, monkeypatch, fsync, told):
    synced: list[int] = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (synced.append(fd), real(fd))[1])
    with serve(tmp_path, fsync=fsync) as collector, Pusher(collector.address) as stream:
        stream.reply()
        before = len(synced)
        stream.push(record(0))
        while (ack := stream.reply().ack).committed != 1:
            pass
        assert ack.durability == told
        assert stored(tmp_path) == expected([record(0)])
        assert (len(synced) > before) is fsync


def health(address: str) -> str:
    with grpc.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest()
        status = health_pb2_grpc.HealthStub(channel).Check(request, timeout=10).status
        return health_pb2.HealthCheckResponse.ServingStatus.Name(status)


def test_while_it_drains_health_says_so_and_readers_are_answered(tmp_path, monkeypatch):
    entered, go_on = threading.Event(), threading.Event()
    collector = Collector(tmp_path, "127.0.0.1:0")
    real = collector._ranks.wait_idle

    def slowly(timeout: float) -> bool:
        entered.set()
        return go_on.wait(20) and real(timeout)

    monkeypatch.setattr(collector._ranks, "wait_idle", slowly)
    collector.start()
    assert health(collector.address) == "SERVING"
    stopper = threading.Thread(target=collector.stop)
    stopper.start()
    assert entered.wait(20)
    assert health(collector.address) == "NOT_SERVING"
    with Pusher(collector.address) as late:
        assert late.refusal()[0] == grpc.StatusCode.UNAVAILABLE
    go_on.set()
    stopper.join(30)
    assert not stopper.is_alive()


def test_sigterm_writes_and_acknowledges_what_has_arrived(tmp_path):
    records = [record(step) for step in range(200)]
    with served(tmp_path) as collector, Pusher(collector.address) as stream:
        stream.push(*records)
        stream.acked(200)
        code, out, err = collector.end()
        assert (code, out, err) == (0, "", "")
        assert stream.refusal()[0] == grpc.StatusCode.UNAVAILABLE
    assert stored(tmp_path) == expected(records)


@pytest.mark.parametrize("power", [False, pytest.param(True, marks=pytest.mark.wide)])
def test_a_collector_that_is_killed_at_any_moment_loses_nothing_acknowledged(tmp_path, power):
    rng = random.Random(7)
    records = [record(step, 500 if step % 50 else 300_000) for step in range(600)]
    options = ("--durability", "power") if power else ()
    acked = kills = 0
    for last in [*(rng.randint(1, 4) for _ in range(4)), 10_000]:
        with served(tmp_path, *options) as collector, suppress(grpc.RpcError):
            for replies, committed in enumerate(_pushed(collector.address, records, acked)):
                acked = max(acked, committed)
                if replies == last:  # in the middle of what it is writing by now
                    collector.process.kill()
                    kills += 1
    assert kills > 1
    assert acked == len(records)
    assert stored(tmp_path) == expected(records)
    assert anchor("verify", "run1", "--store", tmp_path).code == 0


def _pushed(address: str, records, acked: int) -> Iterator[int]:
    """What each reply acknowledges, while all that is not there yet is sent."""
    with Pusher(address, timeout=60) as stream:
        done = stream.reply().resume.committed
        assert done >= acked  # what was acknowledged is there after every kill
        stream.encoder.sequence = done
        for start in range(done, len(records), 20):
            stream.push(*records[start : start + 20])
        while done < len(records):
            done = stream.reply().ack.committed
            yield done


# -- rivals


def test_a_second_collector_on_a_port_is_told_who_holds_it(tmp_path):
    with served(tmp_path / "one") as first:
        second = subprocess.run(
            [*COMMAND, "serve", "--store", tmp_path / "two", "--bind", first.address],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=bare_environment(),
        )
        assert (second.returncode, second.stdout, second.stderr.count("\n")) == (2, "", 1)
        assert f"process {first.process.pid} (" in second.stderr


def test_who_listens_is_found_or_left_open(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert listener(taken.getsockname()[1]).startswith(f"process {os.getpid()} (")
    assert listener(1, tmp_path) == "another process"


def test_two_collectors_on_one_directory_never_write_one_rank(tmp_path):
    with serve(tmp_path) as one, serve(tmp_path) as two:
        with Pusher(one.address) as first:
            first.push(record(0))
            first.acked(1)
            with Pusher(two.address, writer_id=b"2" * 16) as second:
                code, details = second.refusal()
            assert code == grpc.StatusCode.FAILED_PRECONDITION
            assert f"is being written by process {os.getpid()} on" in details
            first.push(record(1))
            first.acked(2)
        with Pusher(two.address, rank=1) as other:  # another rank is free
            other.push(record(0))
            other.acked(1)
    assert stored(tmp_path) == expected([record(0), record(1)])


def test_a_port_that_is_not_this_machines_is_one_line(tmp_path):
    with pytest.raises(CollectorError, match="not this machine's"):
        Collector(tmp_path, "192.0.2.1:50051", insecure=True)
