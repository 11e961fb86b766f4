"""A rank that several collectors took is in their archive as it was with them: read as one."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from anchor_server import Archiver, Archiving, archiving
from anchor_server.counters import ArchiveTally
from anchorlib.archive import (
    Keep,
    archive_run,
    archive_served,
    make_room,
    open_ranks,
    plan_archive,
)
from anchorlib.errors import AnchorError, OptionError, RunExistsError, StoreError
from anchorlib.reading import open_run
from anchorlib.store import LocalLocation, RunReader, Writer, find_run, open_parts
from anchorlib.store.check import run_faults
from anchorlib.store.disk.archived import note_of
from anchorlib.store.objects import FolderShelf
from anchorlib.store.seal.rank_digests import digests_of
from tests.anchorlib.archive.test_archiving import Mortal
from tests.anchorlib.archive.test_digests import forge
from tests.anchorlib.store.read.test_joined import OTHER, write
from tests.cli.made import anchor

pytestmark = pytest.mark.slow  # each archives what three collectors have

PARTS = [(0, 0, 20), (1, 15, 30), (2, 30, 40)]
"""Which collector had which records: it moved twice, once with five committed and not confirmed."""


@pytest.fixture
def stores(tmp_path: Path) -> list[Path]:
    """What three collectors have of one rank, whose session was closed at the last of them."""
    found = [tmp_path / f"collector{number}" for number, _, _ in PARTS]
    for store, (number, first, end) in zip(found, PARTS, strict=True):
        write(store, number, first, end, closes=store == found[-1])
    return found


def together(stores: Sequence[Path], place: Path) -> Path:
    """All parts in one directory."""
    for store in stores:
        shutil.copytree(store / "run1.zarr", place / "run1.zarr", dirs_exist_ok=True)
    return place


def recorded(store: Path | str) -> tuple[object, ...]:
    """All that a reader is told of the run, and every record of it."""
    run = open_run("run1", store)
    listed = [
        anchor(*words, "--store", store, "--json").out
        for words in (("names", "run1"), ("hist", "run1"))
    ]
    records = [
        (one.columns["digest"].tolist(), [np.asarray(record.raw).tobytes() for record in one])
        for info in run.tensors()
        for one in [run.series(info.name, info.kind, mode=info.mode, rank=0)]
    ]
    figures = (run.ranks, run.steps, run.bytes, run.started_ns, run.written_ns, run.gaps())
    return (run.state, listed, records, run.header(0), *figures)


def look(store: Path, shelf: FolderShelf, most: int | None = None) -> ArchiveTally:
    """What a collector does in the background, once."""
    tally = ArchiveTally()
    Archiver(store, Archiving(shelf, after=0.0, keep=Keep(most=most)), tally).look()
    return tally


def test_each_collector_archives_its_part_and_readers_join_them(
    stores: list[Path], tmp_path: Path
) -> None:
    here = recorded(together(stores, tmp_path / "all"))
    shelf = FolderShelf(tmp_path / "archive")
    assert [look(store, shelf).runs for store in stores] == [0, 0, 1]  # the others cannot know yet
    with pytest.raises(StoreError, match="records 0 to 29 of rank 0 of run1 are not here"):
        open_run("run1", shelf.place)
    for store in stores[:2]:
        assert look(store, shelf, most=0).failures == 0
        assert not (store / "run1.zarr").exists()
    assert recorded(shelf.place) == here
    assert recorded(stores[0]) == here  # the note leads to the archive
    assert anchor("verify", "run1", "--store", shelf.place).code == 0


def test_the_index_of_an_archive_has_ranks_in_parts(stores: list[Path], tmp_path: Path) -> None:
    store = together(stores, tmp_path / "all")
    shelf = FolderShelf(tmp_path / "archive")
    archive_run(store, "run1", shelf)
    location = find_run("run1", shelf.place).location
    reader = RunReader(location, "run1")
    reader.refresh()
    assert reader.figures is not None
    assert reader.figures.parts == ((0, 0), (0, 1), (0, 2))
    # One more part than it knows: it is not asked, and then made again.
    write(tmp_path / "late", 3, 0, 10, writer_id=OTHER, resume=True, closes=True)
    archive_run(tmp_path / "late", "run1", shelf)
    reader = RunReader(location, "run1")
    reader.refresh()
    assert reader.figures is not None
    assert reader.figures.parts[-1] == (0, 3)


def test_verify_compares_what_is_said_of_a_rank_in_parts_with_their_rows(
    stores: list[Path], tmp_path: Path
) -> None:
    store = together(stores, tmp_path / "all")
    write(store, 0, 0, 60, rank=1, closes=True)
    archive_run(store, "run1", shelf := FolderShelf(tmp_path / "archive"))
    run = tmp_path / "archive/run1.zarr"
    assert [*run_faults(LocalLocation(run))] == []
    reader = RunReader(LocalLocation(run), "run1")
    reader.refresh()
    known, other = reader.digests(), bytes(16)
    forge(run, known | {0: replace(known[0], outline=other)})
    (found,) = run_faults(LocalLocation(run))
    assert "tells another recording than rank 0: archive the run again" in found
    assert anchor("verify", "run1", "--store", shelf.place).code == 1


@pytest.mark.slow
def test_killed_after_every_put_the_parts_are_whole_or_absent(
    stores: list[Path], tmp_path: Path
) -> None:
    store = together(stores, tmp_path / "all")
    here = recorded(store)
    shelf = FolderShelf(tmp_path / "archive")
    lives = 0
    while True:
        try:
            archive_run(store, "run1", Mortal(shelf, lives))
            break
        except KeyboardInterrupt:
            assert note_of(store, "run1") is None
            assert make_room(store, shelf, Keep(most=0)) == {}
            # What is there is a session that is not closed yet, or lacks its beginning.
            try:
                state = open_run("run1", shelf.place).state
            except AnchorError:
                continue
            finally:
                # What was put stays there, so that each life gets further than the one before.
                lives = 25 if lives > 3 else lives + 1
            assert state == "open" or recorded(shelf.place) == here
    assert recorded(shelf.place) == here
    assert archive_run(store, "run1", shelf).sent == 0
    assert plan_archive(store, "run1", shelf).there == (0,)
    assert make_room(store, shelf, Keep(most=0)).keys() == {"run1"}
    assert recorded(store) == here


def test_whoever_archives_the_parts_at_the_same_time_comes_to_the_same(
    stores: list[Path], tmp_path: Path
) -> None:
    everything = together(stores, tmp_path / "all")
    shelf = FolderShelf(tmp_path / "archive")
    here = recorded(everything)
    with ThreadPoolExecutor(2) as two:
        other = two.submit(archive_run, everything, "run1", shelf)
        last = two.submit(archive_run, stores[-1], "run1", FolderShelf(tmp_path / "archive"))
        assert last.result().ranks == other.result().ranks == (0,)
    assert recorded(shelf.place) == here
    assert not [key for key in shelf.held("run1.zarr") if key.endswith("sealing.json")]


def test_a_part_that_may_be_gone_on_with_is_refused_with_what_to_do(
    stores: list[Path], tmp_path: Path
) -> None:
    shelf = FolderShelf(tmp_path / "archive")
    with pytest.raises(StoreError, match=r"was not closed: .* from all of its collectors"):
        archive_run(stores[0], "run1", shelf)
    assert shelf.held("") == {}
    with Writer.open(tmp_path / "dead", "run1", 0) as writer:
        writer.publish()
        writer.abandon()
    with pytest.raises(StoreError, match=r"was not closed: .*anchor repair run1 --as NAME"):
        archive_run(tmp_path / "dead", "run1", shelf)


def test_a_run_of_another_place_is_archived_as_it_is_there(
    stores: list[Path], tmp_path: Path
) -> None:
    store = together(stores, tmp_path / "all")
    location = find_run("run1", store).location
    first, second = (FolderShelf(tmp_path / name) for name in ("first", "second"))
    done = archive_served(location, "run1", first)
    again = archive_served(find_run("run1", first.place).location, "run1", second)
    assert (again.objects, again.bytes) == (done.objects, done.bytes)
    assert note_of(store, "run1") is None
    for shelf in (first, second):
        assert recorded(shelf.place) == recorded(store)
    path = next(one for one in (tmp_path / "first").rglob("value/c/**/*") if one.is_file())
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    with pytest.raises(StoreError, match="is not what was sealed"):
        archive_served(find_run("run1", first.place).location, "run1", FolderShelf(tmp_path / "x"))


def test_the_place_where_a_run_is_recorded_is_no_archive_of_it(tmp_path: Path) -> None:
    """By whatever name it is found: nothing is written there, and nothing removed."""
    store = tmp_path / "store"
    write(store, 0, 0, 60, closes=True)
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    with pytest.raises(OptionError, match="is where rank 0 was recorded"):
        archive_served(find_run("run1", store).location, "run1", FolderShelf(store))
    kept = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    assert {path: kept.get(path) for path in before} == before


def test_a_part_of_an_earlier_recording_does_not_end_a_later_one(tmp_path: Path) -> None:
    shelf = FolderShelf(tmp_path / "archive")
    earlier, later = tmp_path / "earlier", tmp_path / "later"
    write(earlier, 1, 0, 20, writer_id=OTHER, restart=1, closes=True)
    archive_run(earlier, "run1", shelf)
    write(later, 0, 0, 60, restart=0)
    assert look(later, shelf, most=0).runs == 0
    with pytest.raises(RunExistsError, match="another recording of rank 0"):
        archive_run(later, "run1", shelf)
    assert open_run("run1", later).state == "open"


def test_nor_does_it_end_a_recording_that_replaces_it(tmp_path: Path) -> None:
    shelf = FolderShelf(tmp_path / "archive")
    earlier, later = tmp_path / "earlier", tmp_path / "later"
    write(earlier, 1, 0, 20, writer_id=OTHER, restart=1, closes=True)
    archive_run(earlier, "run1", shelf)
    write(later, 0, 0, 60, restart=0, overwrite=True)
    assert open_ranks("run1", open_parts(find_run("run1", later).location, "run1"), shelf) == [0]
    with pytest.raises(StoreError, match="was not closed"):
        archive_run(later, "run1", shelf)


def test_collectors_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """Each has the last part of a rank, of which the other one has an earlier part."""
    one, other = tmp_path / "one", tmp_path / "other"
    for rank, (begun, ended) in enumerate([(one, other), (other, one)]):
        write(begun, 0, 0, 20, rank=rank)
        write(ended, 1, 15, 30, rank=rank, closes=True)
    here = recorded(together([one, other], tmp_path / "all"))
    shelf = FolderShelf(tmp_path / "archive")
    for _ in range(2):
        for store in (one, other):
            look(store, shelf)
    assert note_of(one, "run1") is not None
    assert note_of(other, "run1") is not None
    assert recorded(shelf.place) == here


def test_a_part_that_is_damaged_there_is_told_to_whoever_waits_for_it(
    stores: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "_FIRST_PAUSE", 0.0)
    shelf = FolderShelf(tmp_path / "archive")
    archive_run(stores[-1], "run1", shelf)
    mark = tmp_path / "archive/run1.zarr/rank0.p2/sealed.json"
    sound = mark.read_bytes()
    mark.write_bytes(sound[:-2])
    tally = ArchiveTally()
    worker = Archiver(stores[0], Archiving(shelf, after=0.0), tally)
    for _ in range(2):
        worker.look()
        assert (tally.runs, tally.due) == (0, ("run1",))
        assert "rank0.p2/sealed.json is damaged" in tally.failing["run1"]
    mark.write_bytes(sound)
    worker.look()
    assert (tally.runs, tally.due, tally.failing) == (1, (), {})


def test_the_digests_of_a_rank_in_parts_are_not_those_of_its_first(
    stores: list[Path], tmp_path: Path
) -> None:
    store, shelf = together(stores, tmp_path / "all"), FolderShelf(tmp_path / "archive")
    for rank in (1, 2):
        write(store, 0, 0, 20, rank=rank, closes=True)
    for _ in range(2):  # the second time, the index knows the rank already
        archive_run(store, "run1", shelf)
        reader = RunReader(find_run("run1", shelf.place).location, "run1")
        reader.refresh()
        assert reader.digests() == {rank: digests_of(reader.rank(rank)) for rank in range(3)}
