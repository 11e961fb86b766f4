"""A whole run, held so that no process writes any of its ranks, or begins to."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from anchorlib.errors import RunBusyError, StoreError
from anchorlib.names import escape
from anchorlib.store.latch import shut
from anchorlib.store.layout import hidden, rank_of, run_directory
from anchorlib.store.lock import acquire, holder, is_locked

__all__ = ["drop_locks", "is_written", "move_locks", "whole_run"]

_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LOCK: Final = re.compile(r"(.+)\.(rank[0-9]+)\.lock")


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
    folder = hidden(store) / "locks"
    try:
        found = [(_LOCK.fullmatch(path.name), path) for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(
        (m[2], path) for m, path in found if m and m[1] == run and rank_of(m[2]) is not None
    )


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
