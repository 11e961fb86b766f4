"""Who holds the ranks of runs; and a whole run held, so that no process writes it or begins to."""

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
from anchorlib.store.disk.latch import shut
from anchorlib.store.disk.lock import acquire, holder, is_locked, signed
from anchorlib.store.format import hidden, part_of, rank_of, run_directory

__all__ = ["HeldRank", "drop_locks", "held_ranks", "is_written", "move_locks", "whole_run"]

_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LOCK: Final = re.compile(r"(.+)\.(rank[0-9]+(?:\.p[0-9]+)?)\.lock")


@dataclass(frozen=True, slots=True)
class HeldRank:
    """A rank that a living process writes.

    host, since_ns: on which machine, and since when (ns since the epoch), as it signed its lock;
        None where it did not.
    """

    run: str
    rank: int
    host: str | None
    since_ns: int | None
    part: int = 0


def held_ranks(store: Path) -> list[HeldRank]:
    """The ranks of a directory's runs that are being written, in the order of runs and ranks.

    Raises StoreError where the lock files cannot be listed.
    """
    try:
        locked = [one for one in _all_locks(store) if is_locked(one[2])]
    except OSError as error:
        raise _unasked(hidden(store) / "locks", error) from error
    found = [_held(*one) for one in locked]
    return sorted(found, key=lambda one: (one.run, one.rank))


def _held(run: str, name: str, path: Path) -> HeldRank:
    host, since = signed(path) or (None, None)
    return HeldRank(run, rank_of(name) or 0, host, since, part_of(name))


@contextmanager
def whole_run(store: Path, *runs: str) -> Iterator[None]:
    """Holds all locks of these runs while the context lasts; no rank of the store is taken then.

    A run may have further names that are links to it: it is held under these as well. Raises
    RunBusyError where a living process writes one of them, StoreError where that cannot be asked.
    """
    with shut(store), ExitStack() as held:
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
    """Whether a living process writes a rank of the run."""
    names = _names(store, run)
    return any(is_locked(path) for name in names for _, path in _locks(store, name))


def drop_locks(store: Path, run: str) -> None:
    """Removes the lock files of a run that is no more; only while `whole_run` holds them."""
    for _, path in _locks(store, run):
        with contextlib.suppress(OSError):
            path.unlink()


def move_locks(store: Path, run: str, name: str) -> None:
    """Gives the lock files of a run its new name; as `drop_locks`."""
    for rank, path in _locks(store, run):
        with contextlib.suppress(OSError):
            path.rename(path.with_name(f"{name}.{rank}.lock"))


def _locks(store: Path, run: str) -> list[tuple[str, Path]]:
    """Each rank that was ever locked, and its lock file: also of ranks that are not made yet."""
    return sorted((rank, path) for name, rank, path in _all_locks(store) if name == run)


def _all_locks(store: Path) -> Iterator[tuple[str, str, Path]]:
    """The run, the name of the rank, and the lock file, of every rank that was ever locked."""
    try:
        paths = list((hidden(store) / "locks").iterdir())
    except FileNotFoundError:
        return
    for path in paths:
        named = _LOCK.fullmatch(path.name)
        if named and rank_of(named[2]) is not None:
            yield named[1], named[2], path


def _names(store: Path, run: str) -> list[str]:
    """The run's name, and those that are links to its folder."""
    folder = run_directory(store, run)
    if folder.is_symlink():
        return [run]
    links = (path for path in store.glob("*.zarr") if path.is_symlink())
    return [run, *(link.stem for link in links if _leads_to(link, folder))]


def _leads_to(link: Path, folder: Path) -> bool:
    try:
        return link.samefile(folder)
    except (OSError, RuntimeError):  # to nothing, or to itself
        return False


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | _FLAGS)
    except PermissionError:
        try:
            return os.open(path, os.O_RDONLY | _FLAGS)  # of another user's
        except OSError as error:
            raise _unasked(path, error) from error
    except OSError as error:
        raise _unasked(path, error) from error


def _unasked(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"cannot ask {escape(str(path))} whether somebody writes the run: {error.strerror}"
    )
