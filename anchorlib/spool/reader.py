"""Reads the frames of a spool's segments in order; damaged records are left out and counted.

A frame is a message with records; segments are the files of a spool, whose entries are messages. A
record too large for one frame goes on in the next frames: its fragments.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from anchorlib.record import Gap
from anchorlib.spool.format import OPEN, CorruptBytes, SegmentEntry, kind_of
from anchorlib.spool.holes import Holes, IgnoredHoles
from anchorlib.spool.segments import Segment, SegmentReader, Segments
from anchorlib.wire import (
    EncodedFrame,
    FrameError,
    Hello,
    ParsedFrame,
    PushRequest,
    TableSizes,
    first_of,
    parse_request,
    read_gaps,
    table_sizes,
)

__all__ = ["FrameReader", "SpoolNotes", "read_notes"]


class FrameReader:
    """Reads the frames (messages with records) of a spool one after the other.

    holes: notes the damaged records, which the reader skips.

    definitions: the encoder's list of messages that define series, layouts and phases, for a spool
        that is still written; None reads the definitions from the segments.

    live: whether the spool is still written, so that the rest of its last record may yet come.
    last_step: the step of the first record behind the last hole; 0 before there is one.
    """

    def __init__(
        self,
        segments: Segments,
        holes: Holes | IgnoredHoles,
        definitions: list[bytes] | None = None,
        *,
        live: bool = False,
    ) -> None:
        self._segments = segments
        self._holes = holes
        self._known = definitions is not None
        self.definitions = [] if definitions is None else definitions
        self._live = live
        self._at: SegmentReader | None = None
        self._peeked: EncodedFrame | None = None
        self._expected = 0  # the number of the record that has to come next
        self._doubt = True  # whether the next frame may follow a hole, so its number is read
        self._inside = 0  # the end of a record of which fragments were sent and others follow; or 0
        self._more = False  # whether further fragments follow the frame peeked at
        self._suspect = False  # whether a definition of this segment may be lost
        self.last_step = 0

    def apart(self) -> FrameReader:
        """Return a second reader, at the spool's beginning, which does not count damage again."""
        known = self.definitions if self._known else None
        return FrameReader(self._segments, IgnoredHoles(), known, live=self._live)

    def rewind(self) -> None:
        """Go back to the beginning of the oldest segment; frames known as sent are passed over."""
        self.close()

    def start(self, number: int) -> None:
        """Set the number of the record to begin with; frames that end before it are skipped."""
        self._expected = number
        self._doubt = True
        self._inside = 0
        self._peeked = None

    @property
    def expected(self) -> int:
        """The number, in the spool, of the record that the next frame has to begin with."""
        return self._expected

    def skip_to(self, segment: Segment | None, offset: int) -> None:
        """Go on reading at `offset` of `segment`, where an entry begins.

        Nothing is done if `segment` is None, or if reading has not begun.
        """
        if segment is None or self._at is None:
            return
        if self._at.segment is not segment:
            self._enter(segment)
        self._at.offset = offset
        self._peeked = None
        self._doubt = True

    def first(self) -> EncodedFrame | None:
        """Return the next frame to send, without going on; None at the end.

        A second call returns the same frame, until `advance`.
        """
        if self._peeked is None:
            self._peeked = self._find()
        return self._peeked

    def advance(self) -> None:
        """Note that the frame that `first` returned was sent, and go on to the next one."""
        if self._peeked is not None:
            self.passed(self._peeked.end, more=self._more)
        self._peeked = None

    def passed(self, end: int, *, more: bool) -> None:
        """Note that a frame was sent, perhaps one from memory that this reader did not return.

        end: the number after that of the frame's last record. more: whether that record goes on in
        the next frame.
        """
        self._inside = end if more else 0
        self._expected = max(self._expected, end - more)

    def close(self) -> None:
        """Close the segment's file and forget the position: reading begins anew after this."""
        if self._at is not None:
            self._at.close()
        self._at = self._peeked = None
        self._doubt = True

    def _enter(self, segment: Segment) -> None:
        if self._at is not None:
            self._at.close()
        self._at = SegmentReader(segment)
        self._doubt = True
        self._suspect = False

    def _find(self) -> EncodedFrame | None:
        while (entry := self._next()) is not None:
            if isinstance(entry, CorruptBytes):
                self._after_damage()
            elif kind_of(entry.message) == "define":
                self._define(entry)
            elif kind_of(entry.message) == "frame":
                frame = self._frame(entry)
                if frame is not None:
                    return frame
        return None

    def _next(self) -> SegmentEntry | CorruptBytes | None:
        """Return the next entry (message) or damaged bytes, and go on after it; None at the end."""
        if self._at is None:
            if self._segments.oldest is None:
                return None
            self._enter(self._segments.oldest)
        while self._at is not None:
            entry = self._at.next()
            if entry is not None or self._at.segment.following is None:
                return entry
            self._enter(self._at.segment.following)
        return None

    def _after_damage(self) -> None:
        self._doubt = True
        self._inside = 0
        if self._known or self._at is None:
            return
        self._suspect = True
        # The next segment begins with all definitions so far, those of this segment among them.
        if self._at.segment.following is not None:
            for entry in _head(self._at.segment.following):
                self._define(entry)

    def _define(self, entry: SegmentEntry) -> None:
        if self._known:
            return
        if entry.last == len(self.definitions):
            self.definitions.append(entry.message)
        elif entry.last > len(self.definitions):
            self._suspect = True

    def _frame(self, entry: SegmentEntry) -> EncodedFrame | None:
        """Return the frame in an entry; None if the frame is not to be sent.

        A frame is not sent if all its records were sent before, or if the beginning of its first
        record, the end of its last record, or a definition that it needs is lost.
        """
        if entry.last <= self._expected:
            return None
        self._more = bool(entry.seq & OPEN)
        if self._inside != entry.last and not self._begins(entry):
            self._doubt = True  # the next frame may be a fragment of the record passed over
            return None
        self._doubt = False
        return EncodedFrame((entry.message,), entry.last, len(self.definitions))

    def _begins(self, entry: SegmentEntry) -> bool:
        """Return whether sending can go on with the frame in `entry`.

        This is so if the frame begins with the start of a record, and if neither the rest of its
        last record nor a definition that it needs is lost. Records missing before the frame are
        noted in `holes`.
        """
        if self._more and not self._live and not self._is_whole(entry):
            return False
        if not (self._doubt or self._suspect):
            return True
        try:
            first, offset, needs, step = first_of(entry.message)
        except FrameError:
            return False
        if offset or (self._suspect and not self._are_defined(needs)):
            return False
        if first > self._expected:
            self.last_step = step
            self._holes.add(self._expected, first)
            self._expected = first
        return True

    def _are_defined(self, needs: TableSizes) -> bool:
        have = table_sizes(self.definitions)
        return all(wanted <= there for wanted, there in zip(needs, have, strict=True))

    def _is_whole(self, entry: SegmentEntry) -> bool:
        """Return whether the spool has all fragments of the last record of the frame in `entry`.

        The caller knows that this record goes on in the next frames.
        """
        assert self._at is not None
        segment: Segment | None = self._at.segment
        offset = self._at.offset
        while segment is not None:
            ahead = SegmentReader(segment)
            ahead.offset = offset
            try:
                while (later := ahead.next()) is not None:
                    if isinstance(later, CorruptBytes) or later.last != entry.last:
                        return False
                    if not later.seq & OPEN:
                        return True
            finally:
                ahead.close()
            segment, offset = segment.following, 0
        return False


