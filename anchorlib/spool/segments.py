"""The segments of one spool: the files that hold its records, removed once these are delivered."""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from anchorlib.spool.disk import Disk
from anchorlib.spool.format import (
    HEADER_BYTES,
    CorruptBytes,
    SegmentEntry,
    checked,
    entry_at,
    next_good,
)

__all__ = ["Segment", "SegmentReader", "Segments", "segment_name"]

_NAME: Final = re.compile(r"(\d{8})\.(\d{12})\.seg")
_HEADER_GUESS: Final = 1 << 16  # bytes read at once, which hold most entries whole


def segment_name(index: int, first: int) -> str:
    """Return the file name of segment number `index`, whose first record has number `first`."""
    return f"{index:08d}.{first:012d}.seg"


@dataclass(slots=True, eq=False)
class Segment:
    """One segment file of a spool.

    index: its number among the spool's segments. first: the number of its first record.

    end: a number above that of its last record. Once all records of the spool below this number are
        delivered, the file can be removed.

    size: how many of its bytes may be read; more may be written already.
    damaged: whether a reader found damaged bytes in it.
    following: the next segment; None for the last one.
    """

    path: Path
    index: int
    first: int
    end: int
    size: int
    damaged: bool = False
    following: Segment | None = field(default=None, repr=False)


class Segments:
    """The segments of a spool that are not delivered yet, oldest first.

    set_aside: how many damaged segments were renamed to `.bad` instead of removed.
    """

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self.folder = folder
        self.disk = disk or Disk()
        self.set_aside = 0
        self._all: deque[Segment] = deque()
        self._gone: deque[Segment] = deque()

    @classmethod
    def of_folder(cls, folder: Path, disk: Disk | None = None) -> Segments:
        """Return the segments that a writer has left in `folder`, without reading them.

        disk: makes the calls to the file system; None for the usual ones.
        """
        segments = cls(folder, disk)
        names = (path.name for path in folder.iterdir())
        for name in sorted(filter(None, map(_NAME.fullmatch, names)), key=lambda m: m[0]):
            path = folder / name[0]
            segments.add(Segment(path, int(name[1]), int(name[2]), 1 << 62, path.stat().st_size))
        for segment in segments._all:
            if segment.following is not None:
                # One more: a record that the next segment continues has its first fragment here.
                segment.end = segment.following.first + 1
        return segments

    def __len__(self) -> int:
        return len(self._all)

    @property
    def listed(self) -> list[Segment]:
        """A copy of the list of segments, in order."""
        return list(self._all)

    @property
    def nbytes(self) -> int:
        """How many bytes the listed segments have on disk, as far as they may be read."""
        return sum(segment.size for segment in tuple(self._all))

    @property
    def oldest(self) -> Segment | None:
        """The first segment; None if there are no segments."""
        return self._all[0] if self._all else None

    def add(self, segment: Segment) -> None:
        """Append a segment, and make it the `following` of the segment that was last."""
        if self._all:
            self._all[-1].following = segment
        self._all.append(segment)

    def commit(self, number: int) -> None:
        """Take those segments off the list whose records all have numbers below `number`.

        The caller knows that these records are delivered. The files stay until `tidy` removes them.
        The last segment stays listed, as it may still be written.
        """
        while len(self._all) > 1 and self._all[0].end <= number:
            self._gone.append(self._all.popleft())

    def tidy(self) -> None:
        """Remove the files of the segments that `commit` took off the list; this may take long.

        Damaged segments are renamed to `.bad` instead.
        """
        while self._gone:
            self._let_go(self._gone.popleft())

    def clear(self) -> None:
        """Take all segments off the list, and remove their files as `tidy` does.

        The caller knows that all their records are delivered.
        """
        self._gone += self._all
        self._all.clear()
        self.tidy()

    def _let_go(self, segment: Segment) -> None:
        with contextlib.suppress(OSError):  # a file that stays is delivered again, and not doubled
            if segment.damaged:
                self.set_aside += 1
                self.disk.rename(segment.path, segment.path.with_suffix(".bad"))
            else:
                self.disk.remove(segment.path)


class SegmentReader:
    """Reads one segment file, entry (message) by entry, up to the segment's `size`."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.offset = 0
        self._file = -1

    def next(self) -> SegmentEntry | CorruptBytes | None:
        """Return the next entry (message), or the damaged bytes in its place, and go on after it.

        None at the end. Damaged bytes also mark the segment as damaged.
        """
        size = self.segment.size
        if self.offset >= size:
            return None
        try:
            entry = self._entry(size)
        except OSError:  # bytes that the disk cannot read are as good as damaged
            entry = CorruptBytes(self.offset, size, torn=False)
        if isinstance(entry, CorruptBytes):
            self.segment.damaged = True
        self.offset = entry.end
        return entry

    def close(self) -> None:
        """Close the segment's file, if it is open."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _entry(self, size: int) -> SegmentEntry | CorruptBytes:
        start = self.offset
        head = self._read(min(_HEADER_GUESS, size - start))
        length = int.from_bytes(head[:4], "little")
        end = start + HEADER_BYTES + length
        if len(head) < HEADER_BYTES or end > size:
            return self._after_damage(size)
        if end - start <= len(head):
            message = head[HEADER_BYTES : end - start]
        else:  # reading the small head again is cheaper than copying a large message together
            message = self._read(length, HEADER_BYTES)
        entry = checked(start, head, 0, message)
        return self._after_damage(size) if isinstance(entry, CorruptBytes) else entry

    def _after_damage(self, size: int) -> CorruptBytes:
        """Return the damaged bytes from the present offset to the next intact entry, or to `size`.

        This reads the segment's rest into memory. size: where the readable bytes end.
        """
        rest = self._read(size - self.offset)
        first = entry_at(rest, 0)
        end = next_good(rest, 1)
        torn = isinstance(first, CorruptBytes) and first.torn and end == len(rest)
        return CorruptBytes(self.offset, self.offset + max(end, 1), torn)

    def _read(self, count: int, skip: int = 0) -> bytes:
        if self._file < 0:
            self._file = os.open(self.segment.path, os.O_RDONLY)
        at = self.offset + skip
        whole = os.pread(self._file, count, at)
        if len(whole) == count:
            return whole
        parts = [whole]
        at, count = at + len(whole), count - len(whole)
        while count > 0 and (part := os.pread(self._file, count, at)):
            parts.append(part)
            at += len(part)
            count -= len(part)
        return b"".join(parts)
