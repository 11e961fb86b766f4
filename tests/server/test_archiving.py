"""A collector that archives: in the background, and never in the way of what it is for."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from anchor_server import Archiver, Archiving, serve
from anchor_server.tally import ArchiveTally
from anchorlib.archive import Keep, shelf_at
from anchorlib.errors import CollectorError
from anchorlib.reading import open_run
from anchorlib.store import Writer, list_runs, locate_store
from tests.anchorlib.reading.runs import make_run, training
from tests.bucket import Line, object_store
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
