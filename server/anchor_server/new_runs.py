"""Lets only one stream at a time create a run: a second stream of the same run waits.

The run notes the name of the token that made it. So when the second stream goes on, its token is
checked against that name.

with creation.of("run1", maker, check):
    Writer.open(…)      streams of other runs need not wait for this
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from anchorlib.store import run_directory

__all__ = ["RunCreation"]


class RunCreation:
    """Knows which runs are being created by streams (Push calls) now, and for which token each."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._makers: dict[str, str] = {}

    @contextmanager
    def of(
        self, run: str, maker: str, check: Callable[[Mapping[str, str]], None]
    ) -> Iterator[None]:
        """A context in which one stream creates a run: other streams of the run wait on entry.

        They wait until the context is left. For a run that exists already nobody waits.

        maker: the name of the token that creates the run.
        check: called on entry; raises where `maker` may not write to the run or create it, and this
            error is raised here. Its argument is a dict of the runs that other streams are
            creating: the name of the token, keyed by the run's name; {} where the run exists.
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
