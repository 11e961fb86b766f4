"""Serves the requests that a Push stream sends after Hello, its first message.

Confirm ─▶ Confirmed   answers with the fingerprint of records that are in the store
Define                 tells names and shapes that later frames refer to
Frame …                writes records; all frames of one batch are written in one go
Gaps                   counts observations that could not be recorded; they are written too
Lineage                says from which records others were computed, and may have entries of the
                       run's header and of the log of traced operations; all of it is written
Backlog                says how many records the trainer has made
Flush ─▶ Flushed       answers when all records sent before it were published
Close ─▶ Closed        closes the rank; the stream ends
"""

from __future__ import annotations

from collections.abc import Iterator

from anchor_server.counters import CollectorCounters
from anchor_server.fragment_memory import FragmentMemory
from anchor_server.inbox import Patience
from anchor_server.rank_holders import RankLease
from anchor_server.refusals import Refusal
from anchor_server.stream_registry import StreamEntry
from anchorlib.block import RowBlock, joined_blocks
from anchorlib.errors import AnchorError
from anchorlib.record import Gap
from anchorlib.wire import (
    CONFIRMED_RECORDS,
    DEFINED_BYTES,
    HEADER_BYTES,
    RECORD_BYTES,
    STALL_SECONDS,
    Closed,
    Confirm,
    Confirmed,
    Decoder,
    FailureKind,
    Flushed,
    FrameError,
    GarbledError,
    Lineage,
    ParsedFrame,
    PushReply,
    PushRequest,
    parse_request,
    read_gaps,
    read_header,
    read_lineage,
    read_operations,
)

__all__ = ["RankStream"]

_DIGEST_BYTES = 16  # of each row


