"""What writers may spend: what is beyond a limit waits, is counted, and comes when it may."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchor_server import Collector, MetricsPort, issue_token, serve
from anchor_server.limits import Meter, SharedRate
from anchor_server.refusals import Refusal
from anchor_server.tokens import parse_access
from anchorlib.block import block_of
from anchorlib.errors import OptionError
from anchorlib.store import Writer, run_directory
from anchorlib.wire import FailureKind, PushRequest, sealed
from anchorlib.wire.v1.collector_pb2 import Close
from tests.cli.made import anchor
from tests.delivery.lines import sink_to
from tests.server.pushing import Pusher, expected, record, stored
from tests.server.test_operations import scraped
from tests.server.test_refusals import told
from tests.waiting import until

LIMITS = {
    "max_streams": ("2", FailureKind.STREAMS),
    "max_rate": ('"2kB"', FailureKind.RATE),
    "max_runs": ("1", FailureKind.RUNS),
    "max_run_inodes": ("80", FailureKind.INODES),
}


def served_with(tmp_path, limit: str, value: str, *, own: bool):
    """A collector with one limit: of the token that everyone shows, or of itself."""
    file = tmp_path / "access.toml"
    token = issue_token(file, "alice", ["read", "write"], ["*"])
    if own:
        with file.open("a") as text:
            text.write(f"{limit} = {value}\n")
        return serve(tmp_path / "store", access=file), token
    number = 2000 if limit == "max_rate" else int(value)
    setting = limit.replace("inodes", "files")
    return serve(tmp_path / "store", access=file, **{setting: number}), token


def recorded(collector: Collector, token: str, run: str) -> FailureKind | None:
    with Pusher(collector.address, token=token, run=run) as stream:
        stream.push(record(0))
        stream.send(sealed(PushRequest(close=Close())))
        return stream.kind()


def spend(limit: str, collector: Collector, token: str, streams: list[Pusher]) -> Pusher:
    """All that a limit lets in, by others; then the stream that goes beyond it."""
    if limit == "max_streams":
        for rank in range(2):
            streams.append(Pusher(collector.address, token=token, run="others", rank=rank))
            streams[-1].reply()
    if limit == "max_runs":
        assert recorded(collector, token, "others") is None
    beyond = Pusher(collector.address, token=token, run="run1")
    if limit == "max_rate":
        beyond.push(record(0, 4096))
        beyond.acked(1)
    if limit == "max_run_inodes":
        beyond.push(*(record(0, size) for size in range(1, 60)))
    return beyond


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("limit", LIMITS)
def test_what_is_beyond_a_limit_is_refused_with_its_kind_and_counted(tmp_path, limit, own):
    value, kind = LIMITS[limit]
    streams: list[Pusher] = []
    serving, token = served_with(tmp_path, limit, value, own=own)
    with serving as collector:
        port = MetricsPort("127.0.0.1:0", collector.tally, tmp_path)
        with spend(limit, collector, token, streams) as beyond:
            assert beyond.kind() is kind
        for stream in streams:
            stream.cut()
        counted = scraped(port.address)[f'anchor_refusals_total{{reason="{kind}"}}']
        port.close()
    assert (counted, kind.full, kind.passing) == (1.0, True, True)


@pytest.mark.parametrize("limit", LIMITS)
def test_a_trainer_beyond_a_limit_says_which_once_and_loses_nothing(
    tmp_path, limit, monkeypatch, caplog
):
    value, kind = LIMITS[limit]
    streams: list[Pusher] = []
    sizes = range(1, 41) if limit == "max_run_inodes" else [64 << 10] * 12
    if limit == "max_rate":
        value = '"4MB"'
        monkeypatch.setattr("anchor_server.limits._BURST_SECONDS", 0.025)
    records = [record(step, size) for step, size in enumerate(sizes)]
    serving, token = served_with(tmp_path, limit, value, own=True)
    monkeypatch.setenv("ANCHOR_TOKEN", token)
    with serving as collector:
        if limit != "max_rate":
            spend(limit, collector, token, streams).cut()
        caplog.clear()
        sink = sink_to(collector.address, tmp_path / "spools", resume=True)
        refused = collector.tally.refused[kind]
        for one in records:
            sink.put(block_of([one]))
        until(lambda: collector.tally.refused[kind] > refused + 1)
        for stream in streams:
            stream.cut()
        if limit == "max_runs":
            run_directory(collector.store, "others").rename(tmp_path / "others")
        if limit == "max_run_inodes":
            file = tmp_path / "access.toml"
            file.write_text(file.read_text().replace("inodes = 80", "inodes = 5000"))
            collector.renew()
        assert sink.close(60) == 0
    assert stored(collector.store)[-len(records) :] == expected(records)
    said = [line for line in told(caplog, "anchorlib") if "limit" in line or "max_" in line]
    assert len(said) == 1
    assert limit in said[0]


def test_runs_are_counted_for_whoever_made_them(tmp_path):
    file = tmp_path / "access.toml"
    tokens = [issue_token(file, name, ["read", "write"], ["*"]) for name in ("alice", "bob")]
    file.write_text(file.read_text().replace("[[token]]", "[[token]]\nmax_runs = 2"))
    with serve(tmp_path / "store") as before:
        assert recorded(before, None, "old") is None
    with serve(tmp_path / "store", access=file, max_runs=4) as collector:
        for run in ("a", "b"):
            assert recorded(collector, tokens[0], run) is None
        assert recorded(collector, tokens[0], "c") is FailureKind.RUNS
        assert recorded(collector, tokens[0], "a") is None  # it goes on with those there are
        assert recorded(collector, tokens[1], "d") is None
        assert recorded(collector, tokens[1], "e") is FailureKind.RUNS  # of all: four are there
        assert sorted(path.stem for path in collector.store.glob("*.zarr")) == [
            "a",
            "b",
            "d",
            "old",
        ]


@pytest.mark.parametrize("most", [None, 1])
def test_a_run_that_is_being_made_keeps_no_other_waiting_and_counts(tmp_path, monkeypatch, most):
    opened, go_on = threading.Event(), threading.Event()
    real = Writer.open

    def slowly(store, run, rank, **options):
        if run == "slow":
            opened.set()
            go_on.wait(20)
        return real(store, run, rank, **options)

    monkeypatch.setattr("anchor_server.rank_holders.Writer.open", slowly)
    with serve(tmp_path / "store", max_runs=most) as collector:
        slow = Pusher(collector.address, run="slow")
        assert opened.wait(20)
        assert recorded(collector, None, "fast") is (None if most is None else FailureKind.RUNS)
        go_on.set()
        slow.reply()
        slow.cut()


def test_beyond_the_bytes_of_a_tokens_run_values_are_left_out(tmp_path):
    serving, token = served_with(tmp_path, "max_run_size", '"2MiB"', own=True)
    with serving as collector, Pusher(collector.address, token=token) as stream:
        stream.push(*(record(step, 64 << 10) for step in range(40)))
        stream.acked(40)
        assert 0 < collector.tally.dropped["no room in the store"] < 40


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(1, 5000)), max_size=40))
def test_no_rate_is_passed_by_more_than_a_burst_and_one_batch(visits):
    now, rate, sent, largest = 0.0, 100, 0, 0
    meter = Meter(lambda: now)
    for pause, nbytes in visits:
        now += pause
        try:
            meter.check("x", rate)
        except Refusal:
            continue
        largest = max(largest, nbytes)
        sent += nbytes
        with contextlib.suppress(Refusal):
            meter.spend("x", rate, nbytes)
        assert sent <= rate * now + 4 * rate + largest
    now += 4 + largest / rate * 2  # whatever came: who waits is let in again
    meter.check("x", rate)
    meter.check("y", None)


def test_a_token_that_sends_little_is_not_made_to_wait_for_one_that_sends_much():
    now, rate = 0.0, 1000
    shares, refused = SharedRate(rate, lambda: now), Counter[str]()

    def send(name: str, nbytes: int) -> None:
        try:
            shares.check(name)
            shares.spend(name, nbytes)
        except Refusal:
            refused[name] += 1

    for _ in range(400):
        now += 0.25
        send("greedy", 2000)
        send("modest", 100)  # 400 a second: less than half of the rate
    assert refused["modest"] == 0
    assert refused["greedy"] > 200
    now += 100  # the modest one has gone: the other may have all of it
    shares.check("greedy")


@given(st.lists(st.tuples(st.floats(0, 20), st.sampled_from("abc"), st.integers(1, 5000))))
def test_what_tokens_share_is_passed_by_no_more_than_two_bursts_and_a_batch_each(visits):
    now, rate, sent = 0.0, 99, 0
    largest: dict[str, int] = {}
    shares = SharedRate(rate, lambda: now)
    for pause, name, nbytes in visits:
        now += pause
        try:
            shares.check(name)
        except Refusal:
            continue
        largest[name] = max(largest.get(name, 0), nbytes)
        sent += nbytes
        with contextlib.suppress(Refusal):
            shares.spend(name, nbytes)
        assert sent <= rate * now + 2 * 4 * rate + sum(largest.values())


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("max_rate = 0", "max_rate must be a size"),
        ("max_rate = '0B'", "a size must be above zero"),
        ("max_rate = 'fast'", "is no size"),
        ("max_run_size = true", "max_run_size must be a size"),
        ("max_streams = '3'", "max_streams must be a whole number"),
        ("max_runs = -1", "max_runs must be a whole number"),
        ("max_run_inodes = 1.5", "max_run_inodes must be a whole number"),
    ],
)
def test_what_is_no_limit_is_named(limit, words):
    text = f'[[token]]\nname = "a"\nhash = "sha256:{"0" * 64}"\nrights = "read"\nruns = "*"\n'
    parse_access(text, "f")
    with pytest.raises(OptionError, match=words):
        parse_access(text + limit, "f")


@pytest.mark.parametrize("rate", ["0", "0/s", "fast", "-1"])
def test_a_rate_that_cannot_be_is_refused_in_one_line(tmp_path, rate):
    done = anchor("serve", "--store", tmp_path, "--bind", "127.0.0.1:0", "--max-rate", rate)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "--max-rate" in done.err
