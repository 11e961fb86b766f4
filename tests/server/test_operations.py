"""What an operator sees: metrics and logs."""

from __future__ import annotations

import json
import logging
import socket
import sys
import urllib.error
import urllib.request

import pytest

from anchor_server import MetricsPort, issue_token, log_to_stderr, serve
from anchor_server.counters import SECONDS, CollectorCounters
from anchorlib.block import block_of
from anchorlib.claims import claim_of
from anchorlib.errors import CollectorError, MissingExtraError, OptionError
from anchorlib.record import Gap
from anchorlib.wire import Credentials, KeeperClient, PushRequest, ReaderClient, sealed
from anchorlib.wire.messages.checksum import SEAL_BYTES, sealed_bytes
from anchorlib.wire.messages.gaps import gaps_message
from anchorlib.wire.v1.collector_pb2 import Backlog, Close
from tests.cli.made import anchor
from tests.server.processes import served
from tests.server.pushing import Pusher, record
from tests.waiting import until


def scraped(address: str) -> dict[str, float]:
    """Every sample that a scrape finds."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_metrics_count_what_happened_without_naming_a_tensor(tmp_path):
    with serve(tmp_path) as collector:
        port = MetricsPort("127.0.0.1:0", collector.tally, tmp_path)
        with Pusher(collector.address) as stream:
            stream.push(*(record(step, name="n4me") for step in range(5)))
            stream.send(
                sealed(
                    PushRequest(
                        gaps=gaps_message([Gap("n4me", "grad", "all", "line full", 7, 0, 1)])
                    )
                )
            )
            stream.send(sealed(PushRequest(backlog=Backlog(end=9))))
            stream.acked(5)
            stream.encoder.sequence = 3
            stream.push(record(3, name="n4me"), record(4, name="n4me"))
            (frame,) = stream.encoder.encode(block_of([record(5, name="n4me")]))
            # A backlog is counted when it was read, which no acknowledgement says.
            until(lambda: scraped(port.address)["anchor_backlog_records"] == 4.0)
            now = scraped(port.address)
            assert now["anchor_streams"] == 1.0
            assert now['anchor_acked_seq{rank="0",run="run1"}'] == 5.0
            assert now["anchor_lag_seconds"] > 1.0
            body = frame.message[:-SEAL_BYTES]
            stream.send(sealed_bytes(body[:-1] + bytes([body[-1] ^ 1])))
            stream.refusal()
        after = scraped(port.address)
        port.close()
    assert 'anchor_dropped_total{reason="line full"}' in after
    assert after['anchor_records_total{result="stored"}'] == 5.0
    assert after['anchor_records_total{result="dup"}'] == 2.0
    assert after['anchor_records_total{result="rejected"}'] == 1.0
    assert after["anchor_bytes_total"] == 5 * 16.0
    assert after["anchor_crc_errors_total"] == 1.0
    assert after['anchor_dropped_total{reason="line full"}'] == 7.0
    assert after["anchor_commit_seconds_count"] >= 1.0
    assert after["anchor_disk_free_bytes"] > 0
    assert not [name for name in after if "n4me" in name or "acked_seq" in name]


def test_reasons_of_gaps_cannot_grow_without_bound():
    tally = CollectorCounters()
    for number in range(1000):
        tally.drop(f"reason {number}", 1)
    assert len(tally.dropped) <= 17
    assert sum(tally.dropped.values()) == 1000


def test_commits_are_sorted_into_their_buckets(monkeypatch):
    tally, clock = CollectorCounters(), iter([0.0, 0.0, 0.0, 0.5, 0.0, 60.0])
    monkeypatch.setattr("anchor_server.counters.time.monotonic", lambda: next(clock))
    for _ in range(3):
        with tally.commit():
            pass
    assert (tally.commits[0], tally.commits[SECONDS.index(1.0)], tally.commits[-1]) == (1, 1, 1)


@pytest.mark.parametrize("bind", ["0.0.0.0:0", "9464", "nonsense", "127.0.0.1:99999", ":9464"])
def test_a_metrics_port_beyond_this_machine_or_nowhere_is_refused(tmp_path, bind):
    with pytest.raises(OptionError):
        MetricsPort(bind, CollectorCounters(), tmp_path)


def test_a_metrics_port_that_is_taken_is_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        options = ("--bind", "127.0.0.1:0", "--metrics-bind", address)
        done = anchor("serve", "--store", tmp_path, *options)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert f"cannot listen on {address}" in done.err


def test_without_prometheus_client_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtraError, match=r"anchorlib\[metrics\]"):
        MetricsPort("127.0.0.1:0", CollectorCounters(), tmp_path)


@pytest.fixture
def log_as():
    """Logs to stderr as `anchor serve --log-format` does; all is as before at the end."""
    log = logging.getLogger("anchor_server")
    before = (log.handlers, log.level, log.propagate)
    yield log_to_stderr
    log.handlers, log.level, log.propagate = before


def closed_run(address: str) -> None:
    """A whole run of one record, and a hello that is refused."""
    with Pusher(address, writer="\x1b[31mevil\n") as stream:
        stream.push(record(0))
        stream.send(sealed(PushRequest(close=Close())))
        stream.refusal()
    with Pusher(address, run="bad name\x1b[2J\n") as stream:
        stream.refusal()


def test_the_log_as_json_is_one_object_a_line_with_run_rank_writer_and_number(tmp_path):
    with served(tmp_path, "--log-format", "json") as collector:
        closed_run(collector.address)
        code, _, err = collector.end()
    assert code == 0
    said = [json.loads(line) for line in err.splitlines()]
    assert [one["message"] for one in said[:2]] == ["stream begins", "rank closed"]
    assert {**said[1], "time": "", "peer": "", "writer": ""} == {
        "time": "",
        "level": "info",
        "message": "rank closed",
        "run": "run1",
        "rank": 0,
        "writer": "",
        "peer": "",
        "seq": 1,
    }
    assert said[1]["writer"] == claim_of(b"w" * 16).hex()[:32]
    assert (said[2]["code"], "cannot name a run" in said[2]["message"]) == (
        "INVALID_ARGUMENT",
        True,
    )


def test_the_log_as_text_is_a_line_each_that_no_client_can_colour_or_break(tmp_path):
    with served(tmp_path, "--log-format", "text", "--metrics-bind", "127.0.0.1:0") as collector:
        closed_run(collector.address)
        _, _, err = collector.end()
    lines = err.splitlines()
    assert all(line.startswith("anchor: ") and line.isprintable() for line in lines)
    assert lines[0].startswith("anchor: metrics on http://127.0.0.1:")
    assert "anchor: stream begins (run=run1 rank=0 writer=e958" in err


def test_without_a_log_format_only_trouble_is_said(tmp_path, log_as, capsys):
    log_as(None)
    with serve(tmp_path) as collector:
        closed_run(collector.address)
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("anchor: refused: 'bad name")


def test_a_defect_in_the_log_says_where_but_not_with_which_values(log_as, capsys):
    for form in ("json", None):
        log_as(form)
        try:
            raise RuntimeError("c4n4ry")
        except RuntimeError:
            logging.getLogger("anchor_server").exception("the collector failed")
    said = capsys.readouterr().err
    assert ("c4n4ry" in said, "RuntimeError" in said, "test_operations.py:" in said) == (
        False,
        True,
        True,
    )
    assert len(said.splitlines()) == 2


def test_what_is_refused_replaced_and_removed_is_a_line_with_time_peer_identity_and_run(
    tmp_path, log_as, capsys
):
    file = tmp_path / "access.toml"
    chief = issue_token(file, "chief", ["read", "write", "replace", "delete"], ["*"])
    guest = issue_token(file, "guest", ["read", "write"], ["g-*"])
    log_as("json")
    with serve(tmp_path / "store", access=file) as collector:
        url = f"grpc://{collector.address}"
        for writer_id in (
            b"w" * 16,
            b"w" * 16,
            b"o" * 16,
        ):  # the second goes on, the third replaces
            with Pusher(collector.address, token=chief, writer_id=writer_id, overwrite=True) as one:
                one.push(record(0))
                one.send(sealed(PushRequest(close=Close())))
                one.refusal()
        with Pusher(collector.address, token=guest) as one:
            one.refusal()
        with pytest.raises(CollectorError):
            ReaderClient(url, Credentials(token=guest)).get("run1.zarr/zarr.json")
        with pytest.raises(CollectorError):
            KeeperClient(url, Credentials(token=guest)).measure("run1")
        keeper = KeeperClient(url, Credentials(token=chief))
        keeper.rename("run1", "run2")
        keeper.remove("run2")
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    audit = [one for one in said if one["message"].startswith(("refused", "rank repl", "run re"))]
    assert [(one["message"].split(":")[0], one["identity"], one["run"]) for one in audit] == [
        ("rank replaced", "chief", "run1"),
        ("refused", "guest", "run1"),
        ("refused", "guest", "run1"),
        ("refused", "guest", "run1"),
        ("run renamed to run2", "chief", "run1"),
        (audit[-1]["message"], "chief", "run2"),
    ]
    assert audit[-1]["message"].startswith("run removed, ")
    assert all(one["time"] and one["peer"].startswith("ipv4:127.0.0.1:") for one in audit)
