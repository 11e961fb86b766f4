"""The writer's side of the call Push: all messages for a collector, kept until they arrived there.

    records ─▶ unsent ─next─▶ sent ─Ack─▶ gone
                  ▲            │
                  └──restart───┘   records that the collector has are confirmed equal, then removed

Frames, the messages with records, wait in a `frame_queue`: in memory, or on disk
(`anchorlib.spool`). An outbox starts no thread and opens no connection: its owner guards it with a
lock, and sends the bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from anchorlib.block import RowBlock
from anchorlib.operations import Entry
from anchorlib.record import Edges, Gap
from anchorlib.wire.frame_queue import Frames, MemoryFrames
from anchorlib.wire.holding import ConfirmRequests, StoredRange, unconfirmed_ranges
from anchorlib.wire.limits import WINDOW
from anchorlib.wire.messages import (
    EncodedFrame,
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

__all__ = ["Outbox", "close_request", "gap_requests"]

_GAPS_A_MESSAGE = 512
_FRAMES_A_BACKLOG = 8  # frames sent between two Backlog messages


class Outbox:
    """The writer's side of the gRPC call Push: what to send next, and what each reply means.

    encoder: numbers the records and makes the frames, that is, messages with records.
    window: at most so many frames are sent before the collector has answered the first of them.
    frames: the queue in which frames wait; None keeps them in memory.
    definitions: serialised PushRequests that each stream sends before the frames that need them;
        None takes those of the encoder.
    lineage: the list to which lineage messages are added; None makes a list.
    may_lag: whether the collector may have more records than `frames`: a spool (queue on disk)
        loses its last records when the machine loses power, although they were sent before.
    earlier: ranges of records that this writer sent before and that the store has in earlier
        attempts (recordings of this rank); the records have negative numbers, up to -1.
    attempt: the number of the attempt that the collector has to resume; None allows any.

    committed: how many records, numbered from 0, the collector has acknowledged.
    flushed: the number of the last flush that the collector finished.
    closed: whether the collector has confirmed that the rank is closed.
    resumed: whether records may be sent on this stream. They may once the collector has said with
        which record to go on, and has confirmed that the records which it has, and which are still
        kept here, are equal.
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
        earlier: Sequence[StoredRange] = (),
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

    # -- called by the sink, which has records to send

    def encode(self, block: RowBlock) -> Iterator[EncodedFrame]:
        """Yield the frames that a block of records becomes; the caller has to `append` each.

        This needs no lock, but must always be called by the same thread.
        """
        return self._encoder.encode(block)

    def append(self, frame: EncodedFrame) -> None:
        """Queue a frame, to be sent after all frames that were queued before."""
        self._frames.append(frame)

    def gap(self, gaps: Iterable[Gap]) -> None:
        """Queue gaps (counts of observations that were not recorded) to be sent.

        Each count is a total since the writer began to record, so that a gap replaces the earlier
        gap of the same series and reason.
        """
        stated = {(gap.name, gap.kind, gap.mode, gap.reason): gap for gap in gaps}
        self._gaps |= stated
        self._untold |= stated

    def edges(self, edges: Iterable[Edges]) -> None:
        """Queue lineage (from what values were computed); each new stream sends all of it again."""
        self.say_lineage(
            sealed(PushRequest(lineage=message)) for message in lineage_messages(edges)
        )

    def header(self, entries: Mapping[str, Any]) -> None:
        """Queue entries of the run's header to be sent; each new stream sends all of them again."""
        self.say_lineage([sealed(PushRequest(lineage=header_message(entries)))])

    def operations(self, entries: Iterable[Entry]) -> None:
        """Queue traced operations to be sent; every new stream sends all of them again."""
        self.say_lineage(
            sealed(PushRequest(lineage=message)) for message in operations_messages(entries)
        )

    def say_lineage(self, requests: Iterable[bytes]) -> None:
        """Queue serialised requests with lineage, header entries or traced operations.

        Every new stream sends all of them again.
        """
        self._lineage += requests

    def flush(self) -> int:
        """Queue a flush of everything queued so far, and return the number of the flush at once.

        A flush asks the collector to publish these records, so that every zarr reader sees them.
        It is finished once `flushed` has reached its number.
        """
        last = self._flushes[-1][0] if self._flushes else self.flushed
        self._flushes.append((last + 1, self._frames.end))
        return last + 1

    def close(self) -> None:
        """Queue the message Close, which closes the rank and is sent after everything else."""
        self._closing = True

    def drop(self) -> None:
        """Forget all frames, because none will be sent; `waiting` still counts their records."""
        self._frames.drop()

    @property
    def nbytes(self) -> int:
        """How many bytes the frames have that the collector has not acknowledged."""
        return self._frames.nbytes

    @property
    def waiting(self) -> int:
        """How many records the collector has not acknowledged."""
        return max(0, self._frames.end - self.committed)

    # -- called by the stream, which sends and receives

    def restart(self) -> None:
        """Mark everything as unsent, because a new stream begins.

        Nothing is sent until the collector has said with which record to go on.
        """
        self.resumed = False
        self._resume_at: int | None = None
        self._questions = ConfirmRequests(iter(()))
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
        """Whether the collector has yet to answer something that this stream has sent."""
        asked = self._flush_sent > self.flushed or self._close_sent
        return not self.resumed or self._frames_sent > self._frames_told or asked

    @property
    def at_rest(self) -> bool:
        """Whether the collector has all that was queued, and no Close is queued.

        The stream may then end, until something is queued again.
        """
        unsaid = self._untold or self._lineage_sent < len(self._lineage) or self._flushes
        busy = self.owed or self._closing or self._frames.first() is not None
        return not (unsaid or busy or self.waiting)

    def next(self) -> bytes | None:
        """Return the next serialised message and count it as sent; None if none may be sent now."""
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
        """Process a reply of the collector to messages of this stream.

        What the collector has acknowledged is removed from the queue of frames.

        Raises FrameError for a reply that breaks the protocol, RunExistsError if the collector has
        other records under the numbers of records that are kept here, GarbledError if the collector
        finished a flush or the close although a frame that was sent before has not arrived.
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
        """How many ranges of records the collector confirmed to be equal, on this stream."""
        return self._questions.answered

    def tidy(self) -> None:
        """Finish the slow work that `take` has left, such as removing files.

        Unlike the other methods, `tidy` has to be called without the owner's lock.
        """
        self._frames.tidy()

    def _next_frame(self, frame: EncodedFrame) -> bytes | None:
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

    def _flush_due(self, first: EncodedFrame | None) -> int | None:
        """Return the number of the next flush to send, if its turn has come; else None.

        Its turn comes when all records that were queued before the flush have been sent.

        first: the first frame that was not sent yet; None if all were sent.
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
        links = (*self._earlier, StoredRange(resume.attempt, resume.first, resume.committed))
        start = min([self.committed, *(link.first for link in self._earlier)])
        self._questions = ConfirmRequests(unconfirmed_ranges(self._frames.held(start), links))
        self._resume_at = resume.committed
        self._asks_backlog = resume.asks_backlog
        self._go_on()

    def _settle_flushes(self, *, whole: bool) -> None:
        """Count answered flushes as finished where the collector has the records before them.

        whole: whether an Ack message, which counts the collector's records, has come since the
            flush was answered. Where it has and records are still missing, these were lost on the
            way, and GarbledError is raised. Where it has not, the flush is left until the Ack.
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
        """Allow sending if the collector's records are confirmed to equal those kept here.

        The records that the collector has are then removed here, and those behind them are sent
        next. Does nothing while a confirmation is still to come.
        """
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
    """Yield serialised PushRequests that state `gaps`, at most 512 in each."""
    every = list(gaps)
    for start in range(0, len(every), _GAPS_A_MESSAGE):
        message = gaps_message(every[start : start + _GAPS_A_MESSAGE])
        yield sealed(PushRequest(gaps=message))


def close_request() -> bytes:
    """Return the serialised message Close, by which a writer closes its rank."""
    return sealed(PushRequest(close=Close()))
