"""The latch of a store: a file lock that writers share while they take a rank, and removers do not.

A rank's lock says who writes that rank. It does not say who is about to take another rank of that
run. So a writer holds the latch, shared with other writers, while it takes a rank's lock, and a
process that removes or renames a run holds the latch alone: no rank can be taken between its look
at the run's locks and its rename.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from anchorlib.errors import RunBusyError
from anchorlib.names import escape
from anchorlib.store.format import hidden

__all__ = ["exclusive_latch", "shared_latch"]

_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_PATIENCE: Final = 10.0  # seconds; a rename and the taking of a lock each take milliseconds
_PAUSE: Final = 0.002


@contextmanager
def shared_latch(store: Path) -> Iterator[None]:
    """Hold the store's latch (its lock for taking ranks) shared, while a writer takes a rank.

    Waits for the latch; raises RunBusyError where a process that removes or renames runs holds the
    latch for more than ten seconds.
    """
    with _held(store, fcntl.LOCK_SH):
        yield


@contextmanager
def exclusive_latch(store: Path) -> Iterator[None]:
    """Hold the store's latch (its lock for taking ranks) alone, to remove or rename a run.

    While the latch is held so, no process can take a rank of the store. Waits for the latch; raises
    RunBusyError where other processes hold it for more than ten seconds.
    """
    with _held(store, fcntl.LOCK_EX):
        yield


@contextmanager
def _held(store: Path, how: int) -> Iterator[None]:
    descriptor = _opened(store)
    try:
        _take(descriptor, how, store)
        try:
            yield
        finally:
            # A child that was forked meanwhile shares the lock: closing the file alone would leave
            # it locked.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _opened(store: Path) -> int:
    path = hidden(store) / "locks" / "latch"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o666)
    except PermissionError:  # made by another user of the store: opened for reading it can lock
        return os.open(path, os.O_RDONLY | _FLAGS)


def _take(descriptor: int, how: int, store: Path) -> None:
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise RunBusyError(
                    f"another process is removing or opening runs of {escape(str(store))} and does "
                    "not finish: look for a stopped process, then try again"
                ) from None
            time.sleep(_PAUSE)
        else:
            return
