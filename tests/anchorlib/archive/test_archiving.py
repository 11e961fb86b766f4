"""An archive holds a run whole or not at all, whatever happens, and nothing goes before it does."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from anchorlib.archive import (
    Keep,
    archive_run,
    checked_shelf,
    claiming,
    leaving,
    make_room,
    plan_archive,
    shelf_at,
)
from anchorlib.errors import (
    AnchorError,
    CollectorError,
    DamagedError,
    OptionError,
    RunBusyError,
    RunExistsError,
    RunNotFoundError,
)
from anchorlib.reading import open_run
from anchorlib.store import (
    Location,
    RankLock,
    Writer,
    evict_run,
    find_run,
    list_runs,
    locate_store,
    remove_run,
    rename_run,
)
from anchorlib.store.disk.archived import note_of
from anchorlib.store.objects import FolderShelf, ObjectMetadata, Shelf
from anchorlib.upkeep import keeper_of
from tests.anchorlib.reading.runs import make_run, told, training
from tests.bucket import Line, object_store
from tests.writing import put

S3 = "s3://anchors/of/us"


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    with object_store(monkeypatch) as line:
        yield line


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_run(tmp_path / "store", ranks=2)


class Mortal:
    """A shelf whose archiver dies when it has put so many objects."""

    def __init__(self, shelf: Shelf, lives: int) -> None:
        self.shelf = shelf
        self.lives = lives
        self.place = shelf.place
        self.location: Location = shelf.location

    def _lives(self) -> None:
        if not self.lives:
            raise KeyboardInterrupt
        self.lives -= 1

    def put(self, key: str, data: bytes) -> None:
        self._lives()
        self.shelf.put(key, data)

    def create(self, key: str, data: bytes) -> bool:
        self._lives()
        return self.shelf.create(key, data)

    def swap(self, key: str, data: bytes, tag: str) -> bool:
        self._lives()
        return self.shelf.swap(key, data, tag)

    def remove(self, key: str) -> None:
        self._lives()
        self.shelf.remove(key)

    def held(self, prefix: str) -> dict[str, ObjectMetadata]:
        return self.shelf.held(prefix)

    def fetch(self, key: str) -> tuple[bytes, str] | None:
        return self.shelf.fetch(key)

    def is_same(self, key: str, held: ObjectMetadata, data: bytes) -> bool:
        return self.shelf.is_same(key, held, data)


def whole_or_absent(place: str, here: tuple[object, ...]) -> None:
    """A reader sees the run whole, or is told that there is no such run."""
    try:
        there = open_run("run1", place)
    except RunNotFoundError:
        return
    assert told(there) == here


@pytest.mark.slow
def test_killed_after_every_put_and_repeated_it_is_whole(tmp_path: Path) -> None:
    store = make_run(tmp_path / "store")
    here = told(open_run("run1", store))
    shelf = FolderShelf(tmp_path / "archive")
    lives = 0
    while True:
        mortal = Mortal(shelf, lives)
        try:
            done = archive_run(store, "run1", mortal)
            break
        except KeyboardInterrupt:
            assert note_of(store, "run1") is None
            assert make_room(store, shelf, Keep(most=0)) == {}
            whole_or_absent(shelf.place, here)
        # What was put stays there, so that each life gets further than the one before.
        lives = 2 if lives > 8 else lives + 1
    assert told(open_run("run1", shelf.place)) == here
    assert archive_run(store, "run1", shelf).sent == 0
    assert done.objects == len(shelf.held("run1.zarr")) - 2  # but for the index and zarr.json


@pytest.mark.slow
def test_what_is_in_an_object_store_reads_as_what_is_here(store: Path, line: Line) -> None:
    shelf = checked_shelf(shelf_at(S3))
    done = archive_run(store, "run1", shelf)
    assert done.sent == done.objects - 2
    here = told(open_run("run1", store))
    assert told(open_run("run1", S3)) == here == told(open_run(f"{S3}/run1"))
    line.asked.clear()
    assert archive_run(store, "run1", shelf).sent == 0
    assert [ask for ask in line.asked if ask[0] == "PUT"] == [
        ask
        for ask in line.asked
        if ask[0] == "PUT" and ask[1].endswith(("zarr.json", "sealed.json"))
    ]
    assert make_room(store, shelf, Keep(most=0)).keys() == {"run1"}
    assert list_runs(locate_store(store)) == ["run1"]
    assert told(open_run("run1", store)) == here


@pytest.mark.slow
@pytest.mark.parametrize(
    "trouble",
    ["503", *(pytest.param(one, marks=pytest.mark.slow) for one in ("cut", "lost"))],
)
def test_trouble_on_the_way_is_told_or_overcome(store: Path, line: Line, trouble: str) -> None:
    shelf = checked_shelf(shelf_at(S3))
    turns = iter(range(10_000))
    line.trouble = lambda method, path: trouble if next(turns) % 13 == 0 else None
    for _ in range(9):
        with contextlib.suppress(CollectorError):
            archive_run(store, "run1", shelf)
            break
    line.trouble = lambda method, path: None
    assert archive_run(store, "run1", shelf).sent == 0
    assert told(open_run("run1", S3)) == told(open_run("run1", store))


@pytest.mark.slow
def test_a_store_that_stops_answering_ends_it_with_one_line(store: Path, line: Line) -> None:
    shelf = checked_shelf(shelf_at(S3))
    line.trouble = lambda method, path: "503" if "rank1" in path else None
    with pytest.raises(CollectorError, match="HTTP 503"):
        archive_run(store, "run1", shelf)
    assert make_room(store, shelf, Keep(most=0)) == {}
    line.trouble = lambda method, path: None
    assert open_run("run1", S3).ranks == [0]  # which is whole, and the other one does not exist


@pytest.mark.slow
def test_a_store_that_ignores_conditions_is_refused_unless_told(store: Path, line: Line) -> None:
    line.trouble = lambda method, path: "blind"
    with pytest.raises(OptionError, match="--without-conditional-writes"):
        checked_shelf(shelf_at(S3))
    assert shelf_at(S3).held("") == {}  # it leaves nothing behind
    shelf = checked_shelf(shelf_at(S3), without_conditions=True)
    archive_run(store, "run1", shelf)
    assert archive_run(store, "run1", shelf).sent == 0
    assert told(open_run("run1", S3)) == told(open_run("run1", store))


def test_without_conditions_a_shelf_keeps_the_promises_of_every_shelf(tmp_path: Path) -> None:
    class Blind(FolderShelf):
        """A store that takes every object, whatever the condition."""

        def create(self, key: str, data: bytes) -> bool:
            self.put(key, data)
            return True

        def swap(self, key: str, data: bytes, tag: str) -> bool:
            return self.create(key, data)

    shelf = checked_shelf(Blind(tmp_path), without_conditions=True)
    assert shelf.create("key", b"one")
    assert not shelf.create("key", b"two")
    found = shelf.fetch("key")
    assert found is not None
    assert shelf.swap("key", b"two", found[1])
    assert shelf.swap("key", b"two", found[1])  # as where the answer to the first was lost
    assert not shelf.swap("key", b"three", found[1])
    assert not shelf.swap("gone", b"three", found[1])


@pytest.mark.slow
def test_two_at_once_agree(store: Path, line: Line) -> None:
    with ThreadPoolExecutor(2) as two:
        shelves = [checked_shelf(shelf_at(S3)) for _ in range(2)]
        done = [*two.map(lambda shelf: archive_run(store, "run1", shelf), shelves)]
    assert done[0].objects == done[1].objects
    assert told(open_run("run1", S3)) == told(open_run("run1", store))
    assert not [key for key in shelf_at(S3).held("run1.zarr") if key.endswith("sealing.json")]


@pytest.mark.slow
def test_another_recording_of_that_name_is_never_touched(store: Path, tmp_path: Path) -> None:
    shelf = FolderShelf(tmp_path / "archive")
    archive_run(store, "run1", shelf)
    before = told(open_run("run1", shelf.place))
    other = make_run(tmp_path / "other")
    with pytest.raises(RunExistsError, match="another recording of rank 0"):
        archive_run(other, "run1", shelf)
    with Writer.open(store, "run1", 0, resume=True) as writer:
        put(writer, training(9))
    with pytest.raises(RunExistsError):
        archive_run(store, "run1", shelf)
    assert make_room(store, shelf, Keep(most=0)) == {}  # what was gone on with is not confirmed
    assert told(open_run("run1", shelf.place)) == before


@pytest.mark.slow
def test_other_bytes_are_not_put_among_those_of_another_archiver(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = FolderShelf(tmp_path / "archive")
    with pytest.raises(KeyboardInterrupt):
        archive_run(store, "run1", Mortal(shelf, 5))
    left = shelf.held("run1.zarr")
    other = make_run(tmp_path / "other")
    with pytest.raises(RunBusyError, match="from other records or by another version"):
        archive_run(other, "run1", shelf)
    assert shelf.held("run1.zarr") == left
    monkeypatch.setattr(claiming, "STALE_SECONDS", 0.0)
    archive_run(other, "run1", shelf)
    assert told(open_run("run1", shelf.place)) == told(open_run("run1", other))


@pytest.mark.slow
def test_what_changed_after_it_was_confirmed_stays(store: Path, tmp_path: Path) -> None:
    archive_run(store, "run1", FolderShelf(tmp_path / "archive"))
    note = note_of(store, "run1")
    assert note is not None
    with Writer.open(store, "run1", 0, resume=True) as writer:
        put(writer, training(9))
    with pytest.raises(RunBusyError, match="has changed since it was archived"):
        evict_run(store, note)
    assert open_run("run1", store).steps == [0, 1, 2, 9]


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", ["gone", *(pytest.param(one, marks=pytest.mark.slow) for one in ("flipped", "cut"))]
)
def test_what_was_damaged_there_is_found_and_keeps_the_run_here(
    tmp_path: Path, damage: str
) -> None:
    store, shelf = make_run(tmp_path / "store"), FolderShelf(tmp_path / "archive")
    archive_run(store, "run1", shelf)
    here = told(open_run("run1", store))
    chunks = [path for path in (tmp_path / "archive").rglob("c/**/*") if path.is_file()]
    told_of = 0
    for path in sorted(chunks):
        data = path.read_bytes()
        if damage == "gone":
            path.unlink()
        else:
            path.write_bytes(data[:-1] if damage == "cut" else bytes([data[0] ^ 1]) + data[1:])
        assert make_room(store, shelf, Keep(most=0)) == {}
        try:
            assert told(open_run("run1", shelf.place)) == here  # of it nothing was asked
        except (DamagedError, RunNotFoundError):
            told_of += 1
        assert archive_run(store, "run1", shelf).sent == 1
    assert told_of >= len(chunks) // 2
    assert told(open_run("run1", shelf.place)) == here


def test_a_run_that_is_written_is_refused(store: Path, tmp_path: Path) -> None:
    shelf = FolderShelf(tmp_path / "archive")
    with (
        Writer.open(store, "run1", 1, resume=True),
        pytest.raises(RunBusyError, match="written by a living process"),
    ):
        archive_run(store, "run1", shelf)
    with pytest.raises(RunNotFoundError):
        archive_run(store, "none", shelf)
    assert shelf.held("") == {}


@pytest.mark.slow
def test_a_run_that_is_busy_stays_and_is_said_to(
    store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shelf = FolderShelf(tmp_path / "archive")
    archive_run(store, "run1", shelf)
    lock = RankLock.take(store, "run1", 0)
    with caplog.at_level(logging.WARNING):
        assert make_room(store, shelf, Keep(most=0)) == {}
    lock.release()
    assert "run1 stays here: run 'run1' is being written (rank0 by process" in caplog.text
    assert make_room(store, shelf, Keep(most=0)).keys() == {"run1"}


@pytest.mark.slow
def test_the_oldest_go_until_what_stays_fits(tmp_path: Path) -> None:
    store, shelf = tmp_path / "store", FolderShelf(tmp_path / "archive")
    for run in ("a", "b", "c", "never"):
        make_run(store, run)
    for run in ("a", "b", "c"):
        archive_run(store, run, shelf)
    assert leaving(store, shelf.place, Keep()) == []
    assert leaving(store, shelf.place, Keep(most=0)) == ["a", "b", "c"]
    assert leaving(store, shelf.place, Keep(seconds=3600.0)) == []
    assert leaving(store, "elsewhere", Keep(most=0)) == []
    time.sleep(0.01)
    assert leaving(store, shelf.place, Keep(seconds=0.001)) == ["a", "b", "c"]
    one = sum(file.stat().st_blocks * 512 for file in (store / "c.zarr").rglob("*"))
    assert make_room(store, shelf, Keep(most=int(one * 1.5))).keys() == {"a", "b"}
    assert sorted(path.name for path in store.glob("*.zarr")) == ["c.zarr", "never.zarr"]
    assert list_runs(locate_store(store)) == ["a", "b", "c", "never"]


@pytest.mark.slow
def test_a_run_that_is_in_its_archive_alone_is_only_read(store: Path, tmp_path: Path) -> None:
    shelf = FolderShelf(tmp_path / "archive")
    archive_run(store, "run1", shelf)
    make_room(store, shelf, Keep(most=0))
    with pytest.raises(OptionError, match="in its archive alone"):
        keeper_of(find_run("run1", store))
    with pytest.raises(RunExistsError, match="was archived to"):
        Writer.open(store, "run1", 0, resume=True)
    with pytest.raises(RunExistsError):
        Writer.open(store, "run1", 7)
    with Writer.open(store, "run1", 0, overwrite=True) as writer:
        put(writer, training(5))
    assert open_run("run1", store).steps == [5]
    assert open_run("run1", shelf.place).steps == [0, 1, 2]


@pytest.mark.slow
def test_a_run_that_is_removed_or_renamed_here_is_not_looked_for_there(tmp_path: Path) -> None:
    store, shelf = tmp_path / "store", FolderShelf(tmp_path / "archive")
    for run in ("gone", "old"):
        archive_run(make_run(store, run), run, shelf)
    remove_run(store, "gone")
    rename_run(store, "old", "new")
    assert list_runs(locate_store(store)) == ["new"]
    for run in ("gone", "old"):
        with pytest.raises(RunNotFoundError):
            open_run(run, store)
    assert list_runs(locate_store(shelf.place)) == ["gone", "old"]


def test_a_plan_changes_nothing(store: Path, tmp_path: Path) -> None:
    shelf = FolderShelf(tmp_path / "archive")
    plan = plan_archive(store, "run1", shelf)
    assert (plan.ranks, plan.there) == ((0, 1), ())
    assert not (tmp_path / "archive").exists()
    archive_run(store, "run1", shelf)
    assert plan_archive(store, "run1", shelf).there == (0, 1)


def test_notes_that_are_damaged_are_said_so(store: Path, tmp_path: Path) -> None:
    shelf = FolderShelf(tmp_path / "archive")
    archive_run(store, "run1", shelf)
    path = store / ".anchor/archived/run1.json"
    told_there = json.loads(path.read_bytes())
    assert told_there["place"] == shelf.place
    path.write_bytes(path.read_bytes().replace(b"archive", b"archivf", 1))
    assert make_room(store, shelf, Keep(most=0)) == {}
    assert open_run("run1", store).ranks == [0, 1]  # what is here needs no note
    remove = store / "run1.zarr"
    remove.rename(store / "run2.zarr")
    with pytest.raises(AnchorError, match=r"run1 is archived is damaged"):
        open_run("run1", store)
