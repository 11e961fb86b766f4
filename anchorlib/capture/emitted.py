"""Records on their way: what waits in the queue, and becomes a record on its drain thread."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from anchorlib.capture.clock import At
from anchorlib.capture.snapshot import BufferPool, QuickCopy, Snapshot, dtype_name, quick_raw
from anchorlib.capture.streams import Note, Stream
from anchorlib.record import Coordinates, Record
from anchorlib.summary import Summary, summarise

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

    def storage(self) -> tuple[np.ndarray[Any, Any], str]:
        """Its raw storage on the CPU, which is the snapshot's memory, and its dtype."""
        kept = self.kept
        if isinstance(kept, Snapshot):
            return kept.raw(), dtype_name(kept.tensor.dtype)
        return quick_raw(kept), dtype_name(kept[1])

    def record(self, summary: Summary | None = None) -> Record:
        """The finished record; its arrays share the snapshot's memory.

        summary: of its storage; made here where it is not given.
        """
        raw, dtype = self.storage()
        stream = self.stream
        scale, flags = self.note.read()
        return Record(
            name=stream.name,
            kind=stream.kind,
            mode=stream.mode,
            coordinates=Coordinates(*self.at),
            order=self.order,
            time_ns=self.time_ns,
            dtype=dtype,
            shape=raw.shape,
            raw=raw if stream.values else None,
            summary=summarise(raw, dtype) if summary is None else summary,
            count=self.folded,
            flags=flags,
            scale=scale,
        )

    def release(self) -> None:
        """Its buffer goes back to the pool."""
        kept = self.kept
        if isinstance(kept, Snapshot):
            kept.release()
        elif not isinstance(kept[0], bytes):
            self.pool.give_back(kept[0])
