"""A run removed or renamed: whole or not at all, never while it is written, never beyond it."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anchorlib.errors import (
    InvalidNameError,
    RunBusyError,
    RunExistsError,
    RunNotFoundError,
    StoreError,
)
from anchorlib.reading import open_run
from anchorlib.store import (
    LocalLocation,
    Writer,
    finish_removals,
    list_runs,
    remove_rank,
    remove_run,
    rename_run,
    waiting_removals,
)
from anchorlib.store.disk.lock import RankLock, lock_path
from tests.cli.made import anchor, make_run, record
from tests.writing import put


@pytest.fixture
def store(tmp_path: Path) -> Path:
    place = tmp_path / "store"
    make_run(place, [record(step=step) for step in range(3)])
    make_run(place, [record(step=7)], "other")
    return place


def names(store: Path) -> list[str]:
    return list_runs(LocalLocation(store))


def test_a_removed_run_is_gone_with_all_its_files_and_the_others_are_whole(store: Path) -> None:
    assert remove_run(store, "run1") > 0
    assert names(store) == ["other"]
    assert waiting_removals(store) == []
    assert not [path for path in store.rglob("*") if "run1" in path.name]
    assert anchor("verify", "other", "--store", store).code == 0


class Died(BaseException):
    """The process is no more."""


def mortal(patch: pytest.MonkeyPatch, life: int) -> None:
    """Lets so many changes of the file system happen, and dies at the next."""
    left = [life]

    def wrapped(call: Callable[..., Any]) -> Callable[..., Any]:
        def effect(*given: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Died
            return call(*given, **named)

        return effect

    for name in ("rename", "unlink", "rmdir", "fsync", "mkdir", "write"):
        patch.setattr(os, name, wrapped(getattr(os, name)))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["remove", "rename", "rank"])
def test_whenever_it_is_killed_a_run_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    life, seen = 0, set()
    template = tmp_path / "template"
    make_run(template, [record()])
    make_run(template, [record(rank=1)], rank=1)
    while True:
        store = tmp_path / f"store{life}"
        shutil.copytree(template, store)
        with monkeypatch.context() as patch:
            mortal(patch, life)
            try:
                if what == "remove":
                    remove_run(store, "run1")
                elif what == "rename":
                    rename_run(store, "run1", "run2")
                else:
                    remove_rank(store, "run1", 1)
            except Died:
                ended = False
            else:
                ended = True
        for name in names(store):
            assert anchor("verify", name, "--store", store).code == 0
            seen.add((name, tuple(open_run(name, store=store).ranks)))
        finish_removals(store)
        assert waiting_removals(store) == []
        if ended:
            break
        life += 1 if life < 8 else 37  # from then on files are deleted that nobody sees
    assert life > 4
    assert (
        seen
        == {
            "remove": {("run1", (0, 1))},
            "rename": {("run1", (0, 1)), ("run2", (0, 1))},
            "rank": {("run1", (0, 1)), ("run1", (0,))},
        }[what]
    )


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 5])
def test_a_run_that_is_written_is_neither_removed_nor_renamed(store: Path, rank: int) -> None:
    with Writer.open(store, "run1", rank, resume=True):
        for attempt in (
            lambda: remove_run(store, "run1"),
            lambda: rename_run(store, "run1", "new"),
            lambda: rename_run(store, "other", "run1"),
            lambda: remove_rank(store, "run1", 0),
        ):
            with pytest.raises(RunBusyError, match=f"rank{rank} by process {os.getpid()} on "):
                attempt()
    assert names(store) == ["other", "run1"]
    remove_run(store, "run1")


def test_a_rank_that_is_locked_and_not_made_yet_counts_as_written(store: Path) -> None:
    lock = RankLock.take(store, "run1", 9)
    with pytest.raises(RunBusyError):
        remove_run(store, "run1")
    lock.release()


def test_a_run_that_is_written_under_a_second_name_stays(store: Path) -> None:
    (store / "alias.zarr").symlink_to("run1.zarr")
    with (
        Writer.open(store, "alias", 0, resume=True),
        pytest.raises(RunBusyError, match="alias"),
    ):
        remove_run(store, "run1")


@pytest.mark.slow
def test_no_writer_comes_between_the_look_and_the_removal(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever opens a rank meanwhile waits, and then makes a run of its own."""
    rename, opened, made = os.rename, threading.Event(), []

    def write() -> None:
        opened.set()
        with Writer.open(store, "run1", 3) as writer:
            put(writer, [record(rank=3)])
        made.append(writer)

    def slow(*given: Any, **named: Any) -> None:
        if "dst_dir_fd" in named:
            thread.start()
            opened.wait()
            thread.join(0.2)
            assert not made
        rename(*given, **named)

    thread = threading.Thread(target=write)
    monkeypatch.setattr(os, "rename", slow)
    remove_run(store, "run1")
    thread.join()
    assert open_run("run1", store=store).ranks == [3]
    assert anchor("verify", "run1", "--store", store).code == 0


