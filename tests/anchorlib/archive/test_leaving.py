"""Whoever reads a run of a directory in the second in which it leaves for its archive reads on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anchorlib.archive import Keep, archive_run, make_room
from anchorlib.errors import RunNotFoundError
from anchorlib.reading import open_run
from anchorlib.store import RankAudit, RankReader, find_run, remove_run
from anchorlib.store.locations import location
from anchorlib.store.objects import FolderShelf
from tests.anchorlib.reading.runs import make_run, told


@pytest.fixture
def shelf(tmp_path: Path) -> FolderShelf:
    return FolderShelf(tmp_path / "archive")


@pytest.fixture
def store(tmp_path: Path, shelf: FolderShelf) -> Path:
    """A store whose one run is archived, and still here."""
    store = make_run(tmp_path / "store", ranks=2)
    archive_run(store, "run1", shelf)
    return store


def evict(store: Path, shelf: FolderShelf) -> None:
    assert make_room(store, shelf, Keep(most=0)).keys() == {"run1"}


@pytest.mark.slow
@pytest.mark.parametrize("named", ["run1", "path", "link"])
def test_a_run_that_was_opened_here_is_read_from_its_archive(
    store: Path, shelf: FolderShelf, named: str
) -> None:
    (store / "latest.zarr").symlink_to("run1.zarr", target_is_directory=True)
    asked = {"run1": ("run1", store), "path": (store / "run1.zarr",), "link": ("latest", store)}
    run, here = open_run(*asked[named]), told(open_run("run1", store))
    series = run.series("fc2", "grad", rank=1)
    evict(store, shelf)
    assert (
        series.values().tobytes()
        == open_run("run1", store).series("fc2", "grad", rank=1).values().tobytes()
    )
    assert told(run) == here
    assert told(run) == here


class Evictor:
    """Evicts the run when the system was asked for a file or a folder of it so many times."""

    def __init__(self, evicting: Callable[[], None], turns: int) -> None:
        self._evicting = evicting
        self.turns = turns

    def around(self, asked: Callable[[str, str], Any]) -> Callable[[str, str], Any]:
        def answer(root: str, key: str) -> Any:
            if root.endswith("store/run1.zarr"):
                self.turns -= 1
                if self.turns == 0:
                    self._evicting()
            return asked(root, key)

        return answer


@pytest.mark.slow
def test_at_whatever_moment_it_leaves_the_answers_are_the_same(
    tmp_path: Path, store: Path, shelf: FolderShelf
) -> None:
    here, turns = told(open_run("run1", store)), 1
    while True:
        copy = tmp_path / str(turns) / "store"
        shutil.copytree(store, copy)
        evictor = Evictor(lambda copy=copy: evict(copy, shelf), turns)  # type: ignore[misc]
        with pytest.MonkeyPatch.context() as patch:
            for name in ("open_beneath", "names_beneath"):
                patch.setattr(location, name, evictor.around(getattr(location, name)))
            assert told(open_run("run1", copy)) == here
        if evictor.turns > 0:
            break
        turns = turns * 2 + 1
    assert turns > 100  # or it left before anything was read


@pytest.mark.slow
def test_a_run_that_is_removed_for_good_is_said_to_be(store: Path) -> None:
    run = open_run("run1", store)
    remove_run(store, "run1")
    with pytest.raises(RunNotFoundError, match="it was removed or renamed"):
        run.tensors()


@pytest.mark.slow
def test_what_is_audited_while_it_leaves_is_not_called_damaged(
    store: Path, shelf: FolderShelf
) -> None:
    found = find_run("run1", store)
    audit = RankAudit(found.location, RankReader(found.location, 0))
    evict(store, shelf)
    checked = [audit.rows(*part) for part in audit.parts()]
    assert [(one.bad, one.labels) for one in checked] == [([], [])]
    assert [*audit.faults()] == []
