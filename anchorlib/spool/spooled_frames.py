"""A spool as an outbox sees it: frames (messages with records) in order, most of them on disk.

    store ─▶ segments ─┐
      └ fails ─▶ memory ┴─ first, advance ─▶ stream to the collector

Frames that the disk did not take wait in memory, behind those on disk. They are sent from memory,
or move to the disk as soon as it takes them. An outbox is the queue of messages for a collector.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from anchorlib.names import escape
from anchorlib.record import UNKNOWN, Gap
from anchorlib.spool.holes import Holes
from anchorlib.spool.reader import FrameReader
from anchorlib.spool.segments import Segments
from anchorlib.spool.writer import SpoolWriter
from anchorlib.wire import EncodedFrame, FrameError, HeldRows, held_frame, renumbered

__all__ = ["SpoolFrames"]

_log = logging.getLogger("anchorlib")

_RETRY_SECONDS: Final = 1.0
_DAMAGE: Final = "damaged on the trainer's disk"


class _HeldFrame(NamedTuple):
    """A frame (message with records) that waits in memory because the disk did not take it.

    first: the number of its first record. more: whether its last record goes on in the next frame.
    """

    frame: EncodedFrame
    first: int
    more: bool


class SpoolFrames:
    """The frames (messages with records) in one writer's spool, as `Outbox` uses them.

    Records have two numbers: one in the spool, and one on the wire, under which they are sent.
    Numbers on the wire do not count lost records (see `Holes`).

    changed: its lock is to be held by the caller of every method but `store`, `save` and `tidy`,
        which wait for the disk without the lock.

    writer: what adds frames to the files; None for a spool that is only delivered.

    definitions: the encoder's messages that define series, layouts and phases; None to read
        definitions from the disk.

    end: the number, in the spool, after that of its last record.

    already: how many records the collector had when sending began; None before that.
    """

    def __init__(  # the parts it connects
        self,
        segments: Segments,
        holes: Holes,
        changed: threading.Condition,
        writer: SpoolWriter | None = None,
        definitions: list[bytes] | None = None,
        end: int = 0,
    ) -> None:
        self._segments = segments
        self._holes = holes
        self._changed = changed
        self._writer = writer
        self._reader = FrameReader(segments, holes, definitions, live=writer is not None)
        self._end = end
        self._last = end  # the end of the last frame that was given to `store`
        self._kept: deque[_HeldFrame] = deque()
        self._kept_bytes = 0
        self._sent_kept = 0
        self._retry_at = 0.0
        self._warned = False
        self._placed = False
        self.already: int | None = None

    # -- the methods that an outbox calls (`Frames`)

    @property
    def nbytes(self) -> int:
        """Bytes of the undelivered messages with records, on disk and in memory."""
        return self._segments.nbytes + self._kept_bytes

    @property
    def end(self) -> int:
        """The number on the wire (see the class) after that of the last record."""
        return self._holes.to_wire(self._end)

    def append(self, frame: EncodedFrame) -> None:
        """Make `frame`, which `store` has put on the disk or in memory, available for sending."""
        self._end = max(self._end, frame.end)
        if self._writer is not None and not self._kept:
            self._writer.publish()

    def rewind(self) -> None:
        """Forget which frames were sent, as a new stream to the collector begins.

        The next `commit` sets where the stream begins.
        """
        self._placed = False
        self._reader.rewind()
        self._sent_kept = 0

    def held(self, start: int) -> Iterator[HeldRows]:
        """Yield the table rows of the spool's records, from the record sent as number `start` on.

        The caller compares the rows with what the collector has. Their numbers are those on the
        wire. Damage is skipped and not counted: it is counted when records are read to be sent.
        """
        reader = self._reader.apart()
        reader.start(self._holes.to_spool(start))
        try:
            while (frame := reader.first()) is not None:
                yield from self._held(frame, reader.definitions)
                reader.advance()
        finally:
            reader.close()
        for one in tuple(self._kept):
            if one.frame.end > reader.expected:
                yield from self._held(one.frame, reader.definitions)

    def _held(self, frame: EncodedFrame, definitions: list[bytes]) -> Iterator[HeldRows]:
        held = held_frame(frame.message, definitions)
        if held is not None and not self._holes.has(held.first):
            yield held._replace(first=self._holes.to_wire(held.first))

    def first(self) -> EncodedFrame | None:
        """Return the first frame that was not sent, without taking it; None if all were sent.

        Its records have their numbers on the wire (see the class).
        """
        frame = self._reader.first()
        if frame is None and self._sent_kept < len(self._kept):
            frame = self._kept[self._sent_kept].frame
        if frame is None:
            return None
        place = self._holes.to_wire(frame.end)
        back = frame.end - place
        if not back:
            return frame
        return frame._replace(parts=(renumbered(frame.message, back),), end=place)

    def advance(self) -> None:
        """Note that the frame that `first` returned was sent, so that `first` returns the next."""
        if self._reader.first() is not None:
            self._reader.advance()
        else:
            one = self._kept[self._sent_kept]
            self._sent_kept += 1
            self._reader.passed(one.frame.end, more=one.more)

    def commit(self, committed: int) -> None:
        """Forget the frames whose records all have numbers on the wire below `committed`.

        The collector has stored these records. The first call on a stream also sets where sending
        begins: at number `committed`. Raises FrameError if the collector lacks records that are not
        in the spool any more.
        """
        number = self._holes.to_spool(committed)
        if not self._placed:
            self._placed = True
            if self.already is None:
                self.already = committed
            number = self._place(committed, number)
        self._segments.commit(number)
        while self._kept and self._kept[0].frame.end <= number:
            self._pop_kept()

    def tidy(self) -> None:
        """Remove the files of delivered segments; slow, so it is to be called without the lock."""
        self._segments.tidy()

    def drop(self) -> None:
        """Forget the frames that wait in memory; those on disk stay there."""
        self._kept.clear()
        self._kept_bytes = self._sent_kept = 0

    # -- the methods that the sink or delivery calls

    @property
    def spilling(self) -> bool:
        """Whether records wait in memory because the disk does not take them."""
        return bool(self._kept)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the messages with records that wait in memory."""
        return self._kept_bytes

    @property
    def kept_records(self) -> int:
        """How many records wait in memory, in whole or in part, and would be lost with it."""
        return self._kept[-1].frame.end - self._kept[0].first if self._kept else 0

    @property
    def lost(self) -> int:
        """How many records are lost because their files on disk are damaged."""
        return self._holes.damage

    @property
    def definitions(self) -> list[bytes]:
        """The messages that define the series, layouts and phases of the records read so far.

        A layout is a dtype and a shape.
        """
        return self._reader.definitions

    @property
    def damage(self) -> list[Gap]:
        """A list with the gap that counts the records lost to damage so far; [] if there are none.

        It is unknown which tensors were in the records, so the gap's name is "*".
        """
        lost = self._holes.damage
        return (
            [Gap(UNKNOWN, "value", "all", _DAMAGE, lost, 0, self._reader.last_step)] if lost else []
        )

    @property
    def reached(self) -> int:
        """The number in the spool after that of the last record that was sent."""
        return self._reader.expected

    def store(self, frame: EncodedFrame, *, more: bool) -> None:
        """Write a frame to the disk, or keep it in memory if the disk fails.

        The caller has to call `append` afterwards, so that the frame is sent.
        more: whether the frame's last record goes on in the next frame.
        """
        first = min(self._last, frame.end - 1)
        self._last = frame.end
        one = _HeldFrame(frame, first, more)
        if (self._kept and not self._spill()) or not self._write(one):
            one = one._replace(frame=frame.joined())
            with self._changed:
                self._kept.append(one)
                self._kept_bytes += frame.nbytes

    def save(self) -> bool:
        """Try to move the records in memory to the disk; return whether none is left in memory."""
        self._retry_at = 0.0
        return self._spill()

    def close(self) -> None:
        """Close the spool's files."""
        self._reader.close()

    def _write(self, one: _HeldFrame) -> bool:
        if self._writer is None or time.monotonic() < self._retry_at:
            return False
        try:
            self._writer.frame(one.frame, one.first, more=one.more)
        except OSError as fault:
            self._retry_at = time.monotonic() + _RETRY_SECONDS
            self._warn(fault)
            return False
        return True

    def _spill(self) -> bool:
        """Move frames from memory to the disk until a write fails; return whether all moved."""
        while True:
            with self._changed:
                one = self._kept[0] if self._kept else None
            if one is None:
                return True
            if not self._write(one):
                return False
            with self._changed:
                self._moved(one)

    def _moved(self, one: _HeldFrame) -> None:
        """Forget the frame `one` in memory, which was written to disk.

        If frames in memory were sent already, reading on disk goes on after it, so that it is not
        sent twice.
        """
        assert self._writer is not None
        here = bool(self._kept) and self._kept[0] is one
        unsent = here and not self._sent_kept
        if here:
            self._pop_kept()
        self._writer.publish()
        if not unsent:
            self._reader.skip_to(*self._writer.position)
            self._reader.passed(one.frame.end, more=one.more)

    def _pop_kept(self) -> None:
        self._kept_bytes -= self._kept.popleft().frame.nbytes
        self._sent_kept = max(0, self._sent_kept - 1)

    def _place(self, committed: int, number: int) -> int:
        """Set with which record a new stream begins, and return that record's number in the spool.

        committed: how many records the collector has. number: the number in the spool of the record
        after these, with which the stream should begin. Raises FrameError if the spool no longer
        has this record. But when a dead process's spool goes to a collector without records, the
        stream begins with the spool's first record, and the missing records, which another store
        has, are noted as a hole.
        """
        oldest = self._segments.oldest
        held = self._kept[0].first if self._kept else self._end
        start = held if oldest is None else min(oldest.first, held)
        if number < start:
            if committed or self._writer is not None:
                raise FrameError(
                    f"it has {committed} records of this session, and the spool begins with "
                    f"number {start}: its store was changed"
                )
            # The records before `start` are gone because they were delivered to another store.
            self._holes.add(number, start, elsewhere=True)
            number = start
        self._reader.start(number)
        return number

    def _warn(self, fault: OSError) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "anchorlib: the spool %s cannot be written (%s); records wait in memory until it "
                "can",
                escape(str(self._segments.folder)),
                fault.strerror or fault,
            )
