"""The streams of a session, and what they have recorded so far: tensors, weights, totals.

A stream is the observations of one name and kind, in one mode and phase.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from anchorlib.capture.recording.step_bytes import StreamBytes
from anchorlib.capture.recording.streams import Seen, Stream
from anchorlib.capture.tensors import TorchArithmetic
from anchorlib.modes import Mode
from anchorlib.record import TensorInfo
from anchorlib.scope import Steps

__all__ = ["StreamTable"]


class StreamTable:
    """The streams of a session: one for each name, kind, mode and phase.

    Callers have to hold a lock during each call, since the table has none.
    """

    def __init__(self) -> None:
        self.phases: set[str] = set()  # the phases that have a record
        self._arithmetic = TorchArithmetic()
        self._streams: dict[tuple[str, str, str, str], Stream] = {}
        self._seen: dict[tuple[str, str, str], Seen] = {}

    def stream(self, name: str, kind: str, mode: Mode, phase: str) -> Stream:
        """Return the stream of a name, kind, mode and phase, which is made at the first call."""
        key = (name, kind, str(mode), phase)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = Stream(name, kind, mode, phase, self._arithmetic)
        return stream

    def streams(
        self, name: str, kind: str, modes: Iterable[tuple[Mode, Steps | None]], phase: str
    ) -> tuple[Stream, ...]:
        """Return the streams of a name, kind and phase, one for each mode.

        modes: the modes, each with the steps in which it records (None: all steps). If several
            calls ask for one stream, the stream records in the steps that any of these calls gives.
        """
        streams: dict[Stream, None] = {}
        for mode, steps in modes:
            stream = self.stream(name, kind, mode, phase)
            stream.allow(steps)
            streams[stream] = None
        return tuple(streams)

    def see(self, stream: Stream, step: int, dtype: torch.dtype, shape: torch.Size) -> None:
        """Note that the next record of `stream`, made in `step`, has this dtype and shape.

        To be called, before the record is counted, for the first record of a stream and for each
        record whose dtype or shape is not that of the record before.
        """
        stream.tally()
        if stream.seen is None:
            self.phases.add(stream.phase)
            key = (stream.name, stream.kind, stream.mode)
            stream.seen = self._seen.setdefault(key, Seen(dtype, shape, step))
        stream.seen.merge(shape)
        stream.shape, stream.dtype = shape, dtype

    def tensors(self, rank: int) -> list[TensorInfo]:
        """Return an overview of each tensor recorded so far, in the order of first records.

        rank: the rank that this session records.
        """
        self._tally()
        return [seen.info(key, rank) for key, seen in self._seen.items()]

    def weights(self) -> list[StreamBytes]:
        """Return, for each stream, how many records and bytes it has recorded so far."""
        self._tally()
        return [
            StreamBytes(
                stream.name, stream.phase, stream.taken, stream.nbytes, stream.steps is None
            )
            for stream in self._streams.values()
        ]

    def totals(self) -> tuple[int, int]:
        """Return the number of records so far, and the number of bytes of their kept values."""
        self._tally()
        seen = self._seen.values()
        return sum(tensor.records for tensor in seen), sum(tensor.nbytes for tensor in seen)

    def last_step(self) -> int:
        """Return the last step that has a record; -1 where none has."""
        self._tally()
        return max((seen.last_step for seen in self._seen.values()), default=-1)

    def _tally(self) -> None:
        for stream in self._streams.values():
            stream.tally()
