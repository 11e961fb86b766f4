"""Removes, renames and adds runs: completely or not at all, never while a process writes them.

A note is a file of the store that says where a run was archived. Also while a run's note is
written, the run is locked: if a recording began at that time, the note would count the new records
as archived.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from anchorlib.errors import (
    AnchorError,
    OptionError,
    RunBusyError,
    RunExistsError,
    RunNotFoundError,
    StoreError,
)
from anchorlib.names import check_run_name, check_stored_run_name, escape
from anchorlib.store.disk import (
    ArchiveNote,
    NodeWriter,
    delete_aside,
    drop_locks,
    forget,
    move_locks,
    note_of,
    put_aside,
    run_author,
    run_document,
    sync_directory,
    whole_run,
    write_note,
)
from anchorlib.store.format import rank_name, run_directory
from anchorlib.store.locations import LocalLocation, PartKey
from anchorlib.store.read import RankReader, RunReader, open_parts
from anchorlib.store.write import store_errors

__all__ = [
    "evict_run",
    "forget_run",
    "newest_ns",
    "note_archived",
    "note_moved",
    "place_run",
    "remove_rank",
    "remove_run",
    "rename_run",
    "written_ns",
]


def remove_run(store: Path, run: str, *, unless_after: int | None = None) -> int:
    """Remove a run; return the bytes of disk that this freed.

    One rename takes the run out of the store, then its files are deleted. Where the run's folder is
    a link, the link is removed and the folder that it leads to stays.

    unless_after: a time in nanoseconds since the epoch, as `written_ns` returns it; a run that was
        written to after that time stays, and RunBusyError is raised.

    Where the run's files are in its archive alone and `unless_after` is None, the store only
    deletes its note of the archive, and the result is 0; with `unless_after`, RunNotFoundError is
    raised. Raises RunNotFoundError also for an unknown run, RunBusyError where a living process
    writes the run, StoreError where the disk fails or a file is in the place of the run's folder.
    """
    check_stored_run_name(run)
    folder = run_directory(store, run)
    with store_errors(f"cannot remove run {run!r} of {escape(str(store))}"):
        with whole_run(store, run):
            if unless_after is None and _is_alone(store, run):
                drop_locks(store, run)
                forget(store, run)
                return 0
            _check_there(folder, run, store)
            if unless_after is not None and _written(folder, run) > unless_after:
                raise RunBusyError(f"run {run!r} was written to a moment ago: it stays")
            aside = put_aside(store, folder)
            drop_locks(store, run)
            forget(store, run)
        return delete_aside(store, aside)


def forget_run(store: Path, run: str) -> None:
    """Delete a store's note of an archived run, so that this store does not list the run any more.

    A note is the file that says where a run was archived. The archive is not changed. Raises
    RunBusyError where the store has files of the run again, or the run is being recorded anew,
    StoreError where the disk fails.
    """
    check_stored_run_name(run)
    with store_errors(f"cannot forget run {run!r} of {escape(str(store))}"), whole_run(store, run):
        if os.path.lexists(run_directory(store, run)):
            raise RunBusyError(f"run {run!r} was recorded anew a moment ago: it stays")
        drop_locks(store, run)
        forget(store, run)


def evict_run(store: Path, note: ArchiveNote) -> int:
    """Remove the files of an archived run; return the bytes of disk that this freed.

    note: the store's note, the file that says where and in which state the run was archived. The
    note stays in the store: readers find the run by it. Raises RunBusyError where a living process
    writes the run, or where the run has changed since it was archived (resumed, or recorded anew),
    RunNotFoundError where the store has no files of the run, StoreError where the disk fails.
    """
    folder = run_directory(store, note.run)
    with store_errors(f"cannot remove run {note.run!r} of {escape(str(store))}"):
        with whole_run(store, note.run):
            _check_there(folder, note.run, store)
            if _parts_of(folder, note.run) != {key: one.sealed for key, one in note.parts.items()}:
                raise RunBusyError(f"run {note.run!r} has changed since it was archived: it stays")
            aside = put_aside(store, folder)
            drop_locks(store, note.run)
        return delete_aside(store, aside)


def note_archived(store: Path, note: ArchiveNote) -> None:
    """Write the note (file) that says where a run is archived, if the run has not changed since.

    note: what to write; it says which state of each rank was sent to the archive. Raises
        RunBusyError where a living process writes the run, or where the run has changed since it
        was sent (resumed, or recorded anew), RunNotFoundError where the store has no files of the
        run, StoreError where the disk fails.
    """
    run, folder = note.run, run_directory(store, note.run)
    with store_errors(_unnoted(store, run)), whole_run(store, run):
        _check_there(folder, run, store)
        if _parts_of(folder, run) != {key: one.sealed for key, one in note.parts.items()}:
            raise RunBusyError(
                f"run {run!r} was recorded into while it was archived: it stays as it is now, and "
                f"{escape(note.place)} has it as it was before"
            )
        write_note(store, note)


def note_moved(store: Path, known: ArchiveNote, note: ArchiveNote) -> None:
    """Replace the note `known`, which says where a run is archived, by `note`.

    To be called for a run whose files are in its archive alone. Raises RunBusyError, and changes
    nothing, where the store has files of the run again, or another note of it than `known`;
    StoreError where the disk fails.
    """
    run = note.run
    with store_errors(_unnoted(store, run)), whole_run(store, run):
        if os.path.lexists(run_directory(store, run)) or note_of(store, run) != known:
            raise RunBusyError(
                f"run {run!r} was recorded anew, forgotten or noted at another place a moment ago: "
                "nothing was changed"
            )
        write_note(store, note)


def _unnoted(store: Path, run: str) -> str:
    return f"cannot note that {run!r} is archived in {escape(str(store))}"


def _parts_of(folder: Path, run: str) -> dict[PartKey, tuple[str, int, int]]:
    readers = open_parts(LocalLocation(folder), run)
    return {(one.rank, one.part): (one.catalogue.uid, *one.version) for one in readers}


def remove_rank(store: Path, run: str, rank: int) -> int:
    """Remove one rank of a run; return the bytes of disk that this freed.

    Only the folder `rank<r>` is removed: where several collectors share the rank, the folders of
    its later parts (`rank<r>.p1`, …) stay. Raises RunNotFoundError where there is no such folder,
    RunBusyError where a living process writes the run, StoreError where the disk fails.
    """
    check_stored_run_name(run)
    folder = run_directory(store, run) / rank_name(rank)
    with store_errors(f"cannot remove rank {rank} of run {run!r} of {escape(str(store))}"):
        with whole_run(store, run):
            if not os.path.lexists(folder):
                raise RunNotFoundError(f"run {run!r} has no rank {rank}")
            aside = put_aside(store, folder)
        return delete_aside(store, aside)


def rename_run(store: Path, run: str, name: str) -> None:
    """Give a run another name; delete the note of where it was archived under the old name.

    Raises RunNotFoundError for an unknown run, OptionError for a run whose files are in its archive
    alone, InvalidNameError where `name` may not be a run's name, RunExistsError where another run
    has that name, RunBusyError where a living process writes a run of either name, StoreError
    where the disk fails.
    """
    check_stored_run_name(run)
    check_run_name(name)
    old, new = run_directory(store, run), run_directory(store, name)
    where = f"cannot rename run {run!r} of {escape(str(store))}"
    with store_errors(where), whole_run(store, run, name):
        if _is_alone(store, run):
            raise OptionError(
                f"run {run!r} left for its archive a moment ago, and nothing is renamed there: its "
                "files are in that archive alone"
            )
        _check_there(old, run, store)
        document = _renamed(old, new)
        _move(old, new, name)
        move_locks(store, run, name)
        forget(store, run)  # the archive has the run under its old name alone
        if document is not None and not new.is_symlink():
            # The only document in a run that names it, for readers other than this library.
            NodeWriter(store).replace(new, document)


def place_run(store: Path, made: Path, name: str) -> None:
    """Move a finished run from elsewhere on the same file system into a store, under this name.

    made: the folder of the run. Raises RunExistsError where another run has the name, RunBusyError
    where a living process is about to write a run of this name, InvalidNameError where `name` may
    not be a run's name, StoreError where the disk fails.
    """
    check_run_name(name)
    with store_errors(f"cannot make run {name!r} in {escape(str(store))}"), whole_run(store, name):
        _move(made, run_directory(store, name), name)


def written_ns(run: RunReader) -> int:
    """Return when a run was last written to, in nanoseconds since the epoch.

    This is the newest time at which a rank was made, an attempt began or a rank's last record was
    observed. It is never in the future, even where a recording machine's clock was ahead.
    """
    return newest_ns(map(run.rank, run.ranks))


def newest_ns(readers: Iterable[RankReader]) -> int:
    """Return when any of these ranks was last written to, in nanoseconds since the epoch.

    readers: of ranks or parts of ranks. The result is the newest time at which a rank was made, an
        attempt began or a rank's last record was observed; 0 without readers, and never in the
        future.
    """
    times = [0]
    for reader in readers:
        times += [reader.catalogue.created_ns]
        times += [attempt.started_ns for attempt in reader.catalogue.attempts]
        if reader.committed:
            last = reader.span("time_ns", reader.committed - 1, reader.committed)
            times.append(int(last[0]))
    return min(max(times), time.time_ns())


def _is_alone(store: Path, run: str) -> bool:
    """Return whether a run is in its archive alone.

    That is, the store has none of its files, but a note that says where it was archived.
    """
    return not os.path.lexists(run_directory(store, run)) and note_of(store, run) is not None


def _check_there(folder: Path, run: str, store: Path) -> None:
    if not os.path.lexists(folder):
        raise RunNotFoundError(f"no run {run!r} in {escape(str(store))}")
    if not folder.is_dir() and not folder.is_symlink():
        raise StoreError(f"{escape(str(folder))} is a file, and no run: remove it by hand")


def _written(folder: Path, run: str) -> int:
    reader = RunReader(LocalLocation(folder), run)
    try:
        reader.refresh()
        return written_ns(reader)
    except AnchorError:  # its age cannot be read, so it counts as written just now, and stays
        return time.time_ns()


def _renamed(old: Path, new: Path) -> bytes | None:
    """Return the zarr.json that a run gets with its new name; the author in this file stays.

    The author is the name by which a collector knows the writer that made the run. Return None
    where the present zarr.json cannot be read, or there is neither a zarr.json nor a rank. The
    caller then leaves the file as it is: a file made again without an author would let anyone
    continue the run.
    old, new: the run's directory before and after it is renamed.
    """
    try:
        author = run_author(old)
    except StoreError:
        return None
    return None if author is None else run_document(new, author)


def _move(old: Path, new: Path, name: str) -> None:
    """Rename a folder; raise RunExistsError where a run has the new name, here or in an archive."""
    if os.path.lexists(new) or note_of(new.parent, name) is not None:
        raise RunExistsError(
            f"there is a run {name!r} in {escape(str(new.parent))} already: take another name, or "
            "remove that one first (anchor rm)"
        )
    old.rename(new)
    sync_directory(new.parent)