class SpoolNotes(NamedTuple):
    """What the segments of a spool hold beside frames (messages with records).

    hello: the message that says who wrote the spool; None if no segment has an intact beginning.
    gaps: counts of observations that were not recorded, or recorded without values.
    lineage: serialised messages with lineage, header entries or traced operations.
    end: the number after that of the last whole record.
    closed: whether the session was closed, so that no record can follow after `end`.
    """

    hello: Hello | None
    gaps: list[Gap]
    lineage: list[bytes]
    end: int
    closed: bool


def read_notes(segments: Segments) -> SpoolNotes:
    """Read and return what a spool's segments hold beside frames (messages with records).

    Every segment repeats at its beginning what earlier segments say. So only the newest segment
    with an intact beginning, and the segments after it, are read; all segments if no beginning is
    intact. Damaged entries are skipped.
    """
    chosen: list[Segment] = []
    for segment in reversed(segments.listed):
        chosen.insert(0, segment)
        first = SegmentReader(segment)
        entry = first.next()
        first.close()
        if isinstance(entry, SegmentEntry) and kind_of(entry.message) == "hello":
            break
    return _gathered(chosen)


def _gathered(segments: list[Segment]) -> SpoolNotes:
    hello, end, closed = None, 0, False
    gaps: dict[tuple[str, str, str, str], Gap] = {}
    lineage: dict[bytes, None] = {}
    for segment in segments:
        end = max(end, segment.first)
        for entry in _good(segment):
            kind = kind_of(entry.message)
            if kind == "frame":
                end = max(end, entry.last - bool(entry.seq & OPEN))
            elif kind == "gaps":
                stated = read_gaps(_request(entry.message).gaps)
                gaps |= {(gap.name, gap.kind, gap.mode, gap.reason): gap for gap in stated}
            elif kind == "lineage":
                # Entries of the header may be stated again: the last statement has to stay last.
                lineage.pop(entry.message, None)
                lineage[entry.message] = None
            elif kind == "hello":
                hello = _request(entry.message).hello
            elif kind == "close":
                end, closed = max(end, entry.last), True
    return SpoolNotes(hello, list(gaps.values()), list(lineage), end, closed)


def _good(segment: Segment) -> Iterator[SegmentEntry]:
    reader = SegmentReader(segment)
    try:
        while (entry := reader.next()) is not None:
            if isinstance(entry, SegmentEntry):
                yield entry
    finally:
        reader.close()


def _head(segment: Segment) -> Iterator[SegmentEntry]:
    """Yield the definitions (of series, layouts and phases) before a segment's first frame."""
    for entry in _good(segment):
        if kind_of(entry.message) == "frame":
            return
        if kind_of(entry.message) == "define":
            yield entry


def _request(message: bytes) -> PushRequest:
    request = parse_request(message)
    if isinstance(request, ParsedFrame):
        raise FrameError("a frame stands where none can be")
    return request
