"""Records that a spool has lost, and the numbers under which the later records are sent.

A collector accepts record n only after record n - 1. Where damage on the disk cost records, the
later records are therefore sent under lower numbers. A hole is a range of lost records. The file
`lost` keeps the holes, so that an interrupted delivery goes on with the same numbers.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Holes", "IgnoredHoles"]

LOST = "lost"

_UNREADABLE = (ValueError, KeyError, TypeError, OverflowError, RecursionError)  # a line of it


class Holes:
    """The ranges of records that one spool lacks (holes), for one destination.

    A record has a number in the spool, and another number on the wire, under which it is sent.
    Numbers on the wire do not count records in holes. `to_wire` and `to_spool` convert between the
    two.

    folder: the spool's directory. to: the destination's name in the file `lost`.

    base: how many records of this spool the destination has in attempts (recordings of the rank)
        that earlier deliveries made; record number `base`, holes not counted, is sent as number 0.
    """

    def __init__(self, folder: Path, to: str = "") -> None:
        self.base = 0
        self._path = folder / LOST
        self._to = to
        self._elsewhere: set[tuple[int, int]] = set()
        self._holes = sorted(self._read())

    @property
    def damage(self) -> int:
        """How many records were lost by damage; those that another store has are not counted."""
        return sum(end - first for first, end in self._holes if (first, end) not in self._elsewhere)

    def to_wire(self, number: int) -> int:
        """Return the number under which record `number` of the spool is sent."""
        before = sum(min(end, number) - first for first, end in self._holes if first < number)
        return number - before - self.base

    def to_spool(self, sent_as: int) -> int:
        """Return the number in the spool of the record that is sent under the number `sent_as`."""
        number = sent_as + self.base
        for first, end in self._holes:
            if number >= first:
                number += end - first
        return number

    def has(self, number: int) -> bool:
        """Return whether record `number` of the spool is missing, that is, lies in a hole."""
        return any(first <= number < end for first, end in self._holes)

    def add(self, first: int, end: int, *, elsewhere: bool = False) -> None:
        """Note, also in the file `lost`, that the spool lacks the records `first` to `end` - 1.

        A file that cannot be written is no error.
        elsewhere: True if the records were delivered to another store, False if damage cost them.
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


class IgnoredHoles:
    """Takes the place of `Holes` where a spool is read a second time: it counts no damage again."""

    def add(self, first: int, end: int) -> None:
        """Do nothing: another reader, which sends the records, notes those that are lost."""
