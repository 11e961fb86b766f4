"""The few things that a spool asks of a file system; tests put one that fails in its place."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from anchorlib.wire import Buffer

__all__ = ["Disk"]


class Disk:
    """The system's own files. Everything raises OSError."""

    def create(self, path: Path) -> int:
        """A new file, to be added to and to be read."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)

    def write(self, file: int, parts: Sequence[Buffer]) -> int:
        """Add bytes at the end; how many were written, which may be fewer."""
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
        """Remove a file; that it is gone already is no fault."""
        path.unlink(missing_ok=True)

    def rename(self, old: Path, new: Path) -> None:
        """Give a file another name."""
        old.rename(new)

    def free(self, folder: Path) -> int:
        """Bytes that may still be written beside `folder`."""
        status = os.statvfs(folder)
        return status.f_bavail * status.f_frsize
