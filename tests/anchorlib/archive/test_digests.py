"""The digests of an archived run fit its index at every moment; false ones are found."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import anchorlib
from anchorlib.archive import Keep, archive_run, make_room
from anchorlib.store import RunReader
from anchorlib.store.check import run_faults
from anchorlib.store.format import INDEX, digests_key
from anchorlib.store.locations import LocalLocation
from anchorlib.store.objects import FolderShelf
from anchorlib.store.read import digests_bytes, index_bytes, object_name, parsed_index
from anchorlib.store.runs.archived_files import ArchivedRuns
from anchorlib.store.seal import RankDigests, deflated
from anchorlib.store.seal.rank_index import index_document, read_index
from tests.anchorlib.peers.jobs import as_drawn, of_rank
from tests.cli.made import anchor, make_run

RANKS = (0, 1)


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiting for the disk, which takes most of the time of an archive this small."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _descriptor: None)


@pytest.fixture
def archive(tmp_path: Path) -> FolderShelf:
    return FolderShelf(tmp_path / "archive")


@pytest.fixture
def run(tmp_path: Path, archive: FolderShelf) -> Path:
    """The archived folder of a run of two ranks, whose files are in the store too."""
    for rank in RANKS:
        record(tmp_path, rank)
    archive_run(tmp_path / "store", "run1", archive)
    return archive.root / "run1.zarr"


def record(place: Path, rank: int) -> None:
    """Records one more rank in the store."""
    make_run(place / "store", of_rank(rank, 2, as_drawn), "run1", rank=rank)


def digests_in(run: Path) -> list[Path]:
    return sorted(run.glob("digests-*"))


def digests(run: Path) -> dict[int, RankDigests]:
    reader = RunReader(LocalLocation(run), "run1")
    reader.refresh()
    return reader.digests()


def is_sound(run: Path) -> bool:
    return [*run_faults(LocalLocation(run))] == []


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["missing", "cut", "other"])
def test_archiving_again_mends_digests(
    tmp_path: Path, run: Path, archive: FolderShelf, damage: str
) -> None:
    (path,) = digests_in(run)
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(whole[:-9] if damage == "cut" else b"something else")
    found = anchor("verify", "run1", "--store", archive.root)
    assert found.code == 1
    assert f"{path.name} is not what the index says of it: archive the run again" in found.out
    archive_run(tmp_path / "store", "run1", archive)
    assert [one.read_bytes() for one in digests_in(run)] == [whole]
    assert anchor("verify", "run1", "--store", archive.root).code == 0


class Watched(FolderShelf):
    """A shelf that says of each object that is put, swapped or removed, before that is done."""

    def __init__(self, root: Path, changing: Callable[[str], None]) -> None:
        super().__init__(root)
        self._changing = changing

    def put(self, key: str, data: bytes) -> None:
        self._changing(key)
        super().put(key, data)

    def swap(self, key: str, data: bytes, tag: str) -> bool:
        self._changing(key)
        return super().swap(key, data, tag)

    def remove(self, key: str) -> None:
        self._changing(key)
        super().remove(key)


@pytest.mark.slow
def test_whoever_adds_a_rank_leaves_the_archive_sound_at_every_moment(
    tmp_path: Path, run: Path, archive: FolderShelf
) -> None:
    seen: list[str] = []

    def sound(key: str) -> None:
        if key.rpartition("/")[0] == "run1.zarr":
            seen.append(key)
            assert is_sound(run)
            assert digests(run).keys() >= {*RANKS}

    record(tmp_path, 2)
    archive_run(tmp_path / "store", "run1", Watched(archive.root, sound))
    assert len(seen) == 5, "digests and steps put, index swapped, those of before removed"
    assert is_sound(run)
    assert digests(run).keys() == {0, 1, 2}
    assert len(digests_in(run)) == 1


@pytest.mark.slow
def test_a_slow_archiver_leaves_the_digests_of_a_fast_one(
    tmp_path: Path, run: Path, archive: FolderShelf
) -> None:
    def overtaken(key: str) -> None:
        if "digests-" in key and not passed:
            passed.append(key)
            record(tmp_path / "fast", 3)
            archive_run(tmp_path / "fast/store", "run1", archive)

    passed: list[str] = []
    record(tmp_path, 2)
    archive_run(tmp_path / "store", "run1", Watched(archive.root, overtaken))
    assert passed
    assert is_sound(run)
    assert digests(run).keys() == {0, 1, 2, 3}
    assert len(digests_in(run)) == 1


@pytest.mark.slow
def test_a_rank_that_comes_during_verify_is_no_damage(
    tmp_path: Path, run: Path, archive: FolderShelf
) -> None:
    class Moving(LocalLocation):
        def get(self, key: str, start: int = 0, length: int | None = None) -> bytes | None:
            if key.startswith("digests-") and not moved:
                moved.append(key)
                record(tmp_path, 2)
                archive_run(tmp_path / "store", "run1", archive)
            return super().get(key, start, length)

    moved: list[str] = []
    assert [*run_faults(Moving(run))] == []
    assert moved
    assert not (run / moved[0]).exists()


def forge(run: Path, made: dict[int, RankDigests]) -> None:
    """Puts these digests in the place of the run's, and names them in its index."""
    data = digests_bytes(made)
    figures = parsed_index((run / INDEX).read_bytes())
    (run / digests_key(object_name(data))).write_bytes(data)
    (run / INDEX).write_bytes(index_bytes(replace(figures, digests=object_name(data))))


