"""The segments of one spool: which files there are, and what becomes of them once delivered."""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from anchorlib.spool.disk import Disk
from anchorlib.spool.format import HEADER_BYTES, Damaged, Stored, checked, entry_at, next_good

__all__ = ["Segment", "SegmentReader", "Segments", "segment_name"]

_NAME: Final = re.compile(r"(\d{8})\.(\d{12})\.seg")
_HEADER_GUESS: Final = 1 << 16  # bytes read at once: most entries are whole with them


def segment_name(index: int, first: int) -> str:
    """The file of segment `index`, whose first record is number `first`."""
    return f"{index:08d}.{first:012d}.seg"


@dataclass(slots=True, eq=False)
class Segment:
    """One file.

    first: the number of its first record.
    end: a number after its last one; nothing of it is needed once so many are delivered.
    size: bytes that may be read.
    damaged: something in it was no entry.
    following: the next segment.
    """

    path: Path
    index: int
    first: int
    end: int
    size: int
    damaged: bool = False
    following: Segment | None = field(default=None, repr=False)


class Segments:
    """All segments, oldest first, linked; removed from the front as they are delivered."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self.folder = folder
        self.disk = disk or Disk()
        self.set_aside = 0
        self._all: deque[Segment] = deque()
        self._gone: deque[Segment] = deque()

    @classmethod
    def found(cls, folder: Path, disk: Disk | None = None) -> Segments:
        """Those that a writer left in `folder`; their content is not looked at."""
        segments = cls(folder, disk)
        names = (path.name for path in folder.iterdir())
        for name in sorted(filter(None, map(_NAME.fullmatch, names)), key=lambda m: m[0]):
            path = folder / name[0]
            segments.add(Segment(path, int(name[1]), int(name[2]), 1 << 62, path.stat().st_size))
        for segment in segments._all:
            if segment.following is not None:
                # One more: a record that goes on there has its first part here.
                segment.end = segment.following.first + 1
        return segments

    def __len__(self) -> int:
        return len(self._all)

    @property
    def listed(self) -> list[Segment]:
        """All of them."""
        return list(self._all)

    @property
    def nbytes(self) -> int:
        """On disk."""
        return sum(segment.size for segment in tuple(self._all))

    @property
    def oldest(self) -> Segment | None:
        """The first that is left."""
        return self._all[0] if self._all else None

    def add(self, segment: Segment) -> None:
        """A new segment, behind the others."""
        if self._all:
            self._all[-1].following = segment
        self._all.append(segment)

    def commit(self, number: int) -> None:
        """All records before `number` are delivered: whole segments of them go, with `tidy`."""
        while len(self._all) > 1 and self._all[0].end <= number:
            self._gone.append(self._all.popleft())

    def tidy(self) -> None:
        """Remove the files of those that are delivered, which takes its time."""
        while self._gone:
            self._let_go(self._gone.popleft())

    def clear(self) -> None:
        """Everything is delivered."""
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
    """Reads one segment, entry by entry, as far as its `size` says."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.offset = 0
        self._file = -1

    def next(self) -> Stored | Damaged | None:
        """The next entry, or stretch of damage; None at the end of what may be read."""
        size = self.segment.size
        if self.offset >= size:
            return None
        try:
            found = self._entry(size)
        except OSError:  # the disk cannot read it: as good as damaged
            found = Damaged(self.offset, size, torn=False)
        if isinstance(found, Damaged):
            self.segment.damaged = True
        self.offset = found.end
        return found

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _entry(self, size: int) -> Stored | Damaged:
        start = self.offset
        head = self._read(min(_HEADER_GUESS, size - start))
        length = int.from_bytes(head[:4], "little")
        end = start + HEADER_BYTES + length
        if len(head) < HEADER_BYTES or end > size:
            return self._after_damage(size)
        if end - start <= len(head):
            message = head[HEADER_BYTES : end - start]
        else:  # read anew: once more what is small already, instead of copying what is large
            message = self._read(length, HEADER_BYTES)
        found = checked(start, head, 0, message)
        return self._after_damage(size) if isinstance(found, Damaged) else found

    def _after_damage(self, size: int) -> Damaged:
        """Looks, with all the rest in memory, for where good entries begin again."""
        rest = self._read(size - self.offset)
        first = entry_at(rest, 0)
        end = next_good(rest, 1)
        torn = isinstance(first, Damaged) and first.torn and end == len(rest)
        return Damaged(self.offset, self.offset + max(end, 1), torn)

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
