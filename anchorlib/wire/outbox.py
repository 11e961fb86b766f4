"""The writer's side of Push: all that a writer sends to a collector, kept until it arrived there.

    records ─▶ unsent ─next─▶ sent ─Ack─▶ gone
                  ▲            │
                  └──restart───┘   records that the collector has are confirmed equal, then removed

Frames wait in memory (`MemoryFrames`) or on disk (`anchorlib.spool`). An outbox starts no thread
and opens no connection: its owner holds a lock around it and carries the bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from anchorlib.block import RowBlock
from anchorlib.operations import Entry
from anchorlib.record import Edges, Gap
from anchorlib.wire.holding import HeldRows, Questions, StoredStretch, doubts, held_frame
from anchorlib.wire.limits import WINDOW
from anchorlib.wire.messages import (
    Encoded,
    Encoder,
    FrameError,
    GarbledError,
    gaps_message,
    header_message,
    lineage_messages,
    operations_messages,
    sealed,
)
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
_FRAMES_A_BACKLOG = 8  # frames sent between two Backlog messages


class Frames(Protocol):
    """Frames in order, each kept until the collector has its records."""

    @property
    def nbytes(self) -> int:
        """Bytes of the frames that are kept."""

    @property
    def end(self) -> int:
        """The number after that of the last record."""

    @property
    def damage(self) -> Sequence[Gap]:
        """Gap statements of the records that were lost while their frames waited."""

    def append(self, frame: Encoded) -> None:
        """Keep `frame`, the next one in order."""

    def rewind(self) -> None:
        """Count none of the kept frames as sent."""

    def held(self, start: int) -> Iterable[HeldRows]:
        """The rows of the kept frames from record `start` on, whether they were sent or not."""

    def first(self) -> Encoded | None:
        """The first frame that was not sent; None where all were sent."""

    def advance(self) -> None:
        """Count the frame that `first` returns as sent."""

    def commit(self, committed: int) -> None:
        """Let go of frames whose records are all among the first `committed`, delivered ones."""

    def tidy(self) -> None:
        """Finish the slow work of `commit`, as removing files; called without the outbox's lock."""

    def drop(self) -> None:
        """Forget all frames; `end` stays as it is."""


class MemoryFrames:
    """Frames in this process's memory: the `Frames` of a writer that has no spool."""

    damage: Sequence[Gap] = ()

    def __init__(self, end: int = 0, definitions: Sequence[bytes] = ()) -> None:
        self._definitions = definitions
        self.nbytes = 0
        self.end = end
        self._unsent: deque[Encoded] = deque()
        self._sent: deque[Encoded] = deque()

    def append(self, frame: Encoded) -> None:
        """Keep a copy of `frame`, the next one in order."""
        self._unsent.append(frame.joined())
        self.nbytes += frame.nbytes
        self.end = frame.end

    def rewind(self) -> None:
        """Count none of the kept frames as sent."""
        self._unsent.extendleft(reversed(self._sent))
        self._sent.clear()

    def held(self, start: int) -> Iterator[HeldRows]:
        """The rows of the kept frames from record `start` on, whether they were sent or not."""
        for frame in (*self._sent, *self._unsent):
            if frame.end > start:
                known = self._definitions[: frame.definitions]
                held = held_frame(frame.message, known)
                if held is not None:
                    yield held

    def first(self) -> Encoded | None:
        """The first frame that was not sent; None where all were sent."""
        return self._unsent[0] if self._unsent else None

    def advance(self) -> None:
        """Count the frame that `first` returns as sent."""
        self._sent.append(self._unsent.popleft())

    def commit(self, committed: int) -> None:
        """Forget frames whose records are all among the first `committed`."""
        for frames in (self._sent, self._unsent):
            while frames and frames[0].end <= committed:
                self.nbytes -= frames.popleft().nbytes

    def tidy(self) -> None:
        """Does nothing: forgetting frames in memory takes no time."""

    def drop(self) -> None:
        """Forget all frames; `end` stays as it is."""
        self._unsent.clear()
        self._sent.clear()
        self.nbytes = 0


