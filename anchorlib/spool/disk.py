"""The calls that a spool makes to the file system; tests replace them by a disk that fails."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from anchorlib.wire import Buffer

__all__ = ["Disk"]


class Disk:
    """The calls to the file system that a spool makes. Every method may raise OSError."""

    def create(self, path: Path) -> int:
        """Make a new file for appending and reading; return its descriptor.

        An existing file is an error (FileExistsError).
        """
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)

    def write(self, file: int, parts: Sequence[Buffer]) -> int:
        """Append `parts` to a file; return how many bytes were written, perhaps not all."""
        return os.writev(file, parts)

    def truncate(self, file: int, size: int) -> None:
        """Cut a file to `size` bytes."""
        os.ftruncate(file, size)

    def sync(self, file: int) -> None:
        """Block until the file's bytes survive a power loss."""
        os.fdatasync(file)

    def sync_folder(self, folder: Path) -> None:
        """Block until the entries of a folder (which files it has) survive a power loss."""
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""
        path.unlink(missing_ok=True)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file."""
        old.rename(new)

    def free(self, folder: Path) -> int:
        """Return how many bytes are free on the file system that holds `folder`."""
        status = os.statvfs(folder)
        return status.f_bavail * status.f_frsize
