"""Lets another process, perhaps on another machine, open a rank that is open in this process.

The other process is given the run and store by which the rank was opened here. Neither open files
nor credentials are sent: the other process uses credentials of its own.
"""

from __future__ import annotations

import threading
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from anchorlib.errors import RunNotFoundError, StoreError, UnsupportedError
from anchorlib.names import escape
from anchorlib.store.read import RankReader, RunReader
from anchorlib.store.runs.run_lookup import find_run, names_path
from anchorlib.store.runs.store_lookup import store_text

__all__ = ["RankHandle", "asked", "packed_rows", "rank_handle", "unpacked_rows"]

Array = np.ndarray[Any, Any]

OPENED: Final = 16  # ranks that a process keeps open for the next question
_GROWING: Final = threading.Lock()


def asked(run: str | Path, store: str | Path | None) -> tuple[str, str | None]:
    """Return the run and store in a form that `find_run` understands in any other process.

    Defaults are filled in and paths are made absolute. The store is None where `run` is a path or
    an address, which names the store too.
    """
    text = str(run)
    if "://" in text:
        return text, None
    if names_path(text):
        return str(Path(text).absolute()), None
    where = store_text(store)
    return text, where if "://" in where else str(Path(where).absolute())


@dataclass(frozen=True, slots=True)
class RankHandle:
    """One rank, described so that any process can find it.

    asked: the run and the store, as `find_run` takes them.
    uid: the id of the rank; a later recording under the same name has another id.
    rows: how many rows the rank had when it was described; it has at least so many from then on.
    """

    asked: tuple[str, str | None]
    rank: int
    uid: str
    rows: int

    def reader(self) -> RankReader:
        """Return a reader of the rank, opened in this process and cached for later calls.

        Raises RunNotFoundError where the run is not found or another recording has its name now,
        StoreError where this process finds fewer than `rows` rows of the rank, CollectorError where
        the run's collector or archive refuses or cannot be reached.
        """
        run = _opened(self.asked, self.rank, self.uid)
        reader = run.rank(self.rank)
        if reader.catalogue.uid != self.uid or reader.committed < self.rows:
            with _GROWING:  # one thread at a time: open_rank replaces readers of the shared run
                reader = run.open_rank(self.rank)
        if reader.catalogue.uid != self.uid:
            raise RunNotFoundError(f"another run is called {escape(run.name)} there")
        if reader.committed < self.rows:
            raise StoreError(
                f"{escape(reader.run)} has {reader.committed:,} records of rank {self.rank} there, "
                f"{self.rows:,} here"
            )
        return reader

    def __str__(self) -> str:
        run, store = self.asked
        return escape(f"{run} in {store}" if store else run)


@lru_cache(maxsize=OPENED)
def _opened(asked: tuple[str, str | None], rank: int, _uid: str) -> RunReader:
    """Return a reader of the run, with this rank open; the last OPENED results are cached.

    asked: the run and store, as `find_run` takes them. _uid: a part of the cache's key, so that a
        later recording under the name is opened anew.
    """
    stored_run = find_run(*asked)
    run = RunReader(stored_run.location, stored_run.name, asked)
    run.open_rank(rank)
    return run


def rank_handle(reader: RankReader) -> RankHandle:
    """Return a description by which another process finds this rank.

    Raises UnsupportedError where the rank was not opened by the name of its run.
    """
    if reader.asked is None:
        raise UnsupportedError(
            f"{escape(reader.run or 'this run')} was not opened by name: another process cannot "
            "find it; open it with anchorlib.open_run"
        )
    return RankHandle(reader.asked, reader.rank, reader.catalogue.uid, reader.committed)


def packed_rows(rows: Array) -> bytes:
    """Return row numbers as compressed bytes, which `unpacked_rows` reads in another process.

    What is compressed are the differences between neighbouring numbers. The differences between the
    rows of one series are mostly equal, so that they take little room.
    """
    return zlib.compress(np.diff(rows, prepend=0).astype("<i8").tobytes(), 1)


def unpacked_rows(packed: bytes) -> Array:
    """Return the row numbers that `packed_rows` compressed, as an int64 array."""
    rows: Array = np.cumsum(np.frombuffer(zlib.decompress(packed), "<i8"), dtype=np.int64)
    return rows
