"""`anchor status`: who writes now, as a collector and as a directory know it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from anchor_cli.commands import status
from anchor_cli.terminal import Screen
from anchor_server import Collector, issue_token, serve
from anchorlib.block import block_of
from anchorlib.store import Writer
from anchorlib.upkeep import Writing
from anchorlib.wire import PushRequest, sealed, writer_name
from anchorlib.wire.v1.collector_pb2 import Backlog
from tests.cli.made import HOSTILE, Outcome, anchor, make_run
from tests.cli.made import record as stored_record
from tests.delivery.lines import push, sink_to
from tests.server.pushing import Pusher, record
from tests.waiting import until

FIELDS = [
    "run", "rank", "host", "since", "records_per_second", "bytes_per_second", "lag", "backlog",
    "last_seen",
]  # fmt: skip
OTHER = b"o" * 16


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    with serve(tmp_path / "store") as collector:
        yield collector


def asked(collector: Collector, *options: str) -> Outcome:
    return anchor("status", f"grpc://{collector.address}", *options)


def seconds_ago(text: str) -> float:
    told = datetime.fromisoformat(text)
    assert told.utcoffset() is not None
    return time.time() - told.timestamp()


def test_a_collector_says_who_writes_and_how_fast(collector):
    now = replace(record(0), time_ns=time.time_ns() - 5_000_000_000)
    with Pusher(collector.address, writer="process 42 on node7") as first:
        first.push(now)
        first.acked(1)
        first.send(sealed(PushRequest(backlog=Backlog(end=31))))
        first.push(replace(record(1), time_ns=now.time_ns))
        first.acked(2)
        with Pusher(collector.address, rank=3, writer="anyone", writer_id=OTHER) as second:
            assert second.reply().HasField("resume")
            done = asked(collector, "--json")
    assert (done.code, done.err) == (0, "")
    one, other = done.json
    assert list(one) == list(other) == FIELDS
    assert (one["run"], one["rank"], one["host"], one["backlog"]) == ("run1", 0, "node7", 29)
    assert 5.0 <= one["lag"] < 60
    assert 0 < one["records_per_second"] <= 2
    assert one["bytes_per_second"] == 16 * one["records_per_second"]
    assert max(abs(seconds_ago(one[name])) for name in ("since", "last_seen")) < 60
    assert (other["rank"], other["host"], other["records_per_second"]) == (3, "127.0.0.1", 0)
    assert (other["lag"], other["backlog"]) == (None, None)
    until(lambda: asked(collector, "--json").json == [])


def test_a_trainer_tells_what_waits_in_its_spool(tmp_path, collector):
    sink = sink_to(collector.address, tmp_path / "spools")
    sink.put(block_of([record(step) for step in range(40)]))
    until(lambda: sink.waiting == 0)
    (one,) = asked(collector, "--json").json
    sink.close(20)
    assert (one["backlog"], one["host"]) == (0, socket.gethostname())


def test_a_spool_is_shown_as_of_the_machine_that_pushes_it(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("anchorlib.sinks.remote.writer_name", lambda: "process 1 on gone")
        sink = sink_to("127.0.0.1:1", tmp_path / "spools")
        sink.put(block_of([record(0)]))
        sink.close(0)
    seen = []
    monkeypatch.setattr(
        "anchor_server.push_service.host_of", lambda writer: seen.append(writer) or ""
    )
    with serve(tmp_path / "store") as collector:
        push(sink.spool, f"grpc://{collector.address}")
    assert seen == [writer_name()]


def test_a_directory_says_who_holds_its_ranks(tmp_path):
    make_run(tmp_path, [stored_record()], "closed")
    with Writer.open(tmp_path, "run1", 2), Writer.open(tmp_path, "run1", 10):
        done = anchor("status", tmp_path, "--json")
        text = anchor("status", "--store", tmp_path)
    assert (done.code, done.err, text.code) == (0, "", 0)
    assert [(one["run"], one["rank"]) for one in done.json] == [("run1", 2), ("run1", 10)]
    one = done.json[0]
    assert list(one) == FIELDS
    assert one["host"] == socket.gethostname()
    assert abs(seconds_ago(one["since"])) < 60
    assert {one[name] for name in FIELDS[4:]} == {None}
    assert text.out.splitlines()[1].split()[-5:] == ["-"] * 5


def test_a_directory_says_when_a_rank_was_last_written(tmp_path):
    make_run(tmp_path, [stored_record()])
    with Writer.open(tmp_path, "run1", 0, resume=True):
        (one,) = anchor("status", tmp_path, "--json").json
    assert one["last_seen"] == "2023-11-14T22:13:20+00:00"


@pytest.mark.parametrize(
    "signature", ["", "[]", '{"host": 3, "since_ns": -1}', '{"host": "\\u001b[31m", "since_ns": 1}']
)
def test_a_lock_that_is_signed_by_no_one_is_shown_all_the_same(tmp_path, signature):
    with Writer.open(tmp_path, "run1", 0):
        (lock,) = (tmp_path / ".anchor" / "locks").glob("run1.*")
        lock.write_text(signature)
        os.mkfifo(lock.with_name("run2.rank0.lock"))
        done = anchor("status", tmp_path)
        (one,) = anchor("status", tmp_path, "--json").json
    assert (done.code, len(done.out.splitlines()), done.out.replace("\n", "").isprintable()) == (
        0,
        2,
        True,
    )
    assert (one["run"], one["since"] is None) == ("run1", "31m" not in signature)


def test_where_nobody_writes_one_line_says_so(tmp_path, collector):
    make_run(tmp_path / "store", [stored_record()])
    for place in (tmp_path / "store", f"grpc://{collector.address}"):
        done = anchor("status", place)
        assert (done.code, done.out, done.err.count("\n")) == (0, "", 1)
        assert done.err.startswith("anchor: nobody writes into ")
        assert anchor("status", place, "--json").json == []


def test_what_cannot_be_asked_is_one_line(tmp_path):
    with serve(tmp_path / "store") as collector:
        gone = collector.address
    for place, code in ((f"grpc://{gone}", 4), (tmp_path / "none", 2), ("", 2), ("s4://x", 2)):
        done = anchor("status", place)
        assert (done.code, done.out, done.err.count("\n")) == (code, "", 1), place


def test_only_runs_that_may_be_read_are_told(tmp_path, monkeypatch):
    file = tmp_path / "access.toml"
    tokens = {
        name: issue_token(file, name, rights.split(), [runs])
        for name, rights, runs in (
            ("chief", "read write", "*"),
            ("reader", "read", "alice-*"),
            ("writer", "write", "*"),
        )
    }
    with (
        serve(tmp_path / "store", access=file) as collector,
        Pusher(collector.address, run="alice-1", token=tokens["chief"]) as one,
        Pusher(collector.address, run="bob-1", token=tokens["chief"]) as other,
    ):
        assert one.reply().HasField("resume")
        assert other.reply().HasField("resume")
        found = {}
        for name, token in tokens.items():
            monkeypatch.setenv("ANCHOR_TOKEN", token)
            done = asked(collector, "--json")
            found[name] = [one["run"] for one in done.json] if done.code == 0 else done.code
    assert found == {"chief": ["alice-1", "bob-1"], "reader": ["alice-1"], "writer": 4}


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_table_fits_and_keeps_run_rank_and_rates(monkeypatch, capsys, width):
    shown = [
        Writing("a-rather-long-name-of-a-run", 12, "node7.cluster.example.org", 10**18)
        if number == 1
        else Writing(HOSTILE, 7, HOSTILE, 10**18, 1234.5, 3.5e6, 0.25, 1200, 10**18)
        for number in range(2)
    ]
    monkeypatch.setattr("anchorlib.upkeep.keepers_at", lambda place: [_Keeper(shown)])
    monkeypatch.setattr(status, "this_screen", lambda: Screen(width))
    status.show_status("anywhere")
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= width
    assert out.replace("\n", "").isprintable()
    head, first, _ = out.splitlines()
    for title in ("run", "rank", "records/s", "bytes/s", "lag", "backlog"):
        assert title in head
    for cell in (" 7 ", "1234 ", "3.3 MiB", "250 ms", "1200"):
        assert cell in first


class _Keeper:
    def __init__(self, shown: list[Writing]) -> None:
        self._shown = shown

    def archives(self):
        return []

    def writings(self) -> list[Writing]:
        return self._shown


def test_where_no_collector_of_a_list_answers_all_are_named():
    with socket.socket() as one, socket.socket() as other:  # bound, and nobody listens
        for end in (one, other):
            end.bind(("127.0.0.1", 0))
        ports = [end.getsockname()[1] for end in (one, other)]
        done = anchor("status", "--store", "grpc://" + ",".join(f"127.0.0.1:{n}" for n in ports))
    assert (done.code, done.out, done.err.count("\n")) == (4, "", 1)
    assert done.err.startswith("anchor: none of the collectors answers: ")
    assert all(f"127.0.0.1:{port}" in done.err for port in ports)
