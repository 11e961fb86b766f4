"""What a writer has to say to a collector, kept until the collector has it.

    records ─▶ unsent ─next─▶ sent ─Ack─▶ gone
                  ▲            │
                  └──restart───┘   what the collector has already is confirmed equal, and goes

Where frames wait is a choice: `MemoryFrames` here, a spool on disk in `anchorlib.spool`. No thread
and no network: whoever owns an outbox holds a lock around it and carries the bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from anchorlib.block import RowBlock
from anchorlib.operations import Entry
from anchorlib.record import Edges, Gap
from anchorlib.wire.encoder import Encoded, Encoder
from anchorlib.wire.gaps import gaps_message
from anchorlib.wire.holding import Held, Link, Questions, doubts, held_frame
from anchorlib.wire.limits import WINDOW
from anchorlib.wire.lineage import header_message, lineage_messages, operations_messages
from anchorlib.wire.malformed import FrameError
from anchorlib.wire.sealing import DamagedError, sealed
from anchorlib.wire.v1.collector_pb2 import (
    DURABILITY_PROCESS,
    Backlog,
    Close,
    Flush,
    PushReply,
    PushRequest,
    Resume,
)

__all__ = ["Frames", "MemoryFrames", "Outbox", "close_request", "gap_requests"]

_GAPS_A_MESSAGE = 512
_FRAMES_A_BACKLOG = 8  # sent between two words about how many there are


class Frames(Protocol):
    """Frames in order, each kept until the collector has its records."""

    @property
    def nbytes(self) -> int:
        """Of the frames that are kept."""

    @property
    def end(self) -> int:
        """The number after the last record."""

    @property
    def damage(self) -> Sequence[Gap]:
        """The statement of what was lost while it waited, if anything was."""

    def append(self, frame: Encoded) -> None:
        """Take the next frame over."""

    def rewind(self) -> None:
        """None of the frames that are kept counts as sent."""

    def held(self, start: int) -> Iterable[Held]:
        """The frames that are kept, from record `start` on, whether they were sent or not."""

    def first(self) -> Encoded | None:
        """The first frame that was not sent, if there is one."""

    def advance(self) -> None:
        """That frame was sent."""

    def commit(self, committed: int) -> None:
        """The collector has so many records."""

    def tidy(self) -> None:
        """Do what takes time after `commit`; the only one that is called without the lock."""

    def drop(self) -> None:
        """Forget all frames; `end` stays."""


class MemoryFrames:
    """Frames in this process's memory."""

    damage: Sequence[Gap] = ()

    def __init__(self, end: int = 0, definitions: Sequence[bytes] = ()) -> None:
        self._definitions = definitions
        self.nbytes = 0
        self.end = end
        self._unsent: deque[Encoded] = deque()
        self._sent: deque[Encoded] = deque()

    def append(self, frame: Encoded) -> None:
        """Take the next frame over."""
        self._unsent.append(frame.joined())
        self.nbytes += frame.nbytes
        self.end = frame.end

    def rewind(self) -> None:
        """None of the frames that are kept counts as sent."""
        self._unsent.extendleft(reversed(self._sent))
        self._sent.clear()

    def held(self, start: int) -> Iterator[Held]:
        """The frames that are kept, from record `start` on, whether they were sent or not."""
        for frame in (*self._sent, *self._unsent):
            if frame.end > start:
                known = self._definitions[: frame.definitions]
                held = held_frame(frame.message, known)
                if held is not None:
                    yield held

    def first(self) -> Encoded | None:
        """The first frame that was not sent, if there is one."""
        return self._unsent[0] if self._unsent else None

    def advance(self) -> None:
        """That frame was sent."""
        self._sent.append(self._unsent.popleft())

    def commit(self, committed: int) -> None:
        """The collector has so many records."""
        for frames in (self._sent, self._unsent):
            while frames and frames[0].end <= committed:
                self.nbytes -= frames.popleft().nbytes

    def tidy(self) -> None:
        """Nothing here takes time."""

    def drop(self) -> None:
        """Forget all frames; `end` stays."""
        self._unsent.clear()
        self._sent.clear()
        self.nbytes = 0


