"""The life of a collector: its port, who may call, how it stops."""

from __future__ import annotations

import socket
import threading

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from anchor_server import Collector, ServerTLS, serve
from anchorlib.errors import AnchorError, CollectorError, OptionError
from anchorlib.wire import Credentials, ReaderClient
from tests.server.pushing import Pusher, expected, record, stored
from tests.waiting import returned, until

SERVING = health_pb2.HealthCheckResponse.SERVING


def health_of(address: str) -> int:
    with grpc.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest()
        return health_pb2_grpc.HealthStub(channel).Check(request, timeout=10).status


def test_port_zero_picks_a_port_and_says_which(tmp_path):
    with serve(tmp_path) as collector:
        host, _, port = collector.address.rpartition(":")
        assert (host, int(port) > 0) == ("127.0.0.1", True)


def test_the_standard_health_service_answers(tmp_path):
    with serve(tmp_path) as collector:
        assert health_of(collector.address) == SERVING


def test_two_collectors_never_share_a_port(tmp_path):
    with serve(tmp_path) as collector, pytest.raises(CollectorError, match="--bind"):
        Collector(tmp_path, collector.address)


@pytest.mark.parametrize("bind", ["", "50051", "localhost", "127.0.0.1:", ":50051", "h:99999"])
def test_an_address_that_cannot_be_is_refused(tmp_path, bind):
    with pytest.raises(OptionError, match="host:port"):
        Collector(tmp_path, bind)


@pytest.mark.parametrize("token", [None, "secret"])
def test_beyond_loopback_a_collector_wants_tls_and_a_token_or_insecure(tmp_path, token):
    with pytest.raises(OptionError, match="--insecure"):
        Collector(tmp_path, "0.0.0.0:0", token=token)
    with serve(tmp_path, "0.0.0.0:0", token=token, insecure=True) as collector:
        assert collector.address.startswith("0.0.0.0:")


def test_a_certificate_that_cannot_be_read_is_named(tmp_path):
    tls = ServerTLS(tmp_path / "no.pem", tmp_path / "no.key")
    with pytest.raises(OptionError, match=r"no\.key"):
        Collector(tmp_path, "127.0.0.1:0", tls=tls)


def test_a_store_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AnchorError, match="cannot make the store"):
        Collector(tmp_path / "file" / "store")


def test_without_the_token_nothing_is_read_or_written(tmp_path):
    with serve(tmp_path / "store", token="s3cret") as collector:
        address = f"grpc://{collector.address}"
        for token in (None, "wrong", "s3cre"):
            with Pusher(collector.address, token=token) as stream:
                code, details = stream.refusal()
            assert (code, "s3cret" in details) == (grpc.StatusCode.UNAUTHENTICATED, False)
            with (
                ReaderClient(address, Credentials(token=token)) as reader,
                pytest.raises(CollectorError, match="ANCHOR_TOKEN"),
            ):
                reader.list()
        assert health_of(collector.address) == SERVING
        with Pusher(collector.address, token="s3cret") as stream:
            assert stream.reply().HasField("resume")
        with ReaderClient(address, Credentials(token="s3cret")) as reader:
            assert reader.list() == ["run1.zarr/"]


def test_a_token_is_never_shown():
    assert "s3cret" not in repr(Credentials(token="s3cret"))


def test_stopping_writes_what_has_arrived_and_says_so_to_the_client(tmp_path):
    records = [record(step) for step in range(500)]
    collector = Collector(tmp_path, "127.0.0.1:0")
    collector.start()
    with Pusher(collector.address) as stream:
        stream.push(*records)
        stream.acked(500)
        collector.stop()
        code, details = stream.refusal()
    assert code == grpc.StatusCode.UNAVAILABLE
    assert details.startswith("the collector is stopping")
    assert stored(tmp_path) == expected(records)


def test_stopping_does_not_wait_for_a_client_that_says_nothing(tmp_path):
    collector = Collector(tmp_path, "127.0.0.1:0")
    collector.start()
    with Pusher(collector.address) as stream:
        stream.reply()
        returned(lambda: collector.stop(grace=3600))
    collector.stop()


def test_a_stopped_collector_leaves_no_thread_and_frees_its_port(tmp_path):
    before = set(threading.enumerate())
    for _ in range(2):
        with serve(tmp_path) as collector, Pusher(collector.address, resume=True) as stream:
            stream.reply()
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        host, _, port = collector.address.rpartition(":")
        free.bind((host, int(port)))
    until(lambda: not set(threading.enumerate()) - before)


def test_wait_returns_when_the_collector_is_stopped(tmp_path):
    with serve(tmp_path) as collector:
        assert not collector.wait(0)
        stopper = threading.Thread(target=collector.stop)
        stopper.start()
        assert collector.wait(20)
        stopper.join()


def test_a_call_that_never_ends_does_not_keep_a_collector_from_ending(tmp_path, monkeypatch):
    monkeypatch.setattr("anchor_server.collector._PATIENCE", 0.1)
    for_ever = threading.Event()
    collector = Collector(tmp_path, "127.0.0.1:0")
    collector.start()
    collector._threads.submit(for_ever.wait)
    collector.stop(0.1)
    assert not collector.has_ended
    for_ever.set()


def test_nothing_runs_after_a_collector_has_ended(tmp_path):
    with serve(tmp_path) as collector, Pusher(collector.address) as stream:
        stream.push(record(0))
        stream.acked(1)
    assert collector.has_ended
