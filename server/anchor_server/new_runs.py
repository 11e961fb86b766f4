"""Runs that are being made: where two streams make the same run, the second waits for the first.

The second then finds the run with its maker's name in it, and is checked against that.

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
        """Makes a run inside the context: other streams that make the same run wait meanwhile.

        A run that exists already is held by nobody, and its streams do not wait.

        check: called with the runs that others are making and their makers; it raises where `maker`
            may not make the run, and its error is raised here.
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
