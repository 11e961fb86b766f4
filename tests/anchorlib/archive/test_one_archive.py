"""One archive for several stores: each run is whole for whoever reads it, from wherever."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from anchor_server import serve
from anchorlib.archive import Keep, archive_run, make_room, plan_archive, update_archive_place
from anchorlib.errors import AnchorError, OptionError, RunBusyError, RunExistsError
from anchorlib.reading import open_run
from anchorlib.store import (
    RunFigures,
    RunReader,
    Writer,
    find_run,
    forget_run,
    list_runs,
    locate_store,
    note_of,
    place_run,
    rename_run,
)
from anchorlib.store.objects import FolderShelf, ObjectMetadata
from anchorlib.upkeep import keeper_at
from tests.anchorlib.reading.runs import STEPS, make_run, told, training
from tests.writing import put


def one_rank(store: Path, rank: int, scale: float = 1.0, **options: object) -> None:
    with Writer.open(store, "run1", rank, **options) as writer:  # type: ignore[arg-type]
        for step in range(STEPS):
            put(writer, training(step, scale=scale))


def test_a_store_is_no_archive_of_itself(tmp_path: Path) -> None:
    store = make_run(tmp_path / "store")
    (tmp_path / "link").symlink_to(store, target_is_directory=True)
    before = {path: path.stat().st_size for path in store.rglob("*")}
    for place in (store, tmp_path / "link", store / ".." / "store"):
        shelf = FolderShelf(place)
        for attempt in (archive_run, plan_archive):
            with pytest.raises(OptionError, match="cannot be its archive"):
                attempt(store, "run1", shelf)
        assert make_room(store, shelf, Keep(most=0)) == {}
    assert {path: path.stat().st_size for path in store.rglob("*")} == before


def test_a_rank_that_is_live_beside_sealed_ones_is_read(tmp_path: Path) -> None:
    store, place = make_run(tmp_path / "store"), tmp_path / "archive"
    archive_run(store, "run1", FolderShelf(place))
    with Writer.open(place, "run1", 5) as writer:
        put(writer, training(7))
    assert open_run("run1", place).ranks == [0, 5]


@pytest.mark.slow
def test_what_is_recorded_over_a_sealed_rank_is_what_is_read(tmp_path: Path) -> None:
    store, place = make_run(tmp_path / "store", ranks=2), tmp_path / "archive"
    archive_run(store, "run1", FolderShelf(place))
    with Writer.open(place, "run1", 0, overwrite=True) as writer:
        put(writer, training(5))
    run = open_run("run1", place)
    assert run.series("fc1", rank=0).columns["step"].tolist() == [5, 5]
    assert run.series("fc1", rank=1).columns["step"].tolist() == [0, 0, 1, 1, 2, 2]
    assert [info.records for info in run.tensors() if info.name == "fc1"] == [2 + 6]


@pytest.mark.slow
def test_an_index_tells_of_the_rank_that_is_there_now(tmp_path: Path) -> None:
    shelf = FolderShelf(tmp_path / "archive")
    one_rank(tmp_path / "first", 0)
    archive_run(tmp_path / "first", "run1", shelf)
    shutil.rmtree(tmp_path / "archive/run1.zarr/rank0")
    one_rank(tmp_path / "second", 0, scale=4.0)
    archive_run(tmp_path / "second", "run1", shelf)
    again = FolderShelf(tmp_path / "again")
    archive_run(tmp_path / "second", "run1", again)
    assert _figures(shelf.place) == _figures(again.place)


def _figures(place: str) -> RunFigures:
    found = RunReader(find_run("run1", place).location, "run1")
    found.refresh()
    assert found.figures is not None
    return found.figures


@pytest.mark.slow
@pytest.mark.parametrize("sent", [(0,), (1,), (0, 1)], ids=str)
def test_ranks_of_two_collectors_are_read_wherever_they_are(
    tmp_path: Path, sent: tuple[int, ...]
) -> None:
    """Rank 0 is gone from its collector; rank 1 is there still, or is archived as well."""
    shelf = FolderShelf(tmp_path / "archive")
    stores = [tmp_path / "a", tmp_path / "b"]
    for rank, store in enumerate(stores):
        one_rank(store, rank)
        if rank in sent:
            archive_run(store, "run1", shelf)
    if 0 in sent:
        make_room(stores[0], shelf, Keep(most=0))
    with serve(stores[0]) as one, serve(stores[1]) as two:
        address = f"grpc://{one.address},{two.address}"
        run = open_run("run1", address)
        assert run.ranks == [0, 1]
        assert [len(run.series("fc1", rank=rank)) for rank in (0, 1)] == [6, 6]
        keeper = keeper_at(address)
        if 0 in sent:
            with pytest.raises(AnchorError, match="in its archive alone"):
                keeper.rename("run1", "other")
            assert open_run("run1", address).ranks == [0, 1]


@pytest.mark.slow
def test_the_name_of_an_archived_run_is_taken(tmp_path: Path) -> None:
    store, shelf = make_run(tmp_path / "store"), FolderShelf(tmp_path / "archive")
    archive_run(store, "run1", shelf)
    make_room(store, shelf, Keep(most=0))
    make_run(store, "run2")
    with pytest.raises(RunExistsError):
        rename_run(store, "run2", "run1")
    made = make_run(tmp_path / "made", "run3") / "run3.zarr"
    with pytest.raises(RunExistsError):
        place_run(store, made, "run1")
    assert open_run("run1", store).steps == [0, 1, 2]


class Meddled(FolderShelf):
    """An archive during whose first use something happens to the run that is sent or looked for.

    The archive is first looked at before a rank is sealed, and first created into after that.
    """

    def __init__(self, root: Path, happens: Callable[[], None], use: str = "held") -> None:
        super().__init__(root)
        self._happens = [happens]
        self._use = use

    def _used(self, use: str) -> None:
        if use == self._use and self._happens:
            self._happens.pop()()

    def held(self, prefix: str) -> dict[str, ObjectMetadata]:
        self._used("held")
        return super().held(prefix)

    def create(self, key: str, data: bytes) -> bool:
        self._used("create")
        return super().create(key, data)


@pytest.mark.parametrize("use", ["held", "create"])
@pytest.mark.parametrize("how", ["resume", "overwrite"])
def test_a_run_that_is_recorded_into_while_it_is_archived_gets_no_note(
    tmp_path: Path, how: str, use: str
) -> None:
    store = make_run(tmp_path / "store")
    before = told(open_run("run1", store))
    happens = partial(one_rank, store, 0, scale=4.0, **{how: True})
    shelf = Meddled(tmp_path / "archive", happens, use)
    with pytest.raises(RunBusyError, match="was recorded into while it was"):
        archive_run(store, "run1", shelf)
    assert note_of(store, "run1") is None
    assert make_room(store, shelf, Keep(most=0)) == {}
    assert open_run("run1", store).series("fc1").values().max() == 84
    if use == "held":
        assert shelf.held("run1.zarr") == {}
    else:
        assert told(open_run("run1", shelf.place)) == before


def test_a_run_that_goes_while_it_is_archived_gets_no_note(tmp_path: Path) -> None:
    store = make_run(tmp_path / "store")
    shelf = Meddled(tmp_path / "archive", lambda: rename_run(store, "run1", "other"))
    with pytest.raises(AnchorError):
        archive_run(store, "run1", shelf)
    assert list_runs(locate_store(store)) == ["other"]


@pytest.mark.slow
@pytest.mark.parametrize("happens", ["recorded anew", "forgotten"])
def test_a_note_that_no_longer_fits_is_not_led_elsewhere(tmp_path: Path, happens: str) -> None:
    store, old = make_run(tmp_path / "store"), FolderShelf(tmp_path / "old")
    archive_run(store, "run1", old)
    make_room(store, old, Keep(most=0))
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    note = note_of(store, "run1")
    assert note is not None

    def meddle() -> None:
        if happens == "forgotten":
            forget_run(store, "run1")
        else:
            one_rank(store, 0, scale=4.0, overwrite=True)

    with pytest.raises(RunBusyError, match="a moment ago"):
        update_archive_place(store, note, Meddled(tmp_path / "new", meddle))
    assert note_of(store, "run1") is None
    assert list_runs(locate_store(store)) == ([] if happens == "forgotten" else ["run1"])
