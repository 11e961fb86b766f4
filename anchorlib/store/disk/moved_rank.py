"""Checks that a rank's directory is still where its writer found it.

A writer keeps some files open and opens others by their path. Once the run is moved or removed,
open files and paths lead to different places: rows would be written into the files that are open,
and values and labels that need a new file would be missing beside them.
"""

# ruff: noqa: PTH115, PTH116  # asked before each write: Path objects cost more

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from anchorlib.errors import StoreError
from anchorlib.names import escape

__all__ = ["RankDirectoryWatch"]

_GONE: Final = " (deleted)"


class RankDirectoryWatch:
    """Recognises the directory of one rank, which it holds open, to notice when it is moved."""

    def __init__(self, path: Path, run: str, rank: int) -> None:
        self._path = str(path)
        self._run = run
        self._rank = rank
        self._said = False
        # Kept open, so that a directory made later in its place cannot get its inode number.
        self._file = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self._first_seen = _identity(os.fstat(self._file))

    def check(self) -> None:
        """Raise StoreError where the rank's path leads to another directory now, or to none."""
        if not self._is_here():
            self._said = True
            raise StoreError(self._fate())

    def is_known_gone(self) -> bool:
        """Return whether `check` has raised before, and the rank's directory is still not there."""
        return self._said and not self._is_here()

    def close(self) -> None:
        """Close the descriptor of the rank's directory."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _is_here(self) -> bool:
        try:
            return _identity(os.stat(self._path)) == self._first_seen
        except OSError:
            return False

    def _fate(self) -> str:
        """Return an error message: what became of the directory, and what to do.

        Paths come last in the message, because they may be long.
        """
        during = f"while rank {self._rank} was recorded into it: start another run"
        try:
            now = os.readlink(f"/proc/self/fd/{self._file}")
        except OSError:  # a system without /proc
            return f"run {self._run!r} was moved or removed {during}, or put {self._path} back"
        if now.endswith(_GONE):
            return f"run {self._run!r} was removed {during}"
        return (
            f"run {self._run!r} was moved {during}, or move it back: {escape(now)} was {self._path}"
        )


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
