"""Records of a spool that are nowhere any more, and how the others are numbered without them.

A collector takes number n only after n - 1. Where damage cost records, those behind it move up, and
the file `lost` remembers it: the same numbers have to come out whenever delivery goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Holes", "Overlooked"]

LOST = "lost"


class Holes:
    """The holes of one spool, as one destination counts them.

    number: a record's in the spool; place: its number on the wire.
    base: places that the destination counts for an earlier writer.
    """

    def __init__(self, folder: Path, to: str = "") -> None:
        self.base = 0
        self._path = folder / LOST
        self._to = to
        self._elsewhere: set[tuple[int, int]] = set()
        self._holes = sorted(self._read())

    @property
    def damage(self) -> int:
        """Records that are nowhere."""
        return sum(end - first for first, end in self._holes if (first, end) not in self._elsewhere)

    def place(self, number: int) -> int:
        """Where record `number` is on the wire."""
        before = sum(min(end, number) - first for first, end in self._holes if first < number)
        return number - before - self.base

    def number(self, place: int) -> int:
        """The record at `place`, or the first one behind the hole that it falls into."""
        number = place + self.base
        for first, end in self._holes:
            if number >= first:
                number += end - first
        return number

    def has(self, number: int) -> bool:
        """Whether record `number` counts as one of those that are nowhere."""
        return any(first <= number < end for first, end in self._holes)

    def add(self, first: int, end: int, *, elsewhere: bool = False) -> None:
        """Records from `first` up to `end` are lost, or (`elsewhere`) are in another store."""
        self._holes = sorted([*self._holes, (first, end)])
        if elsewhere:
            self._elsewhere.add((first, end))
        line = {"first": first, "end": end, "to": self._to if elsewhere else None}
        # Where even this cannot be written, delivery goes on: it matters only if it is cut short.
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
            with contextlib.suppress(ValueError, KeyError, TypeError):
                told = json.loads(line)
                hole = int(told["first"]), int(told["end"])
                if told["to"] == self._to:
                    self._elsewhere.add(hole)
                if told["to"] in (None, self._to):
                    yield hole


class Overlooked:
    """Holes that a second look at a spool meets: they are for the first look to tell of."""

    def add(self, first: int, end: int) -> None:
        """Nothing is remembered."""
