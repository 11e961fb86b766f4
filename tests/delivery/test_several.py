"""Three collectors take the ranks of one run together; one of them is killed, paused, cut off."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from anchor_cli.main import main
from anchor_server import Collector
from anchor_server.stream import RankStream
from anchorlib.block import block_of
from anchorlib.errors import CollectorError, StoreError
from anchorlib.reading import Run, open_run
from anchorlib.record import Gap
from anchorlib.sinks import RunOptions
from anchorlib.sinks.remote import RemoteSink
from anchorlib.spool.spool_folder import SpoolLabel
from anchorlib.store import LocalLocation, RankReader, listed_parts
from anchorlib.summary import SCANS
from anchorlib.wire import Route, by_hash, parse_addresses
from tests.delivery.lines import Proxy, free_port, numbered, push, spools
from tests.waiting import until

RANKS = range(6)
FAILOVER = 1.5  # seconds


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    """A collector that only stops answering is left after these seconds."""
    monkeypatch.setenv("ANCHOR_FAILOVER_SECONDS", str(FAILOVER))


class Cluster:
    """Three collectors, each behind a line of its own; `url` names them all.

    out_of_reach: the addresses that lead to no collector. With `leaves_at_once` a session leaves
        such a collector without waiting for the fail-over time, and every other one never.
    """

    def __init__(self, top: Path) -> None:
        self.out_of_reach: set[str] = set()
        self.stores = [top / f"c{place}" for place in range(3)]
        self.collectors = [Collector(store, "127.0.0.1:0") for store in self.stores]
        for one in self.collectors:
            one.start()
        self.lines = [Proxy(int(one.address.rpartition(":")[2])) for one in self.collectors]
        self.url = "grpc://" + ",".join(line.address for line in self.lines)
        self.spool = top / "spool"

    def __enter__(self) -> Cluster:
        for line in self.lines:
            line.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for line in self.lines:
            line.__exit__()
        for one in self.collectors:
            one.stop(0)

    def sink(self, rank: int = 0, url: str | None = None, **options) -> RemoteSink:
        return RemoteSink(url or self.url, RunOptions("run1", rank, **options), spool=self.spool)

    def home(self, rank: int = 0, part: int = 0) -> int:
        """The place of the collector that is number `part` in the order of a rank."""
        order = by_hash(parse_addresses(self.url), "run1", rank)
        return [line.address for line in self.lines].index(order[part].target)

    def part_from(self, place: int, *, leave: bool = True) -> None:
        """The address leads to no collector, which lives on; `leave`: sessions leave it at once."""
        if leave:
            self.out_of_reach.add(self.lines[place].address)
        self.lines[place].to = free_port()
        self.lines[place].cut()

    def kill(self, place: int, *, leave: bool = True) -> None:
        """Nobody listens there any more."""
        self.part_from(place, leave=leave)
        self.collectors[place].stop(0)

    def revive(self, place: int) -> None:
        one = self.collectors[place] = Collector(self.stores[place], "127.0.0.1:0")
        one.start()
        self.lines[place].to = int(one.address.rpartition(":")[2])
        self.lines[place].mode = "pass"
        self.out_of_reach.discard(self.lines[place].address)

    def leaves_at_once(self, patch: pytest.MonkeyPatch) -> None:
        """Where it is known who is away, no clock has to tell: see `out_of_reach`."""
        stated = Route.seconds

        def seconds(route: Route) -> float:
            if not route.is_spread:
                return stated.fget(route)
            return 0.0 if route.address.target in self.out_of_reach else 600.0

        patch.setattr(Route, "seconds", property(seconds))


@pytest.fixture
def patient(tmp_path):
    """A cluster whose collectors are left after the seconds that are stated."""
    with Cluster(tmp_path) as made:
        yield made


@pytest.fixture
def cluster(patient, monkeypatch):
    patient.leaves_at_once(monkeypatch)
    return patient


def put(sink: RemoteSink, first: int, end: int) -> None:
    for start in range(first, end, 10):
        sink.put(block_of([numbered(n) for n in range(start, min(start + 10, end))]))


def arrive(sinks: list[RemoteSink]) -> None:
    for one in [sink.flush() for sink in sinks]:
        one.wait(60)


def check(run: Run, end: int, rank: int = 0) -> None:
    """Records 0 … end - 1 are there, once, in order, bit for bit."""
    reader, rows = run.rows(rank)
    names = [reader.catalogue.series[n].name for n in reader.series_ids[rows].tolist()]
    found = zip(names, reader.column("step")[rows].tolist(), rows.tolist(), strict=True)
    wanted = [numbered(n) for n in range(end)]
    assert [(name, step) for name, step, _ in found] == [
        (one.name, one.coordinates.step) for one in wanted
    ]
    for one, row in zip(wanted, rows.tolist(), strict=True):
        assert reader.raw(row).tobytes() == one.raw.tobytes()
    reader.check_rows(rows)


def killed(cluster: Cluster, victim: int, patch: pytest.MonkeyPatch) -> None:
    cluster.leaves_at_once(patch)
    cluster.kill(victim)


def cut_off(cluster: Cluster, victim: int, _: pytest.MonkeyPatch) -> None:
    """Packets to and from it vanish, and those that come later find nobody."""
    cluster.lines[victim].mode = "blackhole"


def paused(cluster: Cluster, victim: int, patch: pytest.MonkeyPatch) -> None:
    """It stops where it is, and goes on with what had arrived once everyone has left it."""
    go_on = threading.Event()
    _meet(cluster, victim, patch, before=lambda: go_on.wait(20))
    cluster.go_on = go_on.set


def silenced(cluster: Cluster, victim: int, patch: pytest.MonkeyPatch) -> None:
    """It commits, and nobody hears of it: the line goes between commit and acknowledgement."""

    def swallow() -> None:
        cluster.lines[victim].mode = "blackhole"

    _meet(cluster, victim, patch, after=swallow)


def _meet(cluster, victim, patch, before=lambda: None, after=lambda: None) -> None:
    commit, mine = RankStream._put, cluster.stores[victim]

    def met(self, block):
        here = self._writer._place.store == mine
        if here:
            before()
        commit(self, block)
        if here:
            after()

    patch.setattr(RankStream, "_put", met)


@pytest.mark.parametrize(
    "fate",
    [killed, silenced, *(pytest.param(fate, marks=pytest.mark.long) for fate in (cut_off, paused))],
)
def test_nothing_is_lost_doubled_or_wrong_where_a_collector_is(
    fate, patient, tmp_path, monkeypatch, caplog
):
    cluster = patient
    sinks = [cluster.sink(rank) for rank in RANKS]
    for sink in sinks:
        put(sink, 0, 40)
    arrive(sinks)
    victim = cluster.home(0)
    fate(cluster, victim, monkeypatch)
    left = [rank for rank in RANKS if cluster.home(rank) == victim]
    for sink in sinks:
        put(sink, 40, 90)
    arrive(sinks)
    if fate is paused:
        cluster.go_on()
    for sink in sinks:
        put(sink, 90, 120)
    assert [sink.close(60) for sink in sinks] == [0] * len(sinks)
    said = re.findall(r"stays away; rank (\d+)", caplog.text)
    assert set(left) <= set(map(int, said))
    monkeypatch.undo()
    if fate is killed:
        cluster.revive(victim)
    cluster.lines[victim].mode = "pass"
    run = open_run("run1", cluster.url)
    assert (run.ranks, run.state) == ([*RANKS], "closed")
    assert sum(info.records for info in run.tensors()) == 120 * len(RANKS)
    copied = open_run("run1", together(cluster, tmp_path / "together"))
    for rank in RANKS:
        check(copied, 120, rank)
    told = sum(one.committed for store in cluster.stores for one in parts_in(store))
    assert told >= 120 * len(RANKS)
    if fate is paused or fate is silenced:
        assert told > 120 * len(RANKS)
    assert not spools(cluster.spool)


def parts_in(store: Path) -> list[RankReader]:
    """What one collector has of run1."""
    if not (store / "run1.zarr").exists():  # it is the first of no rank
        return []
    location = LocalLocation(store / "run1.zarr")
    return [RankReader(location, rank, part=part) for rank, part in listed_parts(location)]


def together(cluster: Cluster, place: Path) -> Path:
    """The stores of all collectors, copied into one directory."""
    for store in cluster.stores:
        if parts_in(store):
            shutil.copytree(store / "run1.zarr", place / "run1.zarr", dirs_exist_ok=True)
    return place


def moved(cluster: Cluster) -> RemoteSink:
    """A session of rank 0 whose records 0 … 49 are at its first collector, the rest at the next."""
    sink = cluster.sink()
    put(sink, 0, 50)
    arrive([sink])
    cluster.kill(cluster.home())
    put(sink, 50, 80)
    arrive([sink])
    return sink


def test_a_run_is_read_whole_or_not_at_all(cluster):
    moved(cluster).close(20)
    address = cluster.lines[cluster.home()].address
    with pytest.raises(CollectorError, match=re.escape(address)) as error:
        open_run("run1", cluster.url)
    assert "\n" not in str(error.value)
    with pytest.raises(StoreError, match=r"records 0 to \d+ of rank 0 of run1 are not here"):
        open_run("run1", f"grpc://{cluster.lines[cluster.home(part=1)].address}")
    cluster.revive(cluster.home())
    check(open_run("run1", cluster.url), 80)


def test_stores_that_are_put_together_in_one_place_are_one_run(cluster, tmp_path):
    sinks = [cluster.sink(rank) for rank in RANKS]
    for sink in sinks:
        put(sink, 0, 20)
    arrive(sinks)
    cluster.kill(cluster.home())
    for sink in sinks:
        put(sink, 20, 40)
    assert not any(sink.close(30) for sink in sinks)
    place = together(cluster, tmp_path / "together")
    run = open_run("run1", place)
    for rank in RANKS:
        check(run, 40, rank)
    assert main(["verify", "run1", "--store", str(place)]) == 0
    assert main(["repair", "run1", "--store", str(place)]) == 2
    assert main(["push", "run1", "--store", str(place), "--to", str(tmp_path / "whole")]) == 0
    check(open_run("run1", tmp_path / "whole"), 40)
    assert not [*(tmp_path / "whole").glob("run1.zarr/*.p*")]
    for part in parts_in(place):
        if part.rank == 0 and part.catalogue.state != "closed":  # all but the last
            shutil.rmtree(place / "run1.zarr" / f"rank0{f'.p{part.part}' if part.part else ''}")
    with pytest.raises(StoreError, match=r"records 0 to \d+ of rank 0 of run1 are not here"):
        open_run("run1", place)
    assert main(["verify", "run1", "--store", str(place)]) == 1


def test_a_spool_left_behind_is_delivered_as_a_part(cluster):
    sink = moved(cluster)
    for place in range(3):
        cluster.kill(place)
    put(sink, 80, 120)
    sink.close(0.1)
    (folder,) = spools(cluster.spool)
    label = SpoolLabel.read(folder)
    assert label is not None
    for place in range(3):
        cluster.revive(place)
    assert label.to in {f"grpc://{line.address}" for line in cluster.lines}
    assert label.to in sink._warnings.push_line
    push(folder, label.to)
    check(open_run("run1", cluster.url), 120)
    assert not spools(cluster.spool)


@pytest.mark.parametrize("to", ["list", "third", "first"])
def test_a_spool_goes_to_any_of_the_collectors_where_its_own_is_gone(to, cluster):
    sink = moved(cluster)
    second = cluster.home(part=1)
    cluster.kill(second, leave=False)
    put(sink, 80, 120)
    sink.close(0.1)
    (folder,) = spools(cluster.spool)
    cluster.part_from(second)
    cluster.revive(cluster.home())
    if to == "list":
        push(folder, cluster.url, patience=2.0)
    else:
        place = cluster.home(part=2 if to == "third" else 0)
        push(folder, f"grpc://{cluster.lines[place].address}")
    cluster.revive(second)
    run = open_run("run1", cluster.url)
    check(run, 120)
    assert not spools(cluster.spool)


def test_the_next_attempt_delivers_what_is_left_although_its_collector_is_gone(
    cluster, monkeypatch
):
    sink = moved(cluster)
    cluster.revive(cluster.home())
    second = cluster.home(part=1)
    cluster.kill(second, leave=False)
    put(sink, 80, 120)
    sink.close(0.1)
    assert spools(cluster.spool)
    monkeypatch.undo()
    monkeypatch.setenv("ANCHOR_FAILOVER_SECONDS", str(FAILOVER))  # what tells it that this is gone
    resumed = cluster.sink(resume=True, restart=1)
    resumed.put(block_of([numbered(n) for n in range(120, 130)]))
    assert resumed.close(60) == 0
    cluster.revive(second)
    run = open_run("run1", cluster.url)
    check(run, 130)
    assert len(run.rows(0)[0].catalogue.attempts) == 2
    assert not spools(cluster.spool)


def test_attempts_follow_the_restarts_of_the_job_wherever_they_are(cluster):
    """The first attempt's collector is away: the second one is recorded where the first is not."""
    moved(cluster).close(20)
    resumed = cluster.sink(resume=True, restart=1)
    put(resumed, 60, 90)
    assert resumed.close(20) == 0
    cluster.revive(cluster.home())
    again = cluster.sink(resume=True, restart=2)
    put(again, 85, 100)
    assert again.close(20) == 0
    run = open_run("run1", cluster.url)
    check(run, 100)
    reader, rows = run.rows(0)
    attempts = reader.column("attempt")[rows].tolist()
    assert attempts == [0] * 60 + [1] * 25 + [2] * 15
    assert [one.restart for one in reader.catalogue.attempts] == [None, 1, 2]


