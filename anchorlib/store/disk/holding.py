"""Finds which processes are writing ranks; locks whole runs so that no process can write them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from anchorlib.errors import RunBusyError, StoreError
from anchorlib.names import escape
from anchorlib.store.disk.latch import exclusive_latch
from anchorlib.store.disk.lock import acquire, holder, is_locked, signed
from anchorlib.store.format import hidden, part_of, rank_of, run_directory

__all__ = ["HeldRank", "drop_locks", "held_ranks", "is_written", "move_locks", "whole_run"]

_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LOCK: Final = re.compile(r"(.+)\.(rank[0-9]+(?:\.p[0-9]+)?)\.lock")


@dataclass(frozen=True, slots=True)
class HeldRank:
    """A rank that a living process is writing.

    host, since_ns: the machine of that process, and since when the process holds the rank (ns since
        the epoch), as the lock file says; None where the lock file does not say it. part: the
        number of the part of the rank, where several collectors share a rank; else 0.
    """

    run: str
    rank: int
    host: str | None
    since_ns: int | None
    part: int = 0


def held_ranks(store: Path) -> list[HeldRank]:
    """Return the ranks in a store that are being written, in the order of runs and ranks.

    Raises StoreError where the lock files cannot be listed.
    """
    try:
        locked = [one for one in _all_locks(store) if is_locked(one[2])]
    except OSError as error:
        raise _unasked(hidden(store) / "locks", error) from error
    ranks = [_held(*one) for one in locked]
    return sorted(ranks, key=lambda one: (one.run, one.rank))


def _held(run: str, name: str, path: Path) -> HeldRank:
    host, since = signed(path) or (None, None)
    return HeldRank(run, rank_of(name) or 0, host, since, part_of(name))


@contextmanager
def whole_run(store: Path, *runs: str) -> Iterator[None]:
    """Lock all ranks of these runs inside the `with`, so that no process can start to write one.

    A run may have further names, which are links to its folder: the ranks are locked under these
    names as well. Raises RunBusyError where a living process writes one of the runs, or where other
    processes take ranks or remove runs for too long; StoreError where a lock file cannot be opened.
    """
    with exclusive_latch(store), ExitStack() as held:
        for name in dict.fromkeys(one for run in runs for one in _names(store, run)):
            for rank, path in _locks(store, name):
                descriptor = _opened(path)
                held.callback(os.close, descriptor)
                if not acquire(descriptor):
                    raise RunBusyError(
                        f"run {name!r} is being written ({rank} by {holder(descriptor)}): stop "
                        "that process first"
                    )
        yield


def is_written(store: Path, run: str) -> bool:
    """Return whether a living process is writing a rank of the run."""
    names = _names(store, run)
    return any(is_locked(path) for name in names for _, path in _locks(store, name))


def drop_locks(store: Path, run: str) -> None:
    """Remove the lock files of a run that was removed; the caller has to be inside `whole_run`."""
    for _, path in _locks(store, run):
        with contextlib.suppress(OSError):
            path.unlink()


def move_locks(store: Path, run: str, name: str) -> None:
    """Rename the lock files of run `run` to its new name `name`; only inside `whole_run`."""
    for rank, path in _locks(store, run):
        with contextlib.suppress(OSError):
            path.rename(path.with_name(f"{name}.{rank}.lock"))


def _locks(store: Path, run: str) -> list[tuple[str, Path]]:
    """Return (rank name, lock file) of each rank of the run that was ever locked, sorted.

    "rank3" is the name of a rank, "rank3.p1" the name of a part of a rank. A rank that was locked
    is listed even if nothing was ever recorded in it.
    """
    return sorted((rank, path) for name, rank, path in _all_locks(store) if name == run)


def _all_locks(store: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield (run, rank name, lock file) of every rank of the store that was ever locked.

    A rank name is "rank3", or "rank3.p1" for a part of a rank.
    """
    try:
        paths = list((hidden(store) / "locks").iterdir())
    except FileNotFoundError:
        return
    for path in paths:
        named = _LOCK.fullmatch(path.name)
        if named and rank_of(named[2]) is not None:
            yield named[1], named[2], path


def _names(store: Path, run: str) -> list[str]:
    """Return the run's name, and further names in the store that are links to the run's folder.

    If `run` itself is such a link, only `run` is returned.
    """
    folder = run_directory(store, run)
    if folder.is_symlink():
        return [run]
    links = (path for path in store.glob("*.zarr") if path.is_symlink())
    return [run, *(link.stem for link in links if _leads_to(link, folder))]


def _leads_to(link: Path, folder: Path) -> bool:
    try:
        return link.samefile(folder)
    except (OSError, RuntimeError):  # a link to nothing, or to itself
        return False


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | _FLAGS)
    except PermissionError:
        try:
            return os.open(path, os.O_RDONLY | _FLAGS)  # another user's file: reading is enough
        except OSError as error:
            raise _unasked(path, error) from error
    except OSError as error:
        raise _unasked(path, error) from error


def _unasked(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"cannot find out from {escape(str(path))} whether a process writes the run: "
        f"{error.strerror}"
    )
