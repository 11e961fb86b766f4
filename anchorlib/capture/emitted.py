"""Records on their way: what waits in the queue, and becomes a record on its drain thread."""

from __future__ import annotations

from typing import NamedTuple

from anchorlib.capture.clock import At
from anchorlib.capture.snapshot import BufferPool, QuickCopy, Snapshot
from anchorlib.capture.streams import Note, Stream

__all__ = ["Emitted"]


class Emitted(NamedTuple):
    """A record on its way: finished by `record`, on the drain thread.

    A tuple, which is made in a fraction of the time that an object with attributes takes.

    kept: its values. pool: where a buffer with them goes back to. folded: how many observations
    they are made of.
    """

    stream: Stream
    at: At
    order: int
    time_ns: int
    kept: QuickCopy | Snapshot
    pool: BufferPool
    nbytes: int
    note: Note
    folded: int

    @property
    def name(self) -> str:
        """The tensor's name."""
        return self.stream.name

    @property
    def kind(self) -> str:
        """The tensor's kind."""
        return self.stream.kind

    @property
    def mode(self) -> str:
        """The mode's canonical text."""
        return self.stream.mode

    @property
    def step(self) -> int:
        """The step it was observed in."""
        return self.at.step

    @property
    def keeps(self) -> bool:
        """Whether its mode keeps values."""
        return self.stream.values

    def release(self) -> None:
        """Its buffer goes back to the pool."""
        kept = self.kept
        if isinstance(kept, Snapshot):
            kept.release()
        elif not isinstance(kept[0], bytes):
            self.pool.give_back(kept[0])
