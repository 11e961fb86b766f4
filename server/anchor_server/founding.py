"""Runs that are being made: of two streams that make one, the second finds the first's name in it.

with founding.of("run1", maker, check):
    Writer.open(…)      other runs are made meanwhile
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from anchorlib.store import run_directory

__all__ = ["Founding"]


class Founding:
    """Which runs are being made, and by whom."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._makers: dict[str, str] = {}

    @contextmanager
    def of(
        self, run: str, maker: str, check: Callable[[Mapping[str, str]], None]
    ) -> Iterator[None]:
        """While the context lasts, whoever else makes this run waits; for one that is there nobody.

        check: whether it may be made, beside the runs that others make, with their makers; what it
        raises comes through.
        """
        with self._changed:
            self._changed.wait_for(lambda: run not in self._makers or self._is_there(run))
            is_there = self._is_there(run)
            if not is_there:
                check(dict(self._makers))
                self._makers[run] = maker
        if is_there:
            check({})
            yield
            return
        try:
            yield
        finally:
            with self._changed:
                del self._makers[run]
                self._changed.notify_all()

    def _is_there(self, run: str) -> bool:
        return (run_directory(self._store, run) / "zarr.json").exists()