def test_a_run_that_is_recorded_anew_has_nothing_of_the_old_one(cluster):
    moved(cluster).close(20)
    cluster.revive(cluster.home())
    anew = cluster.sink(overwrite=True)
    put(anew, 0, 30)
    assert anew.close(20) == 0
    run = open_run("run1", cluster.url)
    check(run, 30)
    assert len(run.rows(0)[0].catalogue.attempts) == 1


def test_two_recordings_of_one_name_are_not_taken_for_one(cluster):
    cluster.kill(cluster.home())
    sink = cluster.sink()
    put(sink, 0, 10)
    assert sink.close(20) == 0
    cluster.revive(cluster.home())
    other = cluster.sink()
    put(other, 0, 10)
    assert other.close(20) == 0
    with pytest.raises(StoreError, match="rank 0 of run1 was recorded twice under this name"):
        open_run("run1", cluster.url)


def test_gaps_and_lineage_are_told_to_each_collector_and_count_once(cluster):
    sink = cluster.sink()
    sink.gap([Gap("fc1", "grad", "all", "queue full", 3, 0, 2)])
    sink.header({"torch.backend": "eager"})
    put(sink, 0, 10)
    arrive([sink])
    cluster.kill(cluster.home())
    sink.gap([Gap("fc1", "grad", "all", "queue full", 5, 0, 12)])
    put(sink, 10, 20)
    assert sink.close(20) == 0
    cluster.revive(cluster.home())
    run = open_run("run1", cluster.url)
    assert run.gaps() == [Gap("fc1", "grad", "all", "queue full", 5, 0, 12)]
    assert run.header()["torch.backend"] == "eager"


