"""How another process, perhaps on another machine, finds a rank: by the run and store it was opened
with.

Neither open files nor credentials travel: the other process uses credentials of its own.
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

__all__ = ["Pin", "asked", "packed_rows", "pin_of", "told_rows"]

Array = np.ndarray[Any, Any]

OPENED: Final = 16  # ranks that a process keeps open for the next question
_GROWING: Final = threading.Lock()


def asked(run: str | Path, store: str | Path | None) -> tuple[str, str | None]:
    """The run and store that `find_run` takes in a process with other defaults and directory."""
    text = str(run)
    if "://" in text:
        return text, None
    if names_path(text):
        return str(Path(text).absolute()), None
    where = store_text(store)
    return text, where if "://" in where else str(Path(where).absolute())


@dataclass(frozen=True, slots=True)
class Pin:
    """One rank, as any process can find it.

    asked: the run and the store, as `find_run` takes them.
    uid: of the rank, which tells it from a later recording under its name.
    rows: how many rows it has at least.
    """

    asked: tuple[str, str | None]
    rank: int
    uid: str
    rows: int

    def reader(self) -> RankReader:
        """The rank, opened in this process, and kept open for the next block that reads it.

        Raises RunNotFoundError, CollectorError, and StoreError where another rank is in its place.
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
    """The run, with this rank open. `_uid` is a key of the cache: another uid opens it anew."""
    stored_run = find_run(*asked)
    run = RunReader(stored_run.location, stored_run.name, asked)
    run.open_rank(rank)
    return run


def pin_of(reader: RankReader) -> Pin:
    """How another process finds this rank. Raises UnsupportedError where none can."""
    if reader.asked is None:
        raise UnsupportedError(
            f"{escape(reader.run or 'this run')} was not opened by name: another process cannot "
            "find it; open it with anchorlib.open_run"
        )
    return Pin(reader.asked, reader.rank, reader.catalogue.uid, reader.committed)


def packed_rows(rows: Array) -> bytes:
    """Row numbers compressed by their differences, which are mostly equal within a series."""
    return zlib.compress(np.diff(rows, prepend=0).astype("<i8").tobytes(), 1)


def told_rows(packed: bytes) -> Array:
    """The row numbers that `packed_rows` was given."""
    rows: Array = np.cumsum(np.frombuffer(zlib.decompress(packed), "<i8"), dtype=np.int64)
    return rows