class RankStream:
    """Serves the requests of one accepted Push call, and writes its records to the call's rank.

    held: the rank that the call holds. room: bounds the memory of unfinished records.
    seat: the call's entry in the roster of open streams, which is told what arrives.

    frames: how many frames (messages with records) were read so far.
    """

    def __init__(
        self,
        held: RankLease,
        decoder: Decoder,
        room: FragmentMemory,
        tally: CollectorCounters,
        seat: StreamEntry,
    ) -> None:
        self.frames = 0
        self._held = held
        self._writer = held.writer
        self._decoder = decoder
        self._room = room
        self._tally = tally
        self._seat = seat
        self._next = self._writer.committed
        self._blocks: list[RowBlock] = []
        self._defined = 0
        self._header = 0  # characters that the stream added to the run's header
        self._unfinished = 0  # bytes of the record whose last fragments are still to come
        self._left_out = self._writer.left_out.records

    @property
    def committed(self) -> int:
        """How many records of this client are stored.

        Records that are stored at a collector that the client used before count too.
        """
        return self._writer.committed

    @property
    def closed(self) -> bool:
        """Whether the client has closed the rank, so that the stream is over."""
        return self._held.closed

    def patience(self, rest: float) -> Patience:
        """Returns how long the client may send nothing now, with the refusal for a longer silence.

        Between records the client may send nothing for `rest` seconds; while fragments of a record
        are still to come, for at most STALL_SECONDS.
        """
        if self._unfinished:
            return Patience(min(STALL_SECONDS, rest), FailureKind.STALLED)
        return Patience(rest, FailureKind.IDLE)

    def leave(self) -> None:
        """Frees the memory reserved for a record whose last fragment did not arrive."""
        self._finished()

    def replies(self, batch: list[bytes]) -> Iterator[PushReply]:
        """Serves requests that arrived together, and yields the replies to them.

        The records in the batch are written together at its end; those before a Gaps, Flush or
        Close request are written before that request is served. Only Confirm, Flush and Close have
        replies; the caller acknowledges records.

        Raises GarbledError for a damaged request, FrameError for a request that is malformed or not
        allowed here, a Refusal for records out of sequence and for a large record for which there
        is no memory now, StoreError where writing fails.

        batch: the unparsed requests.
        """
        self._seat.hear()
        for message in batch:
            request = self._parsed(message)
            if isinstance(request, ParsedFrame):
                self._frame(request)
            else:
                yield from self._other(request)
        self._write()

    def _parsed(self, message: bytes) -> PushRequest | ParsedFrame:
        try:
            return parse_request(message)
        except GarbledError:
            self._tally.damage()
            raise

    def _other(self, request: PushRequest) -> Iterator[PushReply]:
        said = request.WhichOneof("message")
        if said == "define":
            self._define(request)
        elif said == "gaps":
            self._write()
            self._gap(read_gaps(request.gaps))
        elif said == "lineage":
            self._lineage(request.lineage)
        elif said == "backlog":
            self._seat.tell_end(request.backlog.end)
        elif said == "flush":
            self._write()
            self._writer.publish()
            yield PushReply(flushed=Flushed(id=request.flush.id))
        elif said == "confirm":
            yield PushReply(confirmed=self._confirmed(request.confirm))
        elif said == "close":
            self._write()
            committed = self._writer.committed
            self._held.close()
            yield PushReply(closed=Closed(committed=committed))
        else:
            raise FrameError(f"a stream cannot send {said or 'an empty request'} after its Hello")

    def _confirmed(self, asked: Confirm) -> Confirmed:
        if asked.end - asked.first > CONFIRMED_RECORDS:
            raise FrameError(f"a stream asks about {CONFIRMED_RECORDS} records at a time at most")
        fingerprint = self._writer.fingerprint(asked.attempt, asked.first, asked.end)
        return Confirmed(fingerprint=fingerprint)

    def _define(self, request: PushRequest) -> None:
        self._defined += request.ByteSize()
        if self._defined > DEFINED_BYTES:
            raise FrameError(
                f"one stream defines at most {DEFINED_BYTES} bytes of names and shapes"
            )
        self._decoder.define(request.define)

    def _lineage(self, lineage: Lineage) -> None:
        self._writer.edges(read_lineage(lineage))
        self._header += len(lineage.header)
        if self._header > HEADER_BYTES:
            raise FrameError(f"one stream adds at most {HEADER_BYTES} characters to its header")
        self._writer.header(read_header(lineage))
        self._writer.operations(read_operations(lineage))

    def _gap(self, gaps: list[Gap]) -> None:
        for reason, observations in self._writer.gap(gaps).items():
            self._tally.drop(reason, observations)

    def _frame(self, frame: ParsedFrame) -> None:
        self.frames += 1
        first = frame.head.first
        rows = len(frame.head.columns.digest) // _DIGEST_BYTES
        try:
            if first > self._next:
                raise Refusal(
                    FailureKind.SEQUENCE,
                    f"record {first} came where {self._next} was due",
                )
            block = self._decode(frame)
        except GarbledError:
            self._tally.damage()
            self._tally.add("rejected", rows)
            raise
        except (FrameError, Refusal):
            self._tally.add("rejected", rows)
            raise
        if block is not None:
            known = min(max(self._next - first, 0), len(block))
            self._tally.add("dup", known)
            self._blocks.append(block.after(known))
            self._next = max(self._next, first + len(block))

    def _decode(self, frame: ParsedFrame) -> RowBlock | None:
        if not frame.head.HasField("fragment"):
            return self._decoder.block(frame)
        total = frame.head.fragment.total
        if not self._unfinished and total <= RECORD_BYTES:
            self._room.take(total)
            self._unfinished = total
        block = self._decoder.block(frame)
        if block is not None:
            self._finished()
        return block

    def _finished(self) -> None:
        held, self._unfinished = self._unfinished, 0
        self._room.give_back(held)

    def _write(self) -> None:
        blocks, self._blocks = self._blocks, []
        if blocks:
            self._put(joined_blocks(blocks))

    def _put(self, block: RowBlock) -> None:
        try:
            with self._tally.commit():
                self._writer.write_block(block)
        except AnchorError:
            self._tally.add("rejected", len(block))
            raise
        nbytes = int(block.sizes.sum())
        self._tally.add("stored", len(block), nbytes)
        if len(block):
            self._seat.store(len(block), nbytes, int(block.columns["time_ns"][-1]))
        left_out, self._left_out = self._left_out, self._writer.left_out.records
        if self._left_out > left_out:
            self._tally.drop("no room in the store", self._left_out - left_out)
