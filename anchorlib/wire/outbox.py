"""What a writer has to say to a collector, kept until the collector has it.

    records ─▶ unsent ─next─▶ sent ─Ack─▶ gone
                  ▲            │
                  └──restart───┘

No thread and no network: whoever owns an outbox holds a lock around it and carries the bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from anchorlib.record import Edges, Gap, Record
from anchorlib.wire.decoder import FrameError
from anchorlib.wire.encoder import Encoded, Encoder
from anchorlib.wire.gaps import gaps_message
from anchorlib.wire.limits import WINDOW
from anchorlib.wire.lineage import lineage_messages
from anchorlib.wire.v1.collector_pb2 import Close, Flush, PushReply, PushRequest, Resume

__all__ = ["Outbox"]

_GAPS_A_MESSAGE = 512


class Outbox:
    """The writer's side of Push, as a state machine.

    encoder: numbers the records and makes the frames.
    window: frames sent ahead of the collector's answer.

    nbytes: of the frames that the collector has not acknowledged.
    committed: records that it has.
    flushed: the last flush that it answered.
    closed: whether it answered the close.
    resumed: whether it said where to go on, on this stream.
    """

    def __init__(self, encoder: Encoder | None = None, *, window: int = WINDOW) -> None:
        self.nbytes = 0
        self.committed = 0
        self.flushed = 0
        self.closed = False
        self.resumed = False
        self._encoder = encoder or Encoder()
        self._window = window
        self._unsent: deque[Encoded] = deque()
        self._sent: deque[Encoded] = deque()
        self._gaps: dict[tuple[str, str, str, str], Gap] = {}
        self._untold: dict[tuple[str, str, str, str], Gap] = {}
        self._lineage: list[bytes] = []
        self._lineage_sent = 0
        self._flushes: deque[tuple[int, int]] = deque()  # flush and the record it comes before
        self._closing = False
        self.restart()

    # -- the writer's side

    def encode(self, records: Sequence[Record]) -> Iterator[Encoded]:
        """The frames of records, each to be appended; needs no lock, but always the same thread."""
        return self._encoder.encode(records)

    def append(self, frame: Encoded) -> None:
        """Take the next frame over."""
        self._unsent.append(frame)
        self.nbytes += len(frame.message)

    def gap(self, gaps: Iterable[Gap]) -> None:
        """Take cumulative statements over; the newest of a series and reason counts."""
        told = {(gap.name, gap.kind, gap.mode, gap.reason): gap for gap in gaps}
        self._gaps |= told
        self._untold |= told

    def edges(self, edges: Iterable[Edges]) -> None:
        """Take lineage over; every new stream is told all of it."""
        self._lineage += [
            PushRequest(lineage=message).SerializeToString() for message in lineage_messages(edges)
        ]

    def flush(self) -> int:
        """Ask for a flush of all that was taken over so far; `flushed` will reach this number."""
        last = self._flushes[-1][0] if self._flushes else self.flushed
        self._flushes.append((last + 1, self._encoder.sequence))
        return last + 1

    def close(self) -> None:
        """Say after everything else that the session is over."""
        self._closing = True

    def drop(self) -> None:
        """Forget the frames that wait; `waiting` still counts their records."""
        self._unsent.clear()
        self._sent.clear()
        self.nbytes = 0

    @property
    def waiting(self) -> int:
        """Records that the collector has not acknowledged."""
        return self._encoder.sequence - self.committed

    # -- the stream's side

    def restart(self) -> None:
        """A new stream begins: nothing counts as sent until the collector says where to go on."""
        self.resumed = False
        self._unsent.extendleft(reversed(self._sent))
        self._sent.clear()
        self._frames_sent = self._frames_told = 0
        self._defined = 0
        self._untold = dict(self._gaps)
        self._lineage_sent = 0
        self._flush_sent = self.flushed
        self._close_sent = False

    def next(self) -> bytes | None:
        """The next message to send, None while there is none."""
        if not self.resumed:
            return None
        due = self._flush_due()
        if self._unsent and due is None:
            return self._next_frame()
        if self._untold:
            return self._next_gaps()
        if self._lineage_sent < len(self._lineage):
            self._lineage_sent += 1
            return self._lineage[self._lineage_sent - 1]
        if due is not None:
            self._flush_sent = due
            return PushRequest(flush=Flush(id=due)).SerializeToString()
        if self._closing and not self._close_sent:
            self._close_sent = True
            return PushRequest(close=Close()).SerializeToString()
        return None

    def take(self, reply: PushReply) -> None:
        """What the collector said. Raises FrameError where that cannot be."""
        said = reply.WhichOneof("message")
        if said == "resume":
            self._resume(reply.resume)
        elif said == "ack":
            self._frames_told = reply.ack.frames
            self._commit(reply.ack.committed)
        elif said == "flushed":
            self.flushed = reply.flushed.id
            while self._flushes and self._flushes[0][0] <= self.flushed:
                self._flushes.popleft()
        elif said == "closed":
            self._commit(reply.closed.committed)
            self.closed = True

    def _next_frame(self) -> bytes | None:
        if self._frames_sent - self._frames_told >= self._window:
            return None
        frame = self._unsent[0]
        if self._defined < frame.definitions:
            self._defined += 1
            return self._encoder.definitions[self._defined - 1]
        self._sent.append(self._unsent.popleft())
        self._frames_sent += 1
        return frame.message

    def _next_gaps(self) -> bytes:
        keys = list(self._untold)[:_GAPS_A_MESSAGE]
        told = gaps_message([self._untold.pop(key) for key in keys])
        return PushRequest(gaps=told).SerializeToString()

    def _flush_due(self) -> int | None:
        """The flush whose records were all sent, if there is one that was not."""
        for flush, before in self._flushes:
            if flush > self._flush_sent:
                # A frame's last record is number end - 1, and frames are in order.
                sent = not self._unsent or self._unsent[0].end > before
                return flush if sent else None
        return None

    def _resume(self, resume: Resume) -> None:
        if not self.committed <= resume.committed <= self._encoder.sequence:
            raise FrameError(
                f"it has {resume.committed} records of this session, but acknowledged "
                f"{self.committed} of {self._encoder.sequence}: its store was changed"
            )
        self.resumed = True
        self._commit(resume.committed)

    def _commit(self, committed: int) -> None:
        self.committed = max(self.committed, committed)
        for frames in (self._sent, self._unsent):
            while frames and frames[0].end <= self.committed:
                self.nbytes -= len(frames.popleft().message)
