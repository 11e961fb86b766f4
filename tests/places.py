"""Where tests write: in memory where there is enough of it, and gone when they are over."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")  # Linux's file system in memory
_PREFIX = "anchorlib-tests-"
_ENOUGH = 6 << 30
"""Bytes that must be free there; a run of all tests holds less than half of that at any time."""


def own_place() -> str:
    """The temporary folder of this run, for it and for every program that it starts.

    The processes that pytest-xdist starts share that of the process that started them. A thousand
    stores are written, flushed to the disk and removed: on a disk that takes half of the time.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        return tempfile.gettempdir()
    remove_left(_MEMORY)
    if _has_room(_MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))  # where pytest's tmp_path is
    folder = Path(os.environ.get("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir()))
    if folder != _MEMORY:
        remove_left(folder)
    place = tempfile.mkdtemp(prefix=f"{_PREFIX}{_namespace()}-{os.getpid()}-", dir=folder)
    os.environ["TMPDIR"] = tempfile.tempdir = place
    atexit.register(_remove, place, os.getpid())
    return place


def remove_left(folder: Path) -> None:
    """Removes the places of runs that were killed before they could do it.

    The name of a place tells the process that owns it. Containers may share the memory of their
    machine and not their processes: what was left in another one is for runs there to remove.
    """
    for place in folder.glob(f"{_PREFIX}{_namespace()}-*-*"):
        owner = place.name.rpartition("-")[0].rpartition("-")[2]
        if owner.isdecimal() and not _is_alive(int(owner)):
            shutil.rmtree(place, ignore_errors=True)


def _namespace() -> str:
    """The process namespace of this container or machine."""
    try:
        return f"{Path('/proc/self/ns/pid').stat().st_ino:x}"
    except OSError:  # not on Linux
        return "0"


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # another user's; no process at all
        return True
    return True


def _has_room(folder: Path) -> bool:
    """Whether so much can be written there, and programs run from there."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    free = found.f_bavail * found.f_frsize
    runs = not found.f_flag & os.ST_NOEXEC
    return runs and free >= _ENOUGH and os.access(folder, os.W_OK)


def _remove(place: str, owner: int) -> None:
    if os.getpid() == owner:  # not in a child that was forked, and ends as Python does
        shutil.rmtree(place, ignore_errors=True)