def test_a_session_that_went_round_goes_on_where_it_began(cluster):
    """First, second, third, and the first again, each for some records."""
    sink = cluster.sink()
    put(sink, 0, 10)
    arrive([sink])
    for part in range(3):
        cluster.kill(cluster.home(part=part))
        if part == 2:
            cluster.revive(cluster.home())
        put(sink, 10 * part + 10, 10 * part + 20)
        arrive([sink])
    assert sink.close(20) == 0
    for part in (1, 2):
        cluster.revive(cluster.home(part=part))
    run = open_run("run1", cluster.url)
    check(run, 40)
    assert len(run.rows(0)[0].catalogue.attempts) == 1


def test_a_live_run_grows_under_its_reader_while_it_moves(cluster):
    sink = cluster.sink()
    put(sink, 0, 10)
    arrive([sink])
    run = open_run("run1", "grpc://" + ",".join(one.address for one in cluster.collectors))
    check(run, 10)
    cluster.part_from(cluster.home())  # the reader has lines of its own
    put(sink, 10, 20)
    arrive([sink])
    check(run, 20)
    put(sink, 20, 30)
    arrive([sink])
    check(run, 30)
    assert sink.close(20) == 0
    assert run.state == "closed"


def test_one_address_waits_for_its_collector_however_long_it_is_away(cluster, monkeypatch):
    monkeypatch.setattr("anchorlib.spool.sending._FIRST_BACKOFF", 0.001)
    sink = cluster.sink(url=f"grpc://{cluster.lines[0].address}")
    put(sink, 0, 10)
    arrive([sink])
    cluster.kill(0)
    put(sink, 10, 20)
    until(lambda: sink.retries > 8)
    cluster.revive(0)
    assert sink.close(20) == 0
    (reader,) = parts_in(cluster.stores[0])
    assert (reader.committed, reader.part, len(reader.catalogue.attempts)) == (20, 0, 1)
    assert reader.catalogue.attempts[0].begins == ""


