"""At most one writer for each rank: a lock file outside the zarr hierarchy, which names its holder.

The file is locked with flock, because the system drops such a lock when its holder dies, however it
dies.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import time
import weakref
from pathlib import Path
from typing import Any, Final, Self

from anchorlib.errors import RunBusyError
from anchorlib.names import escape
from anchorlib.store.disk.latch import shared_latch
from anchorlib.store.format import hidden, rank_name

__all__ = ["RankLock", "acquire", "holder", "is_locked", "lock_path", "signed"]

_log = logging.getLogger("anchorlib")

_DRAIN_SECONDS: Final = 60.0

_HELD: weakref.WeakSet[RankLock] = weakref.WeakSet()


class RankLock:
    """The exclusive right to write one rank of one run, until `release`.

    The lock lasts as long as any process has the descriptor of the lock file open, so a child
    process that inherits the descriptor shares the lock.
    """

    def __init__(self, descriptor: int) -> None:
        """Stand for a lock that this process holds already; nothing is locked here.

        descriptor: the open lock file, which `take` has locked or a parent process has passed on.
        """
        self._descriptor = descriptor
        _HELD.add(self)

    @classmethod
    def take(cls, store: Path, run: str, rank: int, part: int = 0) -> RankLock:
        """Take the lock of one rank of one run, or of the part of the rank that is stored here.

        Where the recorder process of a trainer that has died still holds the lock, this waits for
        it up to a minute. Raises RunBusyError where another writer has the lock.

        part: the number of the part, where several collectors share the rank; else 0.
        """
        while True:
            lock = cls._taken(store, run, rank, part)
            if lock is not None:
                return lock

    @classmethod
    def _taken(cls, store: Path, run: str, rank: int, part: int) -> Self | None:
        """Lock the lock file of a rank, if need be after a wait, and return the lock.

        The wait is for the recorder process of a trainer that has died. Return None where the lock
        file was removed together with its run during the wait: then the caller has to try again.
        Raises RunBusyError where another writer has the lock.
        """
        path = lock_path(store, run, rank, part)
        with shared_latch(store):
            lock = cls(os.open(path, os.O_RDWR | os.O_CREAT, 0o644))
            own = acquire(lock.descriptor)
        try:
            if not (own or _inherited(lock.descriptor)):
                raise RunBusyError(
                    f"rank {rank} of run {run!r} is being written by {holder(lock.descriptor)}; "
                    "stop it, or take another run name or rank"
                )
            if not own and not _is_at(lock.descriptor, path):
                lock.release()
                return None
            _sign(lock.descriptor)
        except BaseException:
            lock.release()
            raise
        return lock

    @property
    def descriptor(self) -> int:
        """The descriptor of the lock file, for a child to inherit; -1 once the lock is released."""
        return self._descriptor

    def release(self) -> None:
        """Close the lock file, which unlocks the rank unless a child still has the file open.

        A second call does nothing.
        """
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            _HELD.discard(self)


def lock_path(store: Path, run: str, rank: int, part: int = 0) -> Path:
    """Return the path of the lock file of one rank, or of part `part` of the rank.

    part: 0 unless several collectors share the rank.
    """
    return hidden(store) / "locks" / f"{run}.{rank_name(rank, part)}.lock"


def is_locked(path: Path) -> bool:
    """Return whether a live process holds the lock whose file is `path`.

    False where there is no such file, where this process may not open the file, and on file systems
    without locks.
    """
    try:
        # O_NONBLOCK: opening a pipe in that place would otherwise wait for a writer of it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):  # another user's file cannot be asked
        return False
    try:
        # A shared lock, so that processes that only ask never get in each other's way.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks: nobody can hold one
        return False
    finally:
        os.close(descriptor)
    return False


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether the open file `descriptor` is the file that is at `path` now.

    False means that the file was removed or replaced.
    """
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def acquire(descriptor: int) -> bool:
    """Try for a tenth of a second to lock an open lock file for this process alone.

    Return whether this succeeded. The pauses let a process that only looks at the lock finish.
    """
    for _ in range(20):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.005)  # `is_locked` in another process locks the file for microseconds
        else:
            return True
    return False


def _inherited(descriptor: int) -> bool:
    """Wait up to a minute for a lock that the recorder process of a dead trainer still holds.

    Return whether this process has the lock now. The result is False at once where the process that
    took the lock still lives, or ran on another machine.
    """
    if not _orphaned(descriptor):
        return False
    _log.warning(
        "anchorlib: the recorder of a trainer that has ended is still writing its records; this "
        "process waits for that, %g s at most",
        _DRAIN_SECONDS,
    )
    end = time.monotonic() + _DRAIN_SECONDS
    while time.monotonic() < end and _orphaned(descriptor):
        if acquire(descriptor):
            return True
    return acquire(descriptor)


def _orphaned(descriptor: int) -> bool:
    """Return whether the process that took the lock is gone: then a child of it holds the lock.

    False also where the process ran on another machine, or where the lock file does not say which
    process it was.
    """
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
        return owner["host"] == socket.gethostname() and not _lives(int(owner["pid"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return False


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's process lives too, though no signal may be sent to it
        return True
    return True


def _sign(descriptor: int) -> None:
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since_ns": time.time_ns()}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(owner).encode(), 0)


def signed(path: Path) -> tuple[str, int] | None:
    """Return where and when a lock was taken, as (machine, nanoseconds since the epoch).

    None if the lock file at `path` does not say it, or cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        owner: dict[str, Any] = json.loads(os.pread(descriptor, 4096, 0))
        host, since = str(owner["host"]), int(owner["since_ns"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    finally:
        os.close(descriptor)
    return (host, since) if 0 <= since < 1 << 63 else None


def holder(descriptor: int) -> str:
    """Return, in words, the process that an open lock file names as its holder.

    The result is "another process" where the lock file names none.
    """
    try:
        owner: dict[str, Any] = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {int(owner['pid'])} on {escape(str(owner['host']))}"
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return "another process"


def _forget_in_child() -> None:
    # A forked child shares the lock: a DataLoader's worker would keep it when its parent has died.
    for lock in list(_HELD):
        lock.release()


os.register_at_fork(after_in_child=_forget_in_child)