@pytest.mark.slow
def test_who_waited_for_the_lock_of_a_run_that_was_removed_takes_a_fresh_one(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lock_path(store, "run1", 0)
    with path.open("rb") as orphan:  # as a recorder has it whose trainer has died
        fcntl.flock(orphan, fcntl.LOCK_EX)

        def inherited(descriptor: int) -> bool:
            path.unlink()
            fcntl.flock(orphan, fcntl.LOCK_UN)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            return True

        monkeypatch.setattr("anchorlib.store.disk.lock._inherited", inherited)
        lock = RankLock.take(store, "run1", 0)
    with pytest.raises(RunBusyError):
        remove_run(store, "run1")
    lock.release()


def test_a_link_is_removed_and_what_it_leads_to_stays(store: Path, tmp_path: Path) -> None:
    aside = tmp_path / "aside.zarr"
    (store / "run1.zarr").rename(aside)
    (store / "run1.zarr").symlink_to(aside)
    inside = store / "other.zarr" / "elsewhere"
    inside.symlink_to(aside, target_is_directory=True)
    assert remove_run(store, "run1") == 0
    assert remove_run(store, "other") > 0
    assert names(store) == []
    assert anchor("verify", aside).code == 0


def test_a_removal_folder_that_is_a_link_is_not_followed(store: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    (precious / "inside").mkdir(parents=True)
    (store / ".anchor" / "removed").symlink_to(precious)
    assert finish_removals(store) == (0, [])
    with pytest.raises(StoreError, match="is no folder of this store"):
        remove_run(store, "run1")
    assert (precious / "inside").is_dir()
    assert names(store) == ["other", "run1"]


def test_files_of_others_inside_a_run_go_with_it(store: Path) -> None:
    run = store / "run1.zarr"
    (run / "notes.txt").write_text("mine")
    os.mkfifo(run / "rank0" / "pipe")
    remove_run(store, "run1")
    assert names(store) == ["other"]
    assert waiting_removals(store) == []


def test_a_file_that_has_the_name_of_a_run_stays(store: Path) -> None:
    (store / "file.zarr").write_text("mine")
    with pytest.raises(StoreError, match="is a file, and no run"):
        remove_run(store, "file")


@pytest.mark.parametrize("name", ["../other", "..", "", ".anchor", "a/b", "x\0y"])
def test_no_name_leads_out_of_the_store(store: Path, name: str) -> None:
    for attempt in (
        lambda: remove_run(store, name),
        lambda: rename_run(store, name, "new"),
        lambda: rename_run(store, "run1", name),
    ):
        with pytest.raises(InvalidNameError):
            attempt()
    assert names(store) == ["other", "run1"]


def test_a_renamed_run_has_its_new_name_wherever_it_is_read(store: Path) -> None:
    rename_run(store, "run1", "baseline")
    assert names(store) == ["baseline", "other"]
    assert open_run("baseline", store=store).name == "baseline"
    assert b'"run":"baseline"' in (store / "baseline.zarr" / "zarr.json").read_bytes()
    assert not [path for path in store.rglob("*") if "run1" in path.name]
    assert anchor("verify", "baseline", "--store", store).code == 0
    with Writer.open(store, "baseline", 0, resume=True) as writer:
        put(writer, [record(step=9)])
    assert anchor("verify", "baseline", "--store", store).code == 0


@pytest.mark.parametrize("how", ["removed", "renamed"])
def test_who_reads_a_run_that_goes_is_told_so_and_not_of_damage(store: Path, how: str) -> None:
    (info,) = open_run("run1", store).tensors()
    series = open_run("run1", store)[f"{info.name}@{info.kind}"]
    if how == "removed":
        remove_run(store, "run1")
    else:
        rename_run(store, "run1", "baseline")
    with pytest.raises(RunNotFoundError, match="run1: rank 0 is not there any more: the run was"):
        series.values()


def test_a_name_that_is_taken_is_refused_whatever_has_it(store: Path) -> None:
    (store / "dangling.zarr").symlink_to("nowhere")
    for name in ("other", "dangling", "run1"):
        with pytest.raises(RunExistsError, match="already"):
            rename_run(store, "run1", name)
    with pytest.raises(RunNotFoundError):
        rename_run(store, "rnu1", "new")
    assert names(store) == ["other", "run1"]


def test_what_was_written_since_it_was_chosen_stays(store: Path) -> None:
    with pytest.raises(RunBusyError, match="written to a moment ago"):
        remove_run(store, "run1", unless_after=1_700_000_000_000_000_000)
    assert "run1" in names(store)
