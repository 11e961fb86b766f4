"""The page of many archived ranks, which are not opened, is that of the same ranks read."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from anchorlib.archive import archive_run
from anchorlib.reading import open_run
from anchorlib.report import pooled
from anchorlib.report.document import document_text
from anchorlib.report.gathering import gather
from anchorlib.report.noteworthy import attention
from anchorlib.report.run_view import PageBudget
from anchorlib.store import LocalLocation
from anchorlib.store.check import run_faults
from anchorlib.store.format import INDEX, steps_key
from anchorlib.store.objects import FolderShelf
from anchorlib.store.read import index_bytes, object_name, parsed_index, steps_bytes
from anchorlib.store.seal import StepPool, read_index, step_figures
from tests.cli.made import make_run, record

RANKS, STEPS = 4, 5
RUN = "run1.zarr"


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiting for the disk, which takes most of the time of an archive this small."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _descriptor: None)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose ranks differ in names, phases, steps and values, also such as have no order."""
    place = tmp_path_factory.mktemp("many")
    for rank in range(RANKS):
        make_run(place / "store", records(rank), "run1", rank=rank)
    for number, ranks in enumerate([range(RANKS), reversed(range(RANKS))]):
        part = place / f"part{number}"
        for rank in ranks:  # archived rank by rank, in either order
            make_run(part, records(rank), "run1", rank=rank)
            archive_run(part, "run1", FolderShelf(place / f"archive{number}"))
    return place


def records(rank: int) -> list:
    random = np.random.default_rng(rank)
    found = []
    for step in range(rank % 2, STEPS + rank):
        shared = np.arange(3, dtype=np.float32) + (rank == 3 and step > 1)
        found.append(record("w", "updated", shared, step=step))
        for name in ("fc1", "fc2", *(["own"] if rank == 1 else [])):
            for phase in ("train", *(["eval"] if step == 2 else [])):
                raw = (random.standard_normal(9) * 10.0 ** (7 * rank)).astype(np.float32)
                if (rank, step, name) in ((2, 3, "fc2"), (3, 3, "fc2")):
                    raw[:4] = np.nan, np.inf, -np.inf, 0.0
                if step == 4 and name == "fc1":
                    raw[:] = np.nan
                found.append(record(name, "grad", raw, step=step, phase=phase))
    return found


def shown(run) -> str:
    view = replace(gather(run), live=None, started_ns=0, apart=(), is_pooled=False)
    return document_text([view], [])


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooled, "OPENED", 1)


@pytest.mark.slow
@pytest.mark.usefixtures("many")
def test_the_page_of_many_ranks_is_that_of_the_ranks_read(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = shown(open_run("run1", store / "store"))
    opened: list[str] = []
    whole = LocalLocation.get

    def get(self: LocalLocation, key: str, *part: int) -> bytes | None:
        opened.append(key.partition("/")[0])
        return whole(self, key, *part)

    monkeypatch.setattr(LocalLocation, "get", get)
    for number in (0, 1):
        run = open_run("run1", store / f"archive{number}")
        assert gather(run).is_pooled
        assert shown(run) == read
    assert not {f"rank{rank}" for rank in range(1, RANKS)} & {*opened}, "one rank is opened"


@pytest.mark.slow
def test_ranks_archived_in_any_order_have_the_same_figures(store: Path) -> None:
    first, other = ([*(store / f"archive{one}" / RUN).glob("steps-*")] for one in (0, 1))
    assert [one.name for one in first] == [one.name for one in other]
    assert len(first) == 1


@pytest.mark.usefixtures("many")
def test_a_page_of_added_up_ranks_says_that_none_was_held_against_its_peers(store: Path) -> None:
    told = [one.text for one in attention(gather(open_run("run1", store / "archive0")))]
    assert any("not compared with one another: anchor ranks does that" in one for one in told)


@pytest.mark.slow
def test_few_ranks_are_read_and_held_against_their_peers(store: Path) -> None:
    view = gather(open_run("run1", store / "archive0"))
    assert not view.is_pooled
    assert view.apart


@pytest.mark.slow
@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("damage", ["missing", "cut", "other ranks", "small page"])
def test_without_figures_to_rely_on_the_ranks_are_read(
    store: Path, tmp_path: Path, damage: str
) -> None:
    archive_run(store / "store", "run1", shelf := FolderShelf(tmp_path / "archive"))
    run = tmp_path / "archive" / RUN
    (path,) = run.glob("steps-*")
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    elif damage == "other ranks":
        name_steps(run, [0, 1, 2])
    budget = PageBudget(cells=9) if damage == "small page" else PageBudget()
    assert not gather(open_run("run1", shelf.root), budget=budget).is_pooled
    if damage in ("missing", "cut"):
        assert any(path.name in one for one in run_faults(LocalLocation(run)))
        archive_run(store / "store", "run1", shelf)
        assert [*run_faults(LocalLocation(run))] == []
        assert gather(open_run("run1", shelf.root)).is_pooled


def name_steps(run: Path, ranks: list[int], **lie: object) -> None:
    """Makes the index of a run name the figures of these ranks' steps, or a lie."""
    pool = StepPool()
    for rank in ranks:
        one = read_index(LocalLocation(run), rank)
        assert one is not None
        pool.add(one.by_step)
    total = pool.total()
    assert total is not None
    data = steps_bytes(replace(total, **lie))  # type: ignore[arg-type]
    (run / steps_key(object_name(data))).write_bytes(data)
    known = parsed_index((run / INDEX).read_bytes())
    (run / INDEX).write_bytes(index_bytes(replace(known, by_step=object_name(data))))


@pytest.mark.slow
def test_verify_finds_figures_that_are_not_those_of_the_ranks(store: Path, tmp_path: Path) -> None:
    archive_run(store / "store", "run1", FolderShelf(tmp_path / "archive"))
    run = tmp_path / "archive" / RUN
    assert [*run_faults(LocalLocation(run))] == []
    name_steps(run, [*range(RANKS)], first=None)
    (found,) = run_faults(LocalLocation(run))
    assert found.endswith("tells other figures than the ranks: archive the run again")


@pytest.mark.slow
@pytest.mark.usefixtures("many")
def test_a_long_run_counts_several_steps_together(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_figures, "MOST_CELLS", 14)
    archive_run(store / "store", "run1", shelf := FolderShelf(tmp_path / "archive"))
    few, every = gather(open_run("run1", shelf.root)), gather(open_run("run1", store / "store"))
    assert (few.is_pooled, few.width) == (True, 4)
    assert few.columns.tolist() == [0, 4]
    assert few.steps == every.steps
    assert [line.records for line in few.lines] == [line.records for line in every.lines]
    for name in ("records", "zero", "nan", "inf", "numel"):
        np.testing.assert_array_equal(
            np.nansum(few.figures[name], axis=1), np.nansum(every.figures[name], axis=1)
        )
    assert few.bins.counts.sum() == every.bins.counts.sum()


@pytest.mark.usefixtures("many")
def test_a_rank_that_recorded_nothing_is_archived_with_its_peers(tmp_path: Path) -> None:
    zeros = [record("w", "updated", np.zeros(2, np.float32), step=step) for step in range(2)]
    for rank, own in enumerate([zeros, [], zeros]):
        make_run(tmp_path / "store", own, "run1", rank=rank)
    archive_run(tmp_path / "store", "run1", shelf := FolderShelf(tmp_path / "archive"))
    assert [*run_faults(LocalLocation(shelf.root / RUN))] == []
    run = open_run("run1", shelf.root)
    assert gather(run).is_pooled
    assert shown(run) == shown(open_run("run1", tmp_path / "store"))
