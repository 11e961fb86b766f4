"""Removes runs and ranks: moves each out of the store by one rename, then deletes its files.

    <store>/run1.zarr  ──rename──▶  <store>/.anchor/removed/run1.zarr.5f0ca6aa  ──▶  nothing

One rename takes a run or a rank out of every listing, so no reader meets half of it; deleting its
files may take minutes. If that is interrupted, the next `finish_removals` deletes the rest. No link
is followed, neither on the way to `removed` nor inside a folder that is deleted.
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
from anchorlib.store.disk.node_writer import sync_directory
from anchorlib.store.format import hidden

__all__ = ["delete_aside", "disk_bytes", "finish_removals", "put_aside", "waiting_removals"]

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK: Final = 512  # bytes, as st_blocks counts
_NAME: Final = "removed"


def put_aside(store: Path, path: Path) -> str:
    """Move `path` out of the store's hierarchy by one rename, into the store's folder `removed`.

    Return the name that the file or folder has there, for `delete_aside`. Raises OSError where it
    cannot be moved, StoreError where `removed` is no folder.
    """
    name = f"{path.name}.{os.urandom(4).hex()}"
    with contextlib.suppress(FileExistsError):
        (hidden(store) / _NAME).mkdir(parents=True)
    with _removed(store) as folder:
        if folder is None:
            raise StoreError(f"{escape(str(hidden(store) / _NAME))} is no folder of this store")
        os.rename(path, name, dst_dir_fd=folder)
        os.fsync(folder)
    # Before anything is deleted: power loss must not bring back a run that lacks some of its files.
    sync_directory(path.parent)
    return name


def delete_aside(store: Path, name: str) -> int:
    """Delete a folder that `put_aside` moved; return how many bytes of disk this freed.

    name: what `put_aside` returned. Raises StoreError where some of the folder's files could not be
    deleted.
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
    """Return the names of folders in `removed`, which interrupted removals left, sorted.

    `delete_aside` takes these names. A removal that is under way is listed too.
    """
    with _removed(store) as folder:
        return [] if folder is None else sorted(os.listdir(folder))


def finish_removals(store: Path) -> tuple[int, list[str]]:
    """Delete the folders that interrupted removals left.

    Return how many folders were deleted, and for each folder that was not a sentence that says why.
    A folder that another process is deleting right now is deleted by both together.
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
    """Return the bytes of disk that a folder's contents take; holes of sparse files take none.

    Links are not followed: the result is 0 if `path` itself is a link. Raises FileNotFoundError if
    nothing is at `path`.
    """
    total = 0
    for _, folders, files, above in os.fwalk(path, onerror=None, follow_symlinks=False):
        for name in (*folders, *files):
            with contextlib.suppress(OSError):  # removed a moment ago
                total += os.lstat(name, dir_fd=above).st_blocks * _BLOCK
    return total


@contextmanager
def _removed(store: Path) -> Iterator[int | None]:
    """Hold the folder `removed` of a store open inside the `with`, without following a link.

    Yields the folder's descriptor; None where there is no such folder.
    """
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
    """Delete `name` in the open folder `folder`: a file, a link, or a folder with its contents.

    Return the bytes of disk that this freed.
    """
    try:
        status = os.lstat(name, dir_fd=folder)
    except FileNotFoundError:  # another process deletes the same folder
        return 0
    # A file with further hard links keeps its room on disk.
    own = stat.S_ISDIR(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_nlink == 1)
    freed = status.st_blocks * _BLOCK if own else 0
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(name, dir_fd=folder)
            return freed
        inside = os.open(name, _FOLDER, dir_fd=folder)
        try:
            freed += sum(_delete(one, inside) for one in os.listdir(inside))
        finally:
            os.close(inside)
        os.rmdir(name, dir_fd=folder)
    return freed