@pytest.mark.slow
def test_digests_of_ranks_that_are_not_there_are_not_believed(
    tmp_path: Path, run: Path, archive: FolderShelf
) -> None:
    make_run(tmp_path / "store", of_rank(0, 2, as_drawn), "run2", rank=1)
    make_run(tmp_path / "store", of_rank(2, 2, as_drawn), "run2", rank=2)
    archive_run(tmp_path / "store", "run2", archive)
    other = archive.root / "run2.zarr"
    forge(other, digests(other) | {0: digests(run)[0]})
    assert digests(other) == {}
    found = anchorlib.compare("run2", "run2", store=archive.root)
    assert found.to_dict()["ranks"] == {"compared": "1-2", "differing": ""}
    said = anchor("verify", "run2", "--store", archive.root)
    assert (said.code, "is not what the index says of it" in said.out) == (1, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "lie", [{"outline": bytes(16)}, {"is_traced": True}, {"stretches": {0: bytes(16)}}], ids=repr
)
def test_verify_finds_whatever_digests_say_wrongly(
    run: Path, archive: FolderShelf, lie: dict[str, object]
) -> None:
    own = read_index(LocalLocation(run), 1)
    assert own is not None
    assert own.digests is not None
    lying = replace(own.digests, **lie)  # type: ignore[arg-type]
    (run / "rank1" / INDEX).write_bytes(deflated(index_document(replace(own, digests=lying))))
    forge(run, digests(run) | {1: lying})
    found = anchor("verify", "run1", "--store", archive.root)
    assert found.code == 1
    assert "rank 1: the digests of its steps are not those of its rows" in found.out


@pytest.mark.slow
def test_digests_of_others_ranks_are_not_given_out(
    tmp_path: Path, run: Path, archive: FolderShelf
) -> None:
    """Another collector adds a rank to the same folder after the run left this store."""
    store = tmp_path / "store"
    assert make_room(store, archive, Keep(most=0)).keys() == {"run1"}
    served = ArchivedRuns(store)
    for is_whole in (True, False):
        if not is_whole:
            record(tmp_path / "other", 5)
            archive_run(tmp_path / "other/store", "run1", archive)
        (path,) = digests_in(run)
        for key in (INDEX, path.name):
            assert (served.get(f"run1.zarr/{key}", 0, None) is not None) == is_whole
