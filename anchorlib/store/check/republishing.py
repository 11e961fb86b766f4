"""Rewrites the zarr.json files and labels of a rank, which other zarr readers need, from its rows.

Labels are copies of a record's series, step, pass and call, stored beside the record's values.
Rows, values and catalogue are only read. Each file that is not as it should be is made outside the
zarr hierarchy and renamed over the old one, so no existing file is written into and no link is
followed.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from anchorlib.errors import StoreError
from anchorlib.names import escape
from anchorlib.store.check.documents import due_documents, run_faults
from anchorlib.store.disk import NodeWriter, document_again
from anchorlib.store.format import (
    LABELS,
    ROWS_PER_CHUNK,
    chunk_key,
    rank_name,
    run_directory,
)
from anchorlib.store.locations import LocalLocation, Location, Within
from anchorlib.store.read import RankReader
from anchorlib.store.write import write_all

__all__ = ["republish", "unpublished"]

_MOST_BYTES: Final = 64 << 20  # of a document
_INT64: Final = np.dtype("<i8")


def unpublished(run: Location, reader: RankReader) -> Iterator[tuple[str, bytes]]:
    """Yield (key, right content) of each file of a rank that is not as the rank's rows require.

    Only files that other zarr readers need are looked at: each zarr.json, and the chunk files of
    labels. Keys are relative to the rank's folder.
    reader: reads the rank, which has to be of format 2; the caller has found all rows sound.
    Raises StoreError where rows, DamagedError where the log of operations is damaged nonetheless.
    """
    rank = Within(run, rank_name(reader.rank, reader.part))
    for key, document in due_documents(rank, reader).items():
        path = f"{key}/zarr.json".lstrip("/")
        if _parsed(_read(rank, path)) != json.loads(document):
            yield path, document
    for key, chunk in _labels(reader):
        stored = _read(rank, key)
        if stored is None and not any(chunk):  # a chunk full of zeros needs no file
            continue
        if stored is None or len(stored) < ROWS_PER_CHUNK * 8 or not stored.startswith(chunk):
            yield key, chunk.ljust(ROWS_PER_CHUNK * 8, b"\0")


def republish(store: Path, run: str, reader: RankReader) -> int:
    """Write the files that `unpublished` yields; return how many were written.

    The run's own zarr.json is written as well, and counted, if `run_faults` reports any fault. The
    caller has to hold the rank's lock. Raises StoreError where a folder of the run is a link, or a
    folder stands in the place of a file; also where `unpublished` does.
    """
    folder, tree = run_directory(store, run), NodeWriter(store)
    location = LocalLocation(folder)
    files = [
        (f"{rank_name(reader.rank, reader.part)}/{key}", data)
        for key, data in unpublished(location, reader)
    ]
    if list(run_faults(location)):
        files.append(("zarr.json", document_again(folder)))
    for key, data in files:
        path = folder / key
        _check_folders(folder, path.parent)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() and not path.is_symlink():
            raise StoreError(
                f"{escape(str(path))} is a folder, where a file belongs: look what is in it, and "
                "remove it by hand"
            )
        os.close(tree.put(str(path), partial(_fill, data)))
    return len(files)


def _fill(data: bytes, descriptor: int) -> None:
    write_all(descriptor, (data,), 0, len(data))


def _labels(reader: RankReader) -> Iterator[tuple[str, bytes]]:
    """Yield (key, content) of each chunk file of the labels beside values.

    The content ends with the last record's label, so it may be shorter than the file should be.
    """
    forms, rows = reader.column("form"), reader.column("row")
    for form in reader.catalogue.forms:
        if form.array is None:
            continue
        own = np.flatnonzero((forms == form.id) & (rows >= 0))
        count = int(rows[own].max(initial=-1)) + 1
        for name in LABELS:
            labels = np.zeros(count, _INT64)
            labels[rows[own]] = reader.column(name)[own]
            for chunk in range(-(-count // ROWS_PER_CHUNK)):
                part = labels[chunk * ROWS_PER_CHUNK :][:ROWS_PER_CHUNK]
                yield f"{form.group}/{name}/{chunk_key(chunk, 0)}", part.tobytes()


def _read(rank: Location, key: str) -> bytes | None:
    """Return the bytes of the file at `key`; None where there is no file, or it cannot be read."""
    try:
        return rank.get(key, 0, _MOST_BYTES)
    except StoreError:
        return None


def _parsed(data: bytes | None) -> Any:
    try:
        return None if data is None else json.loads(data.decode())
    except (ValueError, RecursionError):
        return None


def _check_folders(run: Path, folder: Path) -> None:
    """Raise StoreError where `folder`, or a folder between `run` and `folder`, is a link or file.

    Folders that are missing are no error.
    """
    for path in (run / part for part in _parts(folder.relative_to(run))):
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(mode):
            raise StoreError(f"{escape(str(path))} is no folder of its own: look what it is")


def _parts(path: Path) -> Iterator[Path]:
    path_so_far = Path()
    for part in path.parts:
        path_so_far /= part
        yield path_so_far
