"""Records that a spool has lost, and the numbers of the others on the wire.

A collector accepts record n only after n - 1. Where damage cost records, the later ones get lower
numbers. The file `lost` keeps the holes, so that an interrupted delivery goes on with the same
numbers.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Holes", "Overlooked"]

LOST = "lost"

_UNREADABLE = (ValueError, KeyError, TypeError, OverflowError, RecursionError)  # a line of it


class Holes:
    """The holes of one spool, for one destination.

    A record has a `number` in the spool, and a `place`: its number on the wire.

    base: how many records the destination counts for earlier attempts of the same spool.
    """

    def __init__(self, folder: Path, to: str = "") -> None:
        self.base = 0
        self._path = folder / LOST
        self._to = to
        self._elsewhere: set[tuple[int, int]] = set()
        self._holes = sorted(self._read())

    @property
    def damage(self) -> int:
        """How many records were lost by damage."""
        return sum(end - first for first, end in self._holes if (first, end) not in self._elsewhere)

    def place(self, number: int) -> int:
        """The place on the wire of record `number`."""
        before = sum(min(end, number) - first for first, end in self._holes if first < number)
        return number - before - self.base

    def number(self, place: int) -> int:
        """The number in the spool of the record at `place` on the wire."""
        number = place + self.base
        for first, end in self._holes:
            if number >= first:
                number += end - first
        return number

    def has(self, number: int) -> bool:
        """Whether record `number` lies in a hole."""
        return any(first <= number < end for first, end in self._holes)

    def add(self, first: int, end: int, *, elsewhere: bool = False) -> None:
        """Note that records `first` … `end` - 1 are lost.

        elsewhere: they are not lost by damage, but were delivered to another store.
        """
        self._holes = sorted([*self._holes, (first, end)])
        if elsewhere:
            self._elsewhere.add((first, end))
        line = {"first": first, "end": end, "to": self._to if elsewhere else None}
        # Delivery goes on where the file cannot be written: only a later delivery would need it.
        with contextlib.suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _read(self) -> Iterator[tuple[int, int]]:
        try:
            lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return
        for line in lines:
            with contextlib.suppress(*_UNREADABLE):
                entry = json.loads(line)
                hole = int(entry["first"]), int(entry["end"])
                if entry["to"] == self._to:
                    self._elsewhere.add(hole)
                if entry["to"] in (None, self._to):
                    yield hole


class Overlooked:
    """Stands in for `Holes` where a spool is read a second time: the first reader counts damage."""

    def add(self, first: int, end: int) -> None:
        """Does nothing: the reader that sends the frames notes this hole."""