class Outbox:
    """The writer's side of Push, as a state machine.

    encoder: numbers the records and makes the frames.
    window: frames sent ahead of the collector's answer.
    frames: where they wait; None keeps them in memory.
    definitions: what streams are told before frames speak of it; None takes the encoder's.
    lineage: a list that lineage is added to, as messages; None makes one.
    may_lag: the collector may have more records than are known here: what was not yet on this
        machine's disk when it lost power had been sent all the same.
    earlier: attempts that hold what this writer sent before; numbered from below 0, up to 0.
    attempt: which attempt it has to be, behind those; None for whichever it is.

    committed: records that the collector has.
    flushed: the last flush that it answered.
    closed: whether it answered the close.
    resumed: whether it said where to go on, on this stream.
    may_lose_power: whether it acknowledged what its disk may not have yet.
    """

    def __init__(  # noqa: PLR0913  # each is a choice of its own, by keyword
        self,
        encoder: Encoder | None = None,
        *,
        window: int = WINDOW,
        frames: Frames | None = None,
        definitions: Sequence[bytes] | None = None,
        lineage: list[bytes] | None = None,
        may_lag: bool = False,
        earlier: Sequence[Link] = (),
        attempt: int | None = None,
    ) -> None:
        self._encoder = encoder or Encoder()
        self._definitions = self._encoder.definitions if definitions is None else definitions
        memory = MemoryFrames(self._encoder.sequence, self._definitions)
        self._frames = memory if frames is None else frames
        self._may_lag = may_lag
        self._earlier = tuple(earlier)  # until they are confirmed
        self._attempt = attempt
        self.committed = self._frames.end if frames is None else 0
        self.flushed = 0
        self.closed = False
        self.resumed = False
        self.may_lose_power = False
        self._window = window
        self._gaps: dict[tuple[str, str, str, str], Gap] = {}
        self._untold: dict[tuple[str, str, str, str], Gap] = {}
        self._lineage: list[bytes] = [] if lineage is None else lineage
        self._lineage_sent = 0
        self._flushes: deque[tuple[int, int]] = deque()  # flush and the record it comes before
        self._closing = False
        self.restart()

    # -- the writer's side

    def encode(self, block: RowBlock) -> Iterator[Encoded]:
        """The frames of a block, each to be appended; needs no lock, but always the same thread."""
        return self._encoder.encode(block)

    def append(self, frame: Encoded) -> None:
        """Take the next frame over."""
        self._frames.append(frame)

    def gap(self, gaps: Iterable[Gap]) -> None:
        """Take cumulative statements over; the newest of a series and reason counts."""
        told = {(gap.name, gap.kind, gap.mode, gap.reason): gap for gap in gaps}
        self._gaps |= told
        self._untold |= told

    def edges(self, edges: Iterable[Edges]) -> None:
        """Take lineage over; every new stream is told all of it."""
        self.say_lineage(
            sealed(PushRequest(lineage=message)) for message in lineage_messages(edges)
        )

    def header(self, entries: Mapping[str, Any]) -> None:
        """Take entries of the header over; every new stream is told all of them."""
        self.say_lineage([sealed(PushRequest(lineage=header_message(entries)))])

    def operations(self, entries: Iterable[Entry]) -> None:
        """Take traced operations over; every new stream is told all of them."""
        self.say_lineage(
            sealed(PushRequest(lineage=message)) for message in operations_messages(entries)
        )

    def say_lineage(self, requests: Iterable[bytes]) -> None:
        """Take lineage over that is messages already."""
        self._lineage += requests

    def flush(self) -> int:
        """Ask for a flush of all that was taken over so far; `flushed` will reach this number."""
        last = self._flushes[-1][0] if self._flushes else self.flushed
        self._flushes.append((last + 1, self._frames.end))
        return last + 1

    def close(self) -> None:
        """Say after everything else that the session is over."""
        self._closing = True

    def drop(self) -> None:
        """Forget the frames that wait; `waiting` still counts their records."""
        self._frames.drop()

    @property
    def nbytes(self) -> int:
        """Of the frames that the collector has not acknowledged."""
        return self._frames.nbytes

    @property
    def waiting(self) -> int:
        """Records that the collector has not acknowledged."""
        return max(0, self._frames.end - self.committed)

    # -- the stream's side

    def restart(self) -> None:
        """A new stream begins: nothing counts as sent until the collector says where to go on."""
        self.resumed = False
        self._resume_at: int | None = None
        self._questions = Questions(iter(()))
        self._frames.rewind()
        self._frames_sent = self._frames_told = 0
        self._asks_backlog = False
        self._backlog_due = 0  # when so many frames were sent
        self._defined = 0
        self._untold = dict(self._gaps)
        self._lineage_sent = 0
        self._flush_sent = self._flush_answered = self.flushed
        self._needs: dict[int, int] = {}  # records that have to be there when a flush was answered
        self._close_sent = False

    @property
    def owed(self) -> bool:
        """Whether the collector has something to answer on this stream."""
        asked = self._flush_sent > self.flushed or self._close_sent
        return not self.resumed or self._frames_sent > self._frames_told or asked

    @property
    def at_rest(self) -> bool:
        """Whether the collector has everything, and nothing is to be said on another stream."""
        unsaid = self._untold or self._lineage_sent < len(self._lineage) or self._flushes
        busy = self.owed or self._closing or self._frames.first() is not None
        return not (unsaid or busy or self.waiting)

    def next(self) -> bytes | None:
        """The next message to send, None while there is none."""
        if not self.resumed:
            return self._questions.next()
        frame = self._frames.first()
        due = self._flush_due(frame)
        if frame is not None and due is None:
            return self._next_frame(frame)
        if self._untold:
            return self._next_gaps()
        if self._lineage_sent < len(self._lineage):
            self._lineage_sent += 1
            return self._lineage[self._lineage_sent - 1]
        if due is not None:
            self._flush_sent = due
            before = next(one for flush, one in self._flushes if flush == due)
            # Damage that was found since moves the records behind it up.
            self._needs[due] = before if frame is not None else min(before, self._frames.end)
            return sealed(PushRequest(flush=Flush(id=due)))
        if self._closing and not self._close_sent and frame is None:
            # What was lost is known once everything was read.
            self.gap([gap for gap in self._frames.damage if gap not in self._gaps.values()])
            if self._untold:
                return self._next_gaps()
            self._close_sent = True
            return close_request()
        return None

    def take(self, reply: PushReply) -> None:
        """What the collector said.

        Raises FrameError where that cannot be, RunExistsError where it has other records,
        DamagedError where it has not got what was sent before what it answers.
        """
        said = reply.WhichOneof("message")
        if said == "resume":
            self._resume(reply.resume)
        elif said == "confirmed":
            self._questions.take(reply.confirmed)
            self._go_on()
        elif said == "ack":
            self._frames_told = reply.ack.frames
            self.may_lose_power = reply.ack.durability == DURABILITY_PROCESS
            if self.resumed:  # until then its records are not known to be ours
                self._commit(reply.ack.committed)
                self._settle_flushes(whole=True)
        elif said == "flushed":
            self._flush_answered = max(self._flush_answered, reply.flushed.id)
            self._settle_flushes(whole=False)
        elif said == "closed":
            self._commit(reply.closed.committed)
            if self.waiting:
                raise _missing("closed")
            self.closed = True

    @property
    def confirmed(self) -> int:
        """Answers on this stream that confirmed what the collector has."""
        return self._questions.answered

    def tidy(self) -> None:
        """Do what takes time after `take`; the only one that is called without the lock."""
        self._frames.tidy()

    def _next_frame(self, frame: Encoded) -> bytes | None:
        if self._frames_sent - self._frames_told >= self._window:
            return None
        if self._defined < frame.definitions:
            self._defined += 1
            return self._definitions[self._defined - 1]
        if self._asks_backlog and self._frames_sent >= self._backlog_due:
            self._backlog_due = self._frames_sent + _FRAMES_A_BACKLOG
            return sealed(PushRequest(backlog=Backlog(end=self._frames.end)))
        self._frames.advance()
        self._frames_sent += 1
        return frame.message

    def _next_gaps(self) -> bytes:
        keys = list(self._untold)[:_GAPS_A_MESSAGE]
        return next(gap_requests([self._untold.pop(key) for key in keys]))

    def _flush_due(self, first: Encoded | None) -> int | None:
        """The flush whose records were all sent, if there is one that was not."""
        for flush, before in self._flushes:
            if flush > self._flush_sent:
                # A frame's last record is number end - 1, and frames are in order.
                sent = first is None or first.end > before
                return flush if sent else None
        return None

    def _resume(self, resume: Resume) -> None:
        end = self._frames.end
        if resume.committed < self.committed or (resume.committed > end and not self._may_lag):
            raise FrameError(
                f"it has {resume.committed} records of this session, but acknowledged "
                f"{self.committed} of {end}: its store was changed"
            )
        if self._attempt not in (None, resume.attempt):
            raise FrameError(
                f"this is attempt {resume.attempt} there, and was to be {self._attempt}: another "
                "was made, or its store was changed; try once more"
            )
        links = (*self._earlier, Link(resume.attempt, resume.first, resume.committed))
        start = min([self.committed, *(link.first for link in self._earlier)])
        self._questions = Questions(doubts(self._frames.held(start), links))
        self._resume_at = resume.committed
        self._asks_backlog = resume.asks_backlog
        self._go_on()

    def _settle_flushes(self, *, whole: bool) -> None:
        """What was flushed counts once the records before it are acknowledged.

        whole: all that came before what was answered is; else their acknowledgement comes next.
        """
        while self._flushes and self._flushes[0][0] <= self._flush_answered:
            flush, before = self._flushes[0]
            if self.committed < self._needs.get(flush, before):
                if whole:
                    raise _missing("flushed")
                return
            self._flushes.popleft()
            self.flushed = flush

    def _go_on(self) -> None:
        """Once all is confirmed, what the collector has may go, and the rest is sent."""
        if self._questions.open or self._resume_at is None:
            return
        self._earlier = ()
        self.resumed = True
        self._commit(self._resume_at)

    def _commit(self, committed: int) -> None:
        self.committed = max(self.committed, committed)
        self._frames.commit(self.committed)


def _missing(done: str) -> DamagedError:
    # A bit that flips in the number of a stream costs a message, and nothing else shows it.
    return DamagedError(f"it {done} the run, and a frame that was sent before never came there")


def gap_requests(gaps: Iterable[Gap]) -> Iterator[bytes]:
    """Serialised PushRequests that state `gaps`, none of them large."""
    every = list(gaps)
    for start in range(0, len(every), _GAPS_A_MESSAGE):
        told = gaps_message(every[start : start + _GAPS_A_MESSAGE])
        yield sealed(PushRequest(gaps=told))


def close_request() -> bytes:
    """The serialised PushRequest that says the session is over."""
    return sealed(PushRequest(close=Close()))
