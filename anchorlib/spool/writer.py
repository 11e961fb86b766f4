"""Writes frames (messages with records) into a spool's segment files, and syncs these to disk.

Beside frames a segment holds notes: definitions (of series, layouts and phases), gaps (counts of
what was not recorded) and lineage (what each value was computed from).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from anchorlib.names import escape
from anchorlib.record import Gap
from anchorlib.spool.format import OPEN, header
from anchorlib.spool.segments import Segment, Segments, segment_name
from anchorlib.wire import Buffer, EncodedFrame, close_request, gap_requests

__all__ = ["SEGMENT_SIZE", "SegmentSize", "SpoolWriter"]

_log = logging.getLogger("anchorlib")

_HEADS: Final = 32  # the least ratio of a segment's size to that of its first notes
_SYNC_SECONDS: Final = 0.05
_RETIRED: Final = 64  # finished segments that may stay open until they are synced


class SegmentSize(NamedTuple):
    """The number of bytes after which a spool begins a new segment file.

    usual: the number for most segments. most: the upper bound for segments that begin with long
    notes (definitions, lineage and gaps): these segments get larger, so that they hold more than
    notes.
    """

    usual: int
    most: int


# Small, so that delivered segments free the disk while others are still on their way.
SEGMENT_SIZE: Final = SegmentSize(16 << 20, 64 << 20)

GapKey = tuple[str, str, str, str]


class SpoolWriter:
    """Writes the segment files of one spool; any thread may call the methods.

    hello: the message that every segment begins with; it says who writes which run.

    definitions: the list of messages that define series, layouts and phases. lineage: the list of
        messages with lineage, header entries and traced operations. The caller extends both lists;
        each segment repeats all messages that were added before it.

    sync: whether a thread syncs the written bytes to the disk every 50 ms.

    Readers see what was written once `publish` was called.
    """

    def __init__(  # each is a choice of its own, by keyword
        self,
        segments: Segments,
        hello: bytes,
        *,
        definitions: Sequence[bytes],
        lineage: Sequence[bytes],
        size: SegmentSize = SEGMENT_SIZE,
        sync: bool = True,
    ) -> None:
        self._segments = segments
        self._disk = segments.disk
        self._hello = hello
        self._definitions = definitions
        self._lineage = lineage
        self._size = size
        self._lock = threading.Lock()
        self._segment: Segment | None = None
        self._file = -1
        self._written = 0
        self._full_at = 0
        # The number after that of the last record written, and whether fragments of it follow.
        self._end, self._open = 0, False
        self._told = (0, 0)  # how many definitions and lineage messages the segment holds
        self._taken = 0
        self._gaps: dict[GapKey, Gap] = {}
        self._untold: dict[GapKey, Gap] = {}
        self._index = 0
        self._retired: list[int] = []
        self._folder_dirty = True
        self._dirty = threading.Event()
        self._over = threading.Event()
        self._sync_failed = False
        self._thread = threading.Thread(target=self._syncing, name="anchorlib-spool", daemon=True)
        if sync:
            self._thread.start()

    def frame(self, frame: EncodedFrame, first: int, *, more: bool) -> None:
        """Write a frame, and before it the notes that the segment lacks, into a segment.

        Raises OSError if the disk fails; then nothing of the frame was written.
        first: the number of the frame's first record. more: whether the next frame continues the
        frame's last record.
        """
        with self._lock:
            self._make_room(first, frame.definitions)
            notes = self._notes(frame.definitions)
            seq = frame.end | (OPEN if more else 0)
            self._write([notes + header(seq, *frame.parts), *frame.parts])
            self._noted(frame.definitions)
            self._end, self._open = frame.end, more

    def gap(self, gaps: Iterable[Gap]) -> None:
        """Keep gaps in memory, to be written with the next frame or by `notes`.

        The counts are totals since the session's start, so a later gap replaces an earlier gap of
        the same series and reason.
        """
        with self._lock:
            stated = {(gap.name, gap.kind, gap.mode, gap.reason): gap for gap in gaps}
            self._gaps |= stated
            self._untold |= stated

    def notes(self, *, closed: bool = False) -> None:
        """Write the gaps and lineage that the present segment lacks, and publish them.

        If there is no present segment, a new one is begun, which gets all definitions, gaps and
        lineage. closed: whether to write also that the session is over. Raises OSError if the disk
        fails.
        """
        with self._lock:
            defined, new = self._told[0], self._segment is None
            if new:
                defined = len(self._definitions)
                self._make_room(self._end, defined)
            parts = self._notes(defined)
            if closed:
                message = close_request()
                parts += header(self._end, message) + message
            if parts:
                self._write([parts])
                self._noted(defined)
            if parts or new:
                self._publish()

    def publish(self) -> None:
        """Make everything that was written so far visible to readers."""
        with self._lock:
            self._publish()

    @property
    def position(self) -> tuple[Segment | None, int]:
        """Where the next entry is written: (segment, offset in it).

        The segment is None if there is none at present; then the offset means nothing.
        """
        return self._segment, self._written

    def sync(self) -> None:
        """Block until all written bytes survive a power loss. Raises OSError if the disk fails."""
        with self._lock:
            files, self._retired = self._retired, []
            if self._file >= 0:
                files.append(os.dup(self._file))
            folder, self._folder_dirty = self._folder_dirty, False
        try:
            for file in files:
                self._disk.sync(file)
            if folder:
                self._disk.sync_folder(self._segments.folder)
        finally:
            for file in files:
                os.close(file)

    def close(self) -> None:
        """End the syncing thread, sync everything to the disk, and close the file."""
        self._over.set()
        self._dirty.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.sync_or_warn()
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
            self._segment = None

    def _publish(self) -> None:
        if self._segment is not None:
            self._segment.size = self._written
            self._segment.end = max(self._segment.end, self._end)

    def _make_room(self, first: int, definitions: int) -> None:
        """Begin a new segment unless the present one can take a message from record `first` on.

        The present segment can take it if `first` is the record with which it goes on, and if it is
        not full. A segment that ends inside a record counts as not full.
        definitions: how many of the definitions, from the first on, the message needs.
        Raises OSError if the disk fails.
        """
        full = self._written >= self._full_at and not self._open
        follows = first == self._end - self._open
        if self._segment is not None and not full and follows:
            return
        self._leave_segment()
        path = self._segments.folder / segment_name(self._index, first)
        self._file = self._disk.create(path)
        self._segment = Segment(path, self._index, first, first, 0)
        self._index += 1
        self._written = 0
        self._folder_dirty = True
        self._told = (0, 0)
        self._untold = dict(self._gaps)
        try:
            self._write([header(first, self._hello) + self._hello + self._notes(definitions)])
        except OSError:
            self._leave_segment()
            with contextlib.suppress(OSError):
                self._disk.remove(path)
            raise
        self._noted(definitions)
        self._full_at = max(self._size.usual, min(_HEADS * self._written, self._size.most))
        self._segments.add(self._segment)

    def _leave_segment(self) -> None:
        if self._file >= 0:
            self._retired.append(self._file)
            self._file = -1
        self._segment = None
        if len(self._retired) > _RETIRED:  # the number of files that a process may open is limited
            file = self._retired.pop(0)
            try:
                self._disk.sync(file)
            finally:
                os.close(file)

    def _notes(self, definitions: int) -> bytes:
        """Return the entries to write before the next frame: notes that the segment lacks.

        These are definitions, lineage, and gaps. definitions: how many of the definitions, from the
        first on, the frame needs.
        """
        defined, lineage = self._told
        parts: list[bytes] = []
        for number in range(defined, definitions):
            message = self._definitions[number]
            parts += (header(number, message), message)
        self._taken = len(self._lineage)
        stated = gap_requests(self._untold.values())
        for message in [*self._lineage[lineage : self._taken], *stated]:
            parts += (header(self._end, message), message)
        return b"".join(parts)

    def _noted(self, definitions: int) -> None:
        self._told = (max(self._told[0], definitions), self._taken)
        self._untold.clear()

    def _write(self, parts: Sequence[Buffer]) -> None:
        """Write all of `parts`, or nothing: the file is cut back after a failed write.

        If the file cannot be cut back, the segment is ended, and the next write begins a new one.
        Raises OSError if the write failed.
        """
        total = sum(map(len, parts))
        done = 0
        try:
            while done < total:
                count = self._disk.write(self._file, parts if not done else _rest(parts, done))
                if count <= 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                done += count
        except OSError:
            try:
                self._disk.truncate(self._file, self._written)
            except OSError:
                self._leave_segment()  # readers pass over the torn entry at its end
            raise
        self._written += total
        self._dirty.set()

    def _syncing(self) -> None:
        while not self._over.is_set():
            self._dirty.wait()
            self._over.wait(_SYNC_SECONDS)
            self._dirty.clear()
            self.sync_or_warn()

    def sync_or_warn(self) -> None:
        """Call `sync`; where the disk fails, log a warning, the first time only."""
        try:
            self.sync()
        except OSError as fault:
            if not self._sync_failed:
                self._sync_failed = True
                _log.warning(
                    "anchorlib: the disk of the spool %s cannot be synced (%s): the newest records "
                    "may be lost if the power fails",
                    escape(str(self._segments.folder)),
                    fault.strerror or fault,
                )


def _rest(parts: Sequence[Buffer], done: int) -> Sequence[Buffer]:
    return [b"".join(parts)[done:]]
