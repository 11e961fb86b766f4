"""Records on their way: what waits in the queue, and becomes a record on its drain thread."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from anchorlib.capture.clock import At
from anchorlib.capture.snapshot import Snapshot, dtype_name, to_raw
from anchorlib.capture.streams import Note, Stream
from anchorlib.record import Coordinates, Flag, Record
from anchorlib.summary import Summary, summarise

__all__ = ["Emitted", "Summarised"]


_now = time.time_ns


class Emitted:
    """A record on its way: finished by `record`, on the drain thread.

    tensor: its values. snapshot: where they are to be given back to, if anywhere.
    """

    __slots__ = (
        *("_at", "_count", "_note", "_order", "_raw", "_snapshot", "_stream", "_tensor", "_time"),
        "nbytes",
    )

    def __init__(  # noqa: PLR0913  # what a record is made of
        self,
        stream: Stream,
        at: At,
        order: int,
        tensor: torch.Tensor,
        note: Note,
        count: int = 1,
        snapshot: Snapshot | None = None,
    ) -> None:
        self._stream = stream
        self._at = at
        self._order = order
        self._time = _now()
        self._tensor = tensor
        self._snapshot = snapshot
        self._raw: np.ndarray[Any, Any] | None = None
        self._count = count
        self._note = note
        self.nbytes = tensor.nbytes

    @property
    def name(self) -> str:
        """The tensor's name."""
        return self._stream.name

    @property
    def kind(self) -> str:
        """The tensor's kind."""
        return self._stream.kind

    @property
    def mode(self) -> str:
        """The mode's canonical text."""
        return self._stream.mode

    @property
    def step(self) -> int:
        """The step it was observed in."""
        return self._at.step

    def storage(self) -> tuple[np.ndarray[Any, Any], str]:
        """Its raw storage on the CPU, which is the snapshot's memory, and its dtype."""
        tensor = self._tensor
        if self._raw is None:
            self._raw = to_raw(tensor if tensor.device.type == "cpu" else tensor.cpu())
        return self._raw, dtype_name(tensor.dtype)

    def record(self, summary: Summary | None = None) -> Record:
        """The finished record; its arrays share the snapshot's memory.

        summary: of its storage; made here where it is not given.
        """
        raw, dtype = self.storage()
        scale, flags = self._note.read()
        return Record(
            name=self.name,
            kind=self.kind,
            mode=self.mode,
            coordinates=Coordinates(*self._at),
            order=self._order,
            time_ns=self._time,
            dtype=dtype,
            shape=raw.shape,
            raw=raw if self._stream.values else None,
            summary=summarise(raw, dtype) if summary is None else summary,
            count=self._count,
            flags=flags,
            scale=scale,
        )

    bare = lost = False

    def summary_alone(self) -> Summarised:
        """The record without its values: nothing is lost where none were to be kept."""
        record = self.record()
        if not self._stream.values:
            return Summarised(record, lost=False)
        flags = record.flags | Flag.VALUE_DROPPED
        return Summarised(replace(record, raw=None, flags=flags), lost=True)

    def release(self) -> None:
        """Its buffer goes back to the pool."""
        if self._snapshot is not None:
            self._snapshot.release()


class Summarised:
    """A finished record whose values were not kept."""

    __slots__ = ("_record", "kind", "lost", "mode", "name", "step")

    bare = True
    nbytes = 0  # no values: summaries that wait are counted, not weighed

    def __init__(self, record: Record, *, lost: bool) -> None:
        self._record = record
        self.name, self.kind, self.mode = record.name, record.kind, record.mode
        self.step = record.coordinates.step
        self.lost = lost

    def storage(self) -> None:
        """Nothing: its summary is made."""

    def record(self, _summary: None = None) -> Record:
        """The record."""
        return self._record

    def summary_alone(self) -> Summarised:
        """Itself: it has nothing more to leave out."""
        return self

    def release(self) -> None:
        """It holds no buffer."""