class Outbox:
    """The writer's side of Push, as a state machine.

    encoder: numbers the records and makes the frames.
    window: frames sent ahead of the collector's answer.
    frames: where frames wait; None keeps them in memory.
    definitions: serialised PushRequests that each stream sends before the frames that need them;
        None takes the encoder's.
    lineage: the list to which lineage messages are added; None makes a list.
    may_lag: the collector may have more records than `frames`: a spool loses its last records when
        the machine loses power, although they were sent before.
    earlier: attempts that hold records which this writer sent before; these records have negative
        numbers, up to -1.
    attempt: the number of the attempt that the collector has to resume; None allows any.

    committed: how many records the collector has.
    flushed: the number of the last flush that the collector finished.
    closed: whether the collector answered the close.
    resumed: whether the collector said, on this stream, at which record to go on, and its records
        are confirmed to be equal to those held here.
    may_lose_power: whether acknowledged records may be lost if the collector's machine loses power.
    """

    def __init__(  # noqa: PLR0913  # independent options, given by keyword
        self,
        encoder: Encoder | None = None,
        *,
        window: int = WINDOW,
        frames: Frames | None = None,
        definitions: Sequence[bytes] | None = None,
        lineage: list[bytes] | None = None,
        may_lag: bool = False,
        earlier: Sequence[StoredStretch] = (),
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
        """The frames of a block, each of which the caller has to `append`.

        Needs no lock, but always the same thread.
        """
        return self._encoder.encode(block)

    def append(self, frame: Encoded) -> None:
        """Add the next frame to those to be sent."""
        self._frames.append(frame)

    def gap(self, gaps: Iterable[Gap]) -> None:
        """Add gap statements to be sent.

        A statement counts from the session's start, and replaces the earlier one of the same series
        and reason.
        """
        stated = {(gap.name, gap.kind, gap.mode, gap.reason): gap for gap in gaps}
        self._gaps |= stated
        self._untold |= stated

    def edges(self, edges: Iterable[Edges]) -> None:
        """Add lineage to be sent; every new stream is told all of it again."""
        self.say_lineage(
            sealed(PushRequest(lineage=message)) for message in lineage_messages(edges)
        )

    def header(self, entries: Mapping[str, Any]) -> None:
        """Add entries of the run's header to be sent; every new stream is told all of them."""
        self.say_lineage([sealed(PushRequest(lineage=header_message(entries)))])

    def operations(self, entries: Iterable[Entry]) -> None:
        """Add traced operations to be sent; every new stream is told all of them again."""
        self.say_lineage(
            sealed(PushRequest(lineage=message)) for message in operations_messages(entries)
        )

    def say_lineage(self, requests: Iterable[bytes]) -> None:
        """Add serialised lineage messages to be sent; every new stream is told all of them."""
        self._lineage += requests

    def flush(self) -> int:
        """Ask the collector to flush all that was added so far.

        Returns the number that `flushed` reaches when the flush is finished.
        """
        last = self._flushes[-1][0] if self._flushes else self.flushed
        self._flushes.append((last + 1, self._frames.end))
        return last + 1

    def close(self) -> None:
        """Send, after everything else, that the session is over."""
        self._closing = True

    def drop(self) -> None:
        """Forget the frames that are kept; `waiting` still counts their records."""
        self._frames.drop()

    @property
    def nbytes(self) -> int:
        """Bytes of the frames that the collector has not acknowledged."""
        return self._frames.nbytes

    @property
    def waiting(self) -> int:
        """How many records the collector has not acknowledged."""
        return max(0, self._frames.end - self.committed)

    # -- the stream's side

    def restart(self) -> None:
        """Begin a new stream: nothing counts as sent until the collector says where to go on."""
        self.resumed = False
        self._resume_at: int | None = None
        self._questions = Questions(iter(()))
        self._frames.rewind()
        self._frames_sent = self._frames_told = 0
        self._asks_backlog = False
        self._backlog_due = 0  # the number of sent frames at which the next Backlog is sent
        self._defined = 0
        self._untold = dict(self._gaps)
        self._lineage_sent = 0
        self._flush_sent = self._flush_answered = self.flushed
        # For each flush that was sent: how many records the collector has to have before it counts.
        self._needs: dict[int, int] = {}
        self._close_sent = False

    @property
    def owed(self) -> bool:
        """Whether an answer of the collector is due on this stream."""
        asked = self._flush_sent > self.flushed or self._close_sent
        return not self.resumed or self._frames_sent > self._frames_told or asked

    @property
    def at_rest(self) -> bool:
        """Whether the collector has everything, so that the stream may end until there is more."""
        unsaid = self._untold or self._lineage_sent < len(self._lineage) or self._flushes
        busy = self.owed or self._closing or self._frames.first() is not None
        return not (unsaid or busy or self.waiting)

    def next(self) -> bytes | None:
        """The next message to send; None while nothing can be sent."""
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
            # Records that turned out to be damaged since then do not come: later ones move up.
            self._needs[due] = before if frame is not None else min(before, self._frames.end)
            return sealed(PushRequest(flush=Flush(id=due)))
        if self._closing and not self._close_sent and frame is None:
            # Damage in a spool is found by reading it, and all of it is read only now.
            self.gap([gap for gap in self._frames.damage if gap not in self._gaps.values()])
            if self._untold:
                return self._next_gaps()
            self._close_sent = True
            return close_request()
        return None

    def take(self, reply: PushReply) -> None:
        """Take a reply of the collector.

        Raises FrameError for a reply that cannot be, RunExistsError where the collector has other
        records, GarbledError where it finished a flush or the close without a frame sent before it.
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
            # Before the stream is resumed the collector's records are not known to be ours.
            if self.resumed:
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
        """How many answers on this stream confirmed that the collector's records are ours."""
        return self._questions.answered

    def tidy(self) -> None:
        """Finish the slow work of `take`; call it without the lock, unlike every other method."""
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
        """The number of the next flush to be sent, if all records before it were sent; else None.

        first: the first frame that was not sent.
        """
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
                f"the collector resumes attempt {resume.attempt}, where attempt {self._attempt} "
                "was to be resumed: another attempt began, or its store was changed; try once more"
            )
        links = (*self._earlier, StoredStretch(resume.attempt, resume.first, resume.committed))
        start = min([self.committed, *(link.first for link in self._earlier)])
        self._questions = Questions(doubts(self._frames.held(start), links))
        self._resume_at = resume.committed
        self._asks_backlog = resume.asks_backlog
        self._go_on()

    def _settle_flushes(self, *, whole: bool) -> None:
        """Count answered flushes as finished, once the collector has the records before them.

        whole: an Ack has come since the flush was answered, so a record that is still missing was
            lost on the way; else that Ack is the next reply.
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
        """Resume once all doubts are confirmed: let the collector's records go, send the others."""
        if self._questions.open or self._resume_at is None:
            return
        self._earlier = ()
        self.resumed = True
        self._commit(self._resume_at)

    def _commit(self, committed: int) -> None:
        self.committed = max(self.committed, committed)
        self._frames.commit(self.committed)


def _missing(done: str) -> GarbledError:
    # A flipped bit in an HTTP/2 stream number loses a whole message, and no checksum shows that.
    return GarbledError(
        f"the collector {done} the run, but a frame that was sent before never arrived there"
    )


def gap_requests(gaps: Iterable[Gap]) -> Iterator[bytes]:
    """Serialised PushRequests that state `gaps`, at most 512 statements in each."""
    every = list(gaps)
    for start in range(0, len(every), _GAPS_A_MESSAGE):
        message = gaps_message(every[start : start + _GAPS_A_MESSAGE])
        yield sealed(PushRequest(gaps=message))


def close_request() -> bytes:
    """The serialised PushRequest that says the session is over."""
    return sealed(PushRequest(close=Close()))
