"""Clients that mean harm or are broken: bounded in time and memory, and nobody else notices."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from anchor_server import grpc_server, serve
from anchor_server.fragment_memory import FragmentMemory
from anchor_server.health import WATCHERS
from anchor_server.refusals import Refusal
from anchorlib import open_run
from anchorlib.record import UNKNOWN, Gap
from anchorlib.wire import MESSAGE_BYTES, PushRequest, ReaderClient, sealed
from anchorlib.wire.messages.gaps import gaps_message
from anchorlib.wire.v1.collector_pb2 import (
    Columns,
    Define,
    Flush,
    Fragment,
    Frame,
    Layout,
    Series,
)
from tests.cli.made import make_run
from tests.cli.made import record as made
from tests.server.processes import Served, called, served
from tests.server.pushing import Pusher, expected, record, stored

PUSH = "/anchorlib.wire.v1.Collector/Push"
LIST = "/anchorlib.wire.v1.Reader/List"
MIB = 1 << 20


@pytest.fixture(scope="module")
def victim(tmp_path_factory) -> Iterator[Served]:
    """A collector in a process of its own, whose memory can be looked at."""
    store = tmp_path_factory.mktemp("victim")
    make_run(store, [made()])
    with served(store) as process:
        yield process
        code, _, err = process.end()
        # However many clients say nonsense, it is told once.
        assert (code, len(err.splitlines()) <= 1, "Traceback" in err) == (0, True, False)


def answers(victim: Served) -> bool:
    """Whether an honest reader is served, within two seconds of waiting."""
    with ReaderClient(f"grpc://{victim.address}", timeout=2) as reader:
        return "run1.zarr/" in reader.list()


def connections(victim: Served) -> int:
    """Connections that the collector holds open."""
    held = 0
    for descriptor in Path(f"/proc/{victim.process.pid}/fd").iterdir():
        try:
            held += descriptor.readlink().name.startswith("socket:")
        except OSError:
            continue
    return held


def settled(victim: Served, most: int) -> int:
    """Memory growth that is left once it fell below `most`; waits at most 10 s for that."""
    deadline = time.monotonic() + 10
    while (now := victim.memory()) > most and time.monotonic() < deadline:
        time.sleep(0.05)
    return now


def test_a_gzip_bomb_is_refused_and_leaves_memory_flat(victim):
    assert answers(victim)
    before = victim.memory()
    options = [("grpc.max_send_message_length", 1 << 30)]
    bomb = bytes(128 * MIB)  # 130 KB on the wire
    for method in (PUSH, LIST):
        with grpc.insecure_channel(
            victim.address, options=options, compression=grpc.Compression.Gzip
        ) as channel:
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(method)(bomb, timeout=30)
            assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert settled(victim, before + 64 * MIB) < before + 64 * MIB
    assert answers(victim)


@pytest.mark.long
def test_a_hundred_megabytes_of_gaps_leave_memory_flat_and_each_is_counted(victim):
    before = victim.memory()
    told = 0
    with Pusher(victim.address, run="gaps", timeout=60) as stream:
        for start in range(0, 104_000, 500):
            reasons = (f"{number} {'x' * 1000}" for number in range(start, start + 500))
            gaps = [Gap("fc1", "grad", "all", reason, 3, 0, 1) for reason in reasons]
            stream.send(sealed(PushRequest(gaps=gaps_message(gaps))))
            told += 3 * len(gaps)
        stream.send(sealed(PushRequest(flush=Flush(id=1))))
        while not stream.reply().HasField("flushed"):
            pass
    assert settled(victim, before + 100 * MIB) < before + 100 * MIB
    with ReaderClient(f"grpc://{victim.address}") as reader:
        run = open_run(f"grpc://{victim.address}/gaps")
        assert reader.get("gaps.zarr/rank0/catalog/c.600") is None  # of 64 KiB each
    found = run.gaps()
    assert sum(gap.count for gap in found) == told
    assert [gap.count > 0 for gap in found if gap.name == UNKNOWN] == [True]
    assert answers(victim)


def test_a_message_beyond_the_limit_is_refused(victim):
    options = [("grpc.max_send_message_length", 1 << 30)]
    with grpc.insecure_channel(victim.address, options=options) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(LIST)(bytes(MESSAGE_BYTES + 1), timeout=30)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_random_bytes_leave_memory_flat_and_the_collector_alive(victim):
    before = victim.memory()
    host, _, port = victim.address.rpartition(":")
    for number in range(60):
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" if number % 2 else b""
            try:
                raw.sendall(preface + os.urandom(64 << 10))
            except OSError:
                continue  # it hung up before all was said
    for _ in range(60):
        with grpc.insecure_channel(victim.address) as channel, pytest.raises(grpc.RpcError):
            channel.unary_unary(PUSH)(os.urandom(1000), timeout=10)
    assert settled(victim, before + 64 * MIB) < before + 64 * MIB
    assert answers(victim)


def watch(stack: ExitStack, address: str) -> bool:
    """Whether a call that asks for every change of health is let in; it stays until the end."""
    channel = stack.enter_context(grpc.insecure_channel(address))
    call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=30)
    stack.callback(call.cancel)
    try:
        next(call)
    except grpc.RpcError:
        return call.code() != grpc.StatusCode.RESOURCE_EXHAUSTED
    return True


def test_watchers_that_come_and_go_leave_the_health_service_whole(victim):
    with grpc.insecure_channel(victim.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for _ in range(50):
            call = stub.Watch(health_pb2.HealthCheckRequest(), timeout=30)
            call.cancel()
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_idle_connections_and_a_slow_reader_do_not_delay_the_others(victim):
    host, _, port = victim.address.rpartition(":")
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
        watching = [watch(stack, victim.address) for _ in range(100)]  # calls that never end
        assert sum(watching) == WATCHERS
        for rank in range(20):
            idle = stack.enter_context(Pusher(victim.address, run="idle", rank=rank))
            assert idle.reply().HasField("resume")
        slow = stack.enter_context(grpc.insecure_channel(victim.address))
        calls = [slow.unary_unary(LIST).future(b"") for _ in range(20)]  # answers nobody takes
        assert answers(victim)  # which waits two seconds at most
        done = called("names", f"grpc://{victim.address}/run1")
        assert (done.returncode, done.stderr) == (0, "")
        assert calls


@pytest.fixture
def impatient(monkeypatch):
    """A collector that waits a second where others wait longer."""
    monkeypatch.setattr("anchor_server.push_service.HELLO_SECONDS", 0.5)
    monkeypatch.setattr("anchor_server.stream.STALL_SECONDS", 0.5)
    options = [
        (name, 500 if name == "grpc.server_handshake_timeout_ms" else value)
        for name, value in grpc_server._OPTIONS
    ]
    monkeypatch.setattr(grpc_server, "_OPTIONS", options)


@pytest.mark.parametrize("said", [b"", b"PRI * HTTP/2.0\r\n", b"\x16\x03\x01"])
def test_a_connection_that_says_nothing_or_half_a_greeting_is_dropped(tmp_path, impatient, said):
    with serve(tmp_path) as collector:
        host, _, port = collector.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=20) as raw:
            raw.sendall(said)
            try:
                while raw.recv(4096):  # until it hangs up; the socket's own time is the bound
                    pass
            except ConnectionError:
                pass


def test_a_stream_that_never_says_hello_is_dropped(tmp_path, impatient):
    with serve(tmp_path) as collector, grpc.insecure_channel(collector.address) as channel:
        silence = iter(lambda: time.sleep(20), 0)
        call = channel.stream_stream(PUSH)(silence, timeout=15)
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert "said nothing for 0.5 s" in caught.value.details()


LARGE = Define(
    series=[Series(name="a", kind="grad", mode="all")],
    layouts=[Layout(dtype="uint8", shape=[1 << 20])],
    phases=["train"],
)


def fragment(total: int = 1 << 20) -> bytes:
    """The first piece of a record."""
    frame = Frame(
        columns=Columns(digest=b"d" * 16), fragment=Fragment(total=total), payload=b"x" * 10
    )
    return sealed(PushRequest(frame=frame))


def test_a_stream_that_stalls_in_the_middle_of_a_record_is_dropped(tmp_path, impatient):
    with serve(tmp_path) as collector:
        with Pusher(collector.address) as stalled, Pusher(collector.address, rank=1) as resting:
            resting.push(record(0))
            resting.acked(1)
            stalled.send(sealed(PushRequest(define=LARGE)), fragment())
            code, details = stalled.refusal()
            assert (code, "said nothing" in details) == (grpc.StatusCode.DEADLINE_EXCEEDED, True)
            # Between records a writer may rest for as long as it likes.
            resting.push(record(1))
            resting.acked(2)
        assert collector._push._room.used == 0
        with Pusher(collector.address) as back:  # and its rank is free again
            back.push(record(0))
            back.acked(1)


def test_unfinished_records_share_a_bounded_room(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "anchor_server.push_service.FragmentMemory", lambda: FragmentMemory(3 << 19)
    )
    with serve(tmp_path) as collector, Pusher(collector.address) as first:
        first.send(sealed(PushRequest(define=LARGE)), fragment())
        assert first.reply().HasField("resume")
        while first.reply().ack.frames != 1:
            pass
        with Pusher(collector.address, rank=1) as second:
            second.send(sealed(PushRequest(define=LARGE)), fragment())
            code, details = second.refusal()
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED  # it may come again
        assert "unfinished records of other streams" in details


def test_room_takes_one_record_however_large():
    room = FragmentMemory(10)
    room.take(100)
    with pytest.raises(Refusal):
        room.take(1)
    room.give_back(100)
    room.take(1)
    assert room.used == 1


def test_what_a_stream_defines_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("anchor_server.stream.DEFINED_BYTES", 10_000)
    names = Define(series=[Series(name="x" * 900, kind="grad", mode="all")] * 3)
    with serve(tmp_path) as collector, Pusher(collector.address) as stream:
        stream.send(*[sealed(PushRequest(define=names))] * 5)
        code, details = stream.refusal()
    assert (code, "defines at most" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)


def test_a_stream_that_floods_without_reading_answers_holds_no_one_up(tmp_path):
    with serve(tmp_path) as collector:
        flood, good = Pusher(collector.address), Pusher(collector.address, rank=1)
        with flood, good:
            records = [record(step) for step in range(3000)]
            flood.push(*records)  # and never reads a reply
            good.push(*records[:10])
            good.acked(10)
        collector.stop()
        assert stored(collector.store, rank=1) == expected(records[:10])
