"""Where tests write: in memory where there is enough of it, and gone when they are over."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")  # Linux's file system in memory
_ENOUGH = 6 << 30
"""Bytes that must be free there; a run of all tests holds less than half of that at any time."""


def own_place() -> str:
    """The temporary folder of this run, for it and for every program that it starts.

    The processes that pytest-xdist starts share that of the process that started them. A thousand
    stores are written, flushed to the disk and removed: on a disk that takes half of the time.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        return tempfile.gettempdir()
    if _has_room(_MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))  # where pytest's tmp_path is
    place = tempfile.mkdtemp(prefix="anchorlib-tests-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT"))
    os.environ["TMPDIR"] = tempfile.tempdir = place
    atexit.register(_remove, place, os.getpid())
    return place


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
