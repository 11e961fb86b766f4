"""The calls that a spool makes to the file system; tests replace them by a disk that fails."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from anchorlib.wire import Buffer

__all__ = ["Disk"]


class Disk:
    """The file system. Every method raises OSError."""

    def create(self, path: Path) -> int:
        """Make a file, to append and read; returns its descriptor."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)

    def write(self, file: int, parts: Sequence[Buffer]) -> int:
        """Append bytes; returns how many were written, which may be fewer than given."""
        return os.writev(file, parts)

    def truncate(self, file: int, size: int) -> None:
        """Cut a file to `size`."""
        os.ftruncate(file, size)

    def sync(self, file: int) -> None:
        """Return when the file's bytes survive power loss."""
        os.fdatasync(file)

    def sync_folder(self, folder: Path) -> None:
        """Return when the names in a folder survive power loss."""
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""
        path.unlink(missing_ok=True)

    def rename(self, old: Path, new: Path) -> None:
        """Give a file another name."""
        old.rename(new)

    def free(self, folder: Path) -> int:
        """Free bytes of the file system that holds `folder`."""
        status = os.statvfs(folder)
        return status.f_bavail * status.f_frsize