def test_runs_of_several_collectors_are_removed_and_renamed_whole(cluster, capsys):
    moved(cluster).close(20)
    assert main(["rm", "run1", "--store", cluster.url]) == 4
    cluster.revive(cluster.home())
    check(open_run("run1", cluster.url), 80)
    assert main(["mv", "run1", "run2", "--store", cluster.url]) == 0
    check(open_run("run2", cluster.url), 80)
    assert main(["names", "run2", "--store", cluster.url]) == 0
    assert main(["rm", "run2", "--store", cluster.url]) == 0
    capsys.readouterr()
    assert main(["runs", "--json", "--store", cluster.url]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert not any(path for store in cluster.stores for path in store.glob("*.zarr"))


def test_every_reader_takes_the_list(cluster, tmp_path, monkeypatch, capsys):
    moved(cluster).close(20)
    cluster.revive(cluster.home())
    monkeypatch.setenv("ANCHOR_STORE", cluster.url)
    monkeypatch.setattr(SCANS, "load", lambda: None)  # doctor starts a compiler, for seconds
    selector = ["--tensor", "fc1@grad"]
    for command in (
        ["names", "run1"],
        ["runs"],
        ["hist", "run1", *selector],
        ["stats", "run1", *selector],
        ["pull", "run1", *selector, "--step", "0:80", "-o", str(tmp_path / "fc1.csv")],
        ["compare", "run1", f"{cluster.url}/run1"],
        ["verify", "run1"],
        ["report", "run1", "-o", str(tmp_path / "run1.html")],
        ["status"],
        ["doctor"],
        ["gc", "--keep-last", "1", "--dry-run"],
        ["push", "run1", "--to", str(tmp_path / "copy")],
    ):
        assert main(command) == 0, (command, capsys.readouterr())
    check(open_run("run1", tmp_path / "copy"), 80)
    cluster.kill(cluster.home())
    capsys.readouterr()
    for command in (["names", "run1"], ["hist", "run1", *selector], ["runs"], ["status"]):
        assert main(command) == 4, command
        (line,) = capsys.readouterr().err.splitlines()
        assert cluster.lines[cluster.home()].address in line


@contextlib.contextmanager
def processes(tmp_path: Path) -> Iterator[tuple[list[subprocess.Popen[str]], list[str]]]:
    """Three `anchor serve` of their own, and their addresses."""
    running = [serve(tmp_path / f"c{place}", "127.0.0.1:0") for place in range(3)]
    try:
        yield running, [address_of(process) for process in running]
    finally:
        for process in running:
            end(process)


def end(process: subprocess.Popen[str]) -> None:
    """kill -9, which a stopped process obeys too."""
    with process:  # closes its pipe
        process.kill()


def serve(store: Path, bind: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "anchor_cli", "serve", "--store", str(store), "--bind", bind]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def address_of(process: subprocess.Popen[str]) -> str:
    """Where a collector listens, once it does."""
    assert process.stdout is not None
    return process.stdout.readline().split(" on ")[1].split(" into ")[0].strip()


@pytest.mark.long
def test_collectors_that_are_killed_and_stopped_lose_nothing(tmp_path):
    """Real processes: SIGSTOP past the fail-over, then kill -9 of another, then both come back."""
    with processes(tmp_path) as (collectors, addresses):
        url = "grpc://" + ",".join(addresses)
        options = [RunOptions("run1", rank) for rank in RANKS]
        sinks = [RemoteSink(url, one, spool=tmp_path / "spool") for one in options]
        for sink in sinks:
            put(sink, 0, 30)
        arrive(sinks)
        stopped = addresses.index(sinks[0].address.target)
        collectors[stopped].send_signal(signal.SIGSTOP)
        for sink in sinks:
            put(sink, 30, 60)
        arrive(sinks)
        killed = addresses.index(sinks[0].address.target)
        assert killed != stopped
        end(collectors[killed])
        collectors[stopped].send_signal(signal.SIGCONT)
        for sink in sinks:
            put(sink, 60, 90)
        assert [sink.close(60) for sink in sinks] == [0] * len(sinks)
        collectors[killed] = serve(tmp_path / f"c{killed}", addresses[killed])
        assert address_of(collectors[killed]) == addresses[killed]
        run = open_run("run1", url)
        assert run.state == "closed"
        for rank in RANKS:
            reader, rows = run.rows(rank)
            assert reader.column("step")[rows].tolist() == list(range(90))
