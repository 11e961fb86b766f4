"""A session that records into memory, and short ways to ask what it recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from anchorlib.capture.sessions.active import open_session
from anchorlib.capture.sessions.session import Session
from anchorlib.capture.sessions.settings import StartArguments, settings
from anchorlib.record import Record
from anchorlib.sinks import MemorySink


class Recording:
    """A session and the memory it records into."""

    def __init__(self, session: Session, sink: MemorySink) -> None:
        self.session = session
        self.sink = sink

    def records(self, name: str, kind: str = "value", mode: str | None = None) -> list[Record]:
        """The records of one tensor and kind that have reached memory, in order."""
        if self.session.counters.records != len(self.sink.records) or not self.sink.closed:
            self.session._queue.flush(10)
        return [
            r
            for r in self.sink.records
            if r.name == name and r.kind == kind and mode in (None, r.mode)
        ]

    def arrays(self, name: str, kind: str = "value", mode: str | None = None) -> list[np.ndarray]:
        """The values of the records of one tensor and kind."""
        return [r.array for r in self.records(name, kind, mode)]

    def at(self, name: str, kind: str = "value") -> list[tuple[int, int, int]]:
        """(step, pass, call) of the records of one tensor and kind."""
        found = [r.coordinates for r in self.records(name, kind)]
        return [(c.step, c.pass_index, c.call) for c in found]

    def names(self) -> list[str]:
        """`name@kind` of all that was recorded, in the order of first records."""
        self.session._queue.flush(10) if not self.sink.closed else None
        return list(dict.fromkeys(f"{r.name}@{r.kind}" for r in self.sink.records))


def trouble(stderr: str) -> str:
    """The lines that a program wrote to stderr, without those in which a session sums up.

    Nor those that say how long it waits for records on their way, as on a busy machine.
    """
    told = ("anchorlib: a step of run ", "anchorlib: run ", "anchorlib: closing run ")
    lines = stderr.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(told))


@contextmanager
def recording(**options: Any) -> Iterator[Recording]:
    """A session into memory; `options` as for `anchorlib.start`."""
    sink = MemorySink()
    session = open_session(settings(StartArguments("memory", **options)), sink)
    with session:
        yield Recording(session, sink)
