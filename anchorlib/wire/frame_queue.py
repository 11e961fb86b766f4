"""The queue of frames (messages with records) that wait until a collector has them.

`Frames` is what an outbox needs of such a queue. `MemoryFrames` keeps all frames in memory. A
writer that has a spool, a queue on its disk, uses `anchorlib.spool.spooled_frames` instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from anchorlib.record import Gap
from anchorlib.wire.holding import HeldRows, held_frame
from anchorlib.wire.messages import EncodedFrame

__all__ = ["Frames", "MemoryFrames"]


class Frames(Protocol):
    """The interface of a queue of frames (messages with records), kept until they are delivered.

    A frame stays in the queue when it was sent, as it may have to be sent again. `commit` and
    `drop` take frames out.
    """

    @property
    def nbytes(self) -> int:
        """Bytes of the frames (messages with records) that are kept."""

    @property
    def end(self) -> int:
        """The number that the next record gets: one more than that of the last record appended."""

    @property
    def damage(self) -> Sequence[Gap]:
        """Gaps of the records that were lost while their frames waited; empty if none were."""

    def append(self, frame: EncodedFrame) -> None:
        """Add the next frame (message with records), in the order of its records."""

    def rewind(self) -> None:
        """Count all kept frames as not sent, because a new stream begins."""

    def held(self, start: int) -> Iterable[HeldRows]:
        """Return the table rows of each kept frame with records from number `start` on.

        Frames count whether they were sent or not. The first frame may begin before `start`. A
        frame with a later fragment of a large record has no rows, and is left out.
        """

    def first(self) -> EncodedFrame | None:
        """Return the first frame that was not sent, and leave it there; None if all were sent."""

    def advance(self) -> None:
        """Count the frame that `first` returns as sent, so that `first` returns the next one."""

    def commit(self, committed: int) -> None:
        """Remove the delivered frames: those whose records all have numbers below `committed`."""

    def tidy(self) -> None:
        """Finish the slow work of `commit`, such as removing files.

        The caller does not hold the outbox's lock meanwhile.
        """

    def drop(self) -> None:
        """Remove all frames, sent or not; `end` stays as it is."""


class MemoryFrames:
    """A queue of frames in this process's memory, for a writer without a spool (queue on disk).

    end: the number of the first record that will be appended. definitions: messages that define
        what the frames' rows refer to; the list of `Encoder.definitions`, which grows.
    """

    damage: Sequence[Gap] = ()

    def __init__(self, end: int = 0, definitions: Sequence[bytes] = ()) -> None:
        self._definitions = definitions
        self.nbytes = 0
        self.end = end
        self._unsent: deque[EncodedFrame] = deque()
        self._sent: deque[EncodedFrame] = deque()

    def append(self, frame: EncodedFrame) -> None:
        """Add a copy of the next frame (message with records), in the order of its records."""
        self._unsent.append(frame.joined())
        self.nbytes += frame.nbytes
        self.end = frame.end

    def rewind(self) -> None:
        """Count all kept frames as not sent, because a new stream begins."""
        self._unsent.extendleft(reversed(self._sent))
        self._sent.clear()

    def held(self, start: int) -> Iterator[HeldRows]:
        """Yield the table rows of each kept frame with records from number `start` on.

        Frames count whether they were sent or not. The first frame may begin before `start`. A
        frame with a later fragment of a large record has no rows, and is left out.
        """
        for frame in (*self._sent, *self._unsent):
            if frame.end > start:
                known = self._definitions[: frame.definitions]
                held = held_frame(frame.message, known)
                if held is not None:
                    yield held

    def first(self) -> EncodedFrame | None:
        """Return the first frame that was not sent, and leave it there; None if all were sent."""
        return self._unsent[0] if self._unsent else None

    def advance(self) -> None:
        """Count the frame that `first` returns as sent, so that `first` returns the next one."""
        self._sent.append(self._unsent.popleft())

    def commit(self, committed: int) -> None:
        """Remove the delivered frames: those whose records all have numbers below `committed`."""
        for frames in (self._sent, self._unsent):
            while frames and frames[0].end <= committed:
                self.nbytes -= frames.popleft().nbytes

    def tidy(self) -> None:
        """Do nothing: `commit` has no slow work to do in memory."""

    def drop(self) -> None:
        """Remove all frames, sent or not; `end` stays as it is."""
        self._unsent.clear()
        self._sent.clear()
        self.nbytes = 0
