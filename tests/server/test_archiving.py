"""A collector that archives: in the background, and never in the way of what it is for."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from anchor_server import Archiver, Archiving, reader_service, serve
from anchor_server.counters import ArchiveTally
from anchorlib.archive import Keep, archive_run, make_room, shelf_at
from anchorlib.errors import CollectorError, RunNotFoundError, StoreError
from anchorlib.reading import open_run
from anchorlib.store import RankReader, Writer, find_run, list_runs, locate_store, names_beneath
from anchorlib.store.objects import FolderShelf
from tests.anchorlib.reading.runs import make_run, training
from tests.bucket import Line, object_store
from tests.cli.made import anchor
from tests.waiting import until
from tests.writing import put

S3 = "s3://anchors/of/us"


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    with object_store(monkeypatch) as line:
        yield line


def archiver(store: Path, **settings: object) -> tuple[Archiver, ArchiveTally]:
    tally = ArchiveTally()
    how = Archiving(shelf_at(S3), after=0.0, keep=Keep(most=0), **settings)  # type: ignore[arg-type]
    return Archiver(store, how, tally), tally


def test_closed_runs_go_and_the_collector_still_answers_for_them(
    tmp_path: Path, line: Line
) -> None:
    store = make_run(tmp_path / "store")
    here = open_run("run1", store)
    tensors, values = here.tensors(), here.series("fc2", "grad").values().tobytes()
    how = Archiving(shelf_at(S3), after=0.01, keep=Keep(most=0))
    with serve(store, archiving=how) as collector:
        until(lambda: not (store / "run1.zarr").exists(), 60)
        address = f"grpc://{collector.address}"
        assert list_runs(locate_store(address)) == ["run1"]
        there = open_run("run1", address)
        assert there.tensors() == tensors
        assert there.series("fc2", "grad").values().tobytes() == values
        assert collector.tally.archive is not None
        assert collector.tally.archive.runs == 1
        line.trouble = lambda method, path: "503"
        with pytest.raises(CollectorError, match="HTTP 503"):
            open_run("run1", address).series("fc2", "grad").values()


def test_what_is_open_or_written_stays(tmp_path: Path, line: Line) -> None:
    store = make_run(tmp_path / "store", "closed")
    with Writer.open(store, "written", 0) as writer:
        put(writer, training(0))
        worker, tally = archiver(store)
        worker.look()
        assert sorted(path.name for path in store.glob("*.zarr")) == ["written.zarr"]
        assert (tally.runs, tally.failures) == (1, 0)


def test_what_fails_is_tried_again_and_loses_nothing(
    tmp_path: Path, line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    store = make_run(tmp_path / "store")
    worker, tally = archiver(store)
    line.trouble = lambda method, path: "503"
    with caplog.at_level(logging.WARNING):
        worker.look()
        worker.look()
    assert (tally.runs, tally.failures) == (0, 2)
    assert (store / "run1.zarr").exists()
    assert "HTTP 503" in tally.problem
    assert "tried again in 10 s" in caplog.text
    assert "AKIA" not in caplog.text
    line.trouble = lambda method, path: None
    worker.look()
    assert (tally.runs, tally.waiting) == (1, 0)
    assert open_run("run1", S3).tensors() == open_run("run1", store).tensors()


def test_one_run_that_cannot_go_keeps_no_other(tmp_path: Path, line: Line) -> None:
    make_run(tmp_path / "other", "a")
    worker, _ = archiver(tmp_path / "other")
    worker.look()
    store = make_run(make_run(tmp_path / "store", "a"), "b")
    worker, tally = archiver(store)
    worker.look()
    assert (tally.runs, tally.failures) == (1, 1)
    assert "another recording of rank 0" in tally.problem
    assert sorted(path.name for path in store.glob("*.zarr")) == ["a.zarr"]


def test_a_run_of_many_ranks_does_not_keep_the_collector_from_ending(
    tmp_path: Path, line: Line
) -> None:
    store = make_run(tmp_path / "store", ranks=3)
    worker, tally = archiver(store)

    def end_at_the_first_rank(method: str, path: str) -> None:
        if method == "PUT" and "/rank0/" in path:
            worker.end()

    line.trouble = end_at_the_first_rank
    worker.look()
    assert (tally.runs, tally.failures) == (0, 0)
    ranks = {path.split("/rank")[1][0] for method, path in line.asked if "/rank" in path}
    assert ranks == {"0"}
    assert (store / "run1.zarr").exists()
    line.trouble = lambda method, path: None
    worker, tally = archiver(store)
    worker.look()
    assert (tally.runs, tally.waiting) == (1, 0)


def test_what_another_archiver_claims_is_told_and_waited_for(
    tmp_path: Path, line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    claim = {"sealed": "of other bytes", "since_ns": time.time_ns(), "host": "dead-machine"}
    shelf_at(S3).put("run1.zarr/rank0/sealing.json", json.dumps(claim).encode())
    store = make_run(tmp_path / "store")
    worker, tally = archiver(store)
    with caplog.at_level(logging.WARNING):
        worker.look()
        asked = len(line.asked)
        worker.look()
    assert "run1 is not archived: rank 0 is being archived" in caplog.text
    assert "by dead-machine" in tally.problem
    assert (tally.runs, tally.failures) == (0, 1)
    assert not any("rank0" in path for _, path in line.asked[asked:])


def test_whoever_reads_a_run_while_it_goes_reads_on(tmp_path: Path) -> None:
    store, shelf = make_run(tmp_path / "store"), FolderShelf(tmp_path / "archive")
    values = open_run("run1", store).series("fc2", "grad").values().tobytes()
    archive_run(store, "run1", shelf)
    with serve(store) as collector:
        address = f"grpc://{collector.address}"
        opened, live = open_run("run1", address), open_run("run1", address)
        tensors = opened.tensors()
        reader = RankReader(find_run("run1", address).location, 0)
        assert make_room(store, shelf, Keep(most=0)).keys() == {"run1"}
        # Nothing was read but names: rows and values come from the archive, under their old names.
        assert opened.series("fc2", "grad").values().tobytes() == values
        assert not reader.is_sealed
        reader.check_rows(np.arange(reader.committed))
        assert (live.tensors(), live.steps) == (tensors, [0, 1, 2])
        with pytest.raises(RunNotFoundError):
            open_run("run2", address)


def test_a_listing_that_is_overtaken_by_a_removal_is_that_of_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, shelf = make_run(tmp_path / "store", ranks=2), FolderShelf(tmp_path / "archive")
    archive_run(store, "run1", shelf)

    turns = iter(range(100))

    def overtaken(root: str, key: str) -> list[str]:
        names = names_beneath(root, key)
        # The first look finds the run, the second one says which ranks it has.
        if key == "run1.zarr" and names and next(turns) == 1:
            make_room(store, shelf, Keep(most=0))
            return [name for name in names if name != "rank0/"]
        return names

    monkeypatch.setattr(reader_service, "names_beneath", overtaken)
    with serve(store) as collector:
        assert open_run("run1", f"grpc://{collector.address}").ranks == [0, 1]


def test_a_run_that_was_left_open_goes_when_it_was_repaired(tmp_path: Path) -> None:
    store, shelf = tmp_path / "store", FolderShelf(tmp_path / "archive")
    with Writer.open(store, "died", 0) as writer:
        put(writer, training(0))
        writer.abandon()
    tally = ArchiveTally()
    worker = Archiver(store, Archiving(shelf, after=0.0), tally)
    worker.look()
    assert (tally.runs, tally.failures, tally.due) == (0, 0, ())
    refused = anchor("archive", "died", "--to", shelf.place, "--store", store)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "make a closed run of it (anchor repair died --as NAME)" in refused.err
    anchor("repair", "died", "--as", "repaired", "--store", store)
    worker.look()
    assert list_runs(locate_store(shelf.place)) == ["repaired"]
    there = open_run("repaired", shelf.place)
    assert (there.state, there.tensors()) == ("closed", open_run("died", store).tensors())


def test_a_collector_says_what_became_of_closed_runs(tmp_path: Path) -> None:
    for run in ("a", "b"):
        make_run(tmp_path / "store", run)
    archive_run(make_run(tmp_path / "other", "a"), "a", FolderShelf(tmp_path / "archive"))
    how = Archiving(FolderShelf(tmp_path / "archive"), after=0.01, keep=Keep(most=0))
    with serve(tmp_path / "store", archiving=how) as collector:
        assert collector.tally.archive is not None
        tally = collector.tally.archive
        until(lambda: tally.runs and tally.failing and tally.freed, 60)
        address = f"grpc://{collector.address}"
        (told,) = anchor("status", address, "--archives", "--json").json
        why = told["failing"].pop("a")
        assert "another recording of rank 0" in why
        assert told == {
            "store": address,
            "to": how.shelf.place,
            "archived": 1,
            "alone": ["b"],
            "bytes": tally.bytes,
            "waiting": ["a"],
            "failing": {},
            "problem": None,
        }
        shown = anchor("status", address, "--archives").out
        assert shown.startswith(f"{address}: 1 run is archived in {how.shelf.place}, 0 of them are")
        assert f"  a is not archived: {why}" in shown
        assert anchor("status", address, "--json").json == []
        assert f"a is not archived: {why}" in anchor("status", address).err
        runs = anchor("runs", "--store", address, "--json").json
        assert {run["name"]: run.get("archive") for run in runs} == {
            "a": None,
            "b": how.shelf.place,
        }
        assert anchor("gc", "--keep-last", "9", "--dry-run", "--store", address).code == 0


def test_an_archive_that_leads_elsewhere_gives_nothing_of_it_out(tmp_path: Path) -> None:
    store, shelf = make_run(tmp_path / "store"), FolderShelf(tmp_path / "archive")
    archive_run(store, "run1", shelf)
    make_room(store, shelf, Keep(most=0))
    secrets = tmp_path / "secrets"
    (secrets / "rank1").mkdir(parents=True)
    for name in ("password", "rank1/password"):
        (secrets / name).write_text("secret")
    (tmp_path / "archive" / "run1.zarr").rename(tmp_path / "away")
    (tmp_path / "archive" / "run1.zarr").symlink_to(secrets)
    (secrets / "rank0").mkdir()
    (secrets / "rank0" / "c.0").symlink_to(secrets / "password")
    with serve(store) as collector:
        there = locate_store(f"grpc://{collector.address}")
        for key in ("password", "rank1/password"):
            assert there.get(f"run1.zarr/{key}") is None
        with pytest.raises(StoreError, match="is a link"):
            there.get("run1.zarr/rank0/c.0")
        assert there.list("run1.zarr") == ["rank0/"]
        assert there.list("run1.zarr/rank1") == []
