"""What was taken out of a store and is being deleted.

    <store>/run1.zarr  ──rename──▶  <store>/.anchor/removed/run1.zarr.5f0ca6aa  ──▶  nothing

One rename takes a run, or a rank, out of every listing, whole; deleting it takes as long as it
takes. What an interruption leaves there is deleted by the next `finish_removals`. No link is
followed, neither on the way to this folder nor in what is deleted.
"""

# ruff: noqa: PTH208  # names below an open folder have no path

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from anchorlib.errors import StoreError
from anchorlib.names import escape
from anchorlib.store.disk.tree import sync_directory
from anchorlib.store.format import hidden

__all__ = ["delete_aside", "disk_bytes", "finish_removals", "put_aside", "waiting_removals"]

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK: Final = 512  # bytes, as st_blocks counts
_NAME: Final = "removed"


def put_aside(store: Path, path: Path) -> str:
    """Takes `path` out of the tree by one rename; its name among what is being deleted."""
    name = f"{path.name}.{os.urandom(4).hex()}"
    with contextlib.suppress(FileExistsError):
        (hidden(store) / _NAME).mkdir(parents=True)
    with _removed(store) as folder:
        if folder is None:
            raise StoreError(f"{escape(str(hidden(store) / _NAME))} is no folder of this store")
        os.rename(path, name, dst_dir_fd=folder)
        os.fsync(folder)
    # Before anything is deleted: power loss must not bring a run back of which a part is gone.
    sync_directory(path.parent)
    return name


def delete_aside(store: Path, name: str) -> int:
    """Deletes what was put aside; the bytes of disk that are free again.

    Raises StoreError where a part of it could not be deleted.
    """
    with _removed(store) as folder:
        if folder is None:
            return 0
        try:
            return _delete(name, folder)
        except (OSError, RecursionError) as error:
            why = error.strerror if isinstance(error, OSError) else "it nests folders too deep"
            raise StoreError(
                f"{escape(name)} is out of the store, but a part of it cannot be deleted ({why}): "
                f"remove it from {escape(str(hidden(store) / _NAME))}"
            ) from error


def waiting_removals(store: Path) -> list[str]:
    """What interrupted removals left to be deleted, sorted."""
    with _removed(store) as folder:
        return [] if folder is None else sorted(os.listdir(folder))


def finish_removals(store: Path) -> tuple[int, list[str]]:
    """Deletes what interrupted removals left: how many there were, and what could not be deleted.

    Those of removers that are still at it are deleted with them.
    """
    done, problems = 0, []
    for name in waiting_removals(store):
        try:
            delete_aside(store, name)
            done += 1
        except StoreError as error:
            problems.append(str(error))
    return done, problems


def disk_bytes(path: Path) -> int:
    """What a folder takes on disk; parts of files that nobody wrote take nothing."""
    total = 0
    for _, folders, files, above in os.fwalk(path, onerror=None, follow_symlinks=False):
        for name in (*folders, *files):
            with contextlib.suppress(OSError):  # removed a moment ago
                total += os.lstat(name, dir_fd=above).st_blocks * _BLOCK
    return total


@contextmanager
def _removed(store: Path) -> Iterator[int | None]:
    """The folder of what is being deleted, which is no link; None where there is none."""
    try:
        above = os.open(hidden(store), _FOLDER)
    except OSError:
        yield None
        return
    try:
        folder = os.open(_NAME, _FOLDER, dir_fd=above)
    except OSError:
        folder = None
    finally:
        os.close(above)
    try:
        yield folder
    finally:
        if folder is not None:
            os.close(folder)


def _delete(name: str, folder: int) -> int:
    """Deletes a file, a link, or a folder with all that is in it; the bytes that it took."""
    try:
        told = os.lstat(name, dir_fd=folder)
    except FileNotFoundError:  # another process deletes the same
        return 0
    # A file with further names takes its room on.
    own = stat.S_ISDIR(told.st_mode) or (stat.S_ISREG(told.st_mode) and told.st_nlink == 1)
    freed = told.st_blocks * _BLOCK if own else 0
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISDIR(told.st_mode):
            os.unlink(name, dir_fd=folder)
            return freed
        inside = os.open(name, _FOLDER, dir_fd=folder)
        try:
            freed += sum(_delete(one, inside) for one in os.listdir(inside))
        finally:
            os.close(inside)
        os.rmdir(name, dir_fd=folder)
    return freed
