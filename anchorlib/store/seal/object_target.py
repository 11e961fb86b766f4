"""Targets of sealing: a local folder, or anything else that stores objects by key."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

__all__ = ["Buffer", "FolderTarget", "Target"]

Buffer = bytes | bytearray | memoryview


class Target(Protocol):
    """A place that stores objects by key; no reader ever sees an object that is incomplete."""

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """Store the parts, end to end, as the object at `key` ("rank0/catalog/c/0").

        The object is complete when the call returns.
        """
        ...


class FolderTarget:
    """A folder that stores objects as files; a file that has the right bytes is not rewritten.

    Each file is written under a temporary name and put in place by one rename.

    root: the folder of the run ("run1.zarr"), made where it does not exist.
    fsync: wait for the disk with each file, so that objects survive power loss.
    """

    def __init__(self, root: Path, *, fsync: bool = True) -> None:
        self.root = root
        self._fsync = fsync

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """Store the parts, end to end, as the file at `key` below the root.

        Raises OSError where the disk fails or is full.
        """
        path = self.root / key
        if _holds(path, parts):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        # A name that begins with a dot is no part of a store, see `layout`.
        made = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with made.open("wb") as file:
                file.writelines(parts)
                file.flush()
                if self._fsync:
                    os.fsync(file.fileno())
            made.replace(path)
        except BaseException:
            made.unlink(missing_ok=True)
            raise


def _holds(path: Path, parts: Sequence[Buffer]) -> bool:
    """Return whether the file at `path` has exactly the bytes of `parts`, end to end."""
    try:
        if path.stat().st_size != sum(map(len, parts)):
            return False
        with path.open("rb") as file:
            return all(file.read(len(piece)) == piece for piece in _pieces(parts))
    except FileNotFoundError:
        return False


def _pieces(parts: Sequence[Buffer]) -> Iterator[memoryview]:
    """Yield the parts in pieces of 1 MiB, so that comparing them takes little memory."""
    for part in parts:
        view = memoryview(part)
        yield from (view[at : at + (1 << 20)] for at in range(0, len(view), 1 << 20))
