"""Counts, by series, the values and records that the writer left out, to be stated as gaps."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from anchorlib.record import UNKNOWN, Gap
from anchorlib.store.disk.full import REASONS

__all__ = ["MISFIT", "LeftOut"]

MISFIT = "it does not fit its own statement: "
"""How the reason of a gap begins that counts records which could not be stored."""

STATE_SECONDS = 1.0
SERIES = 1 << 16  # how many series have counts of their own
_LINE_BYTES = 250  # of one statement, about
_SHARE = 64  # totals are stated every second while statements are below 1/64 of the run
_SMALL = 1 << 20

Array = np.ndarray[Any, Any]
Key = tuple[str, str, str, str]


class LeftOut:
    """Counts what the writer left out, and says when it is time to state the counts as gaps.

    A gap is a line of the rank's catalogue that says how many records of a series were left out,
    completely or their values alone, and why.
    nbytes: bytes of the values that were left out since this object was made.
    """

    def __init__(self, stated: Iterable[Gap]) -> None:
        """Continue from the counts that the catalogue states already, if the attempt goes on.

        stated: the gaps in the catalogue of this attempt (what one writer records of a rank); empty
            if the attempt is new. Gaps for reasons other than the writer's own are ignored.
        """
        self._gaps: dict[Key, Gap] = {
            (gap.name, gap.kind, gap.mode, gap.reason): gap
            for gap in stated
            if gap.reason in REASONS or gap.reason.startswith(MISFIT)
        }
        self._unstated: set[Key] = set()
        self.nbytes = 0  # of the values left out since this writer was opened
        self._stated_at = 0.0
        self._stated_bytes = 0
        self._stated_records = 0

    def add(self, key: Key, steps: Array, nbytes: int) -> None:
        """Count records that were left out, completely or their values alone.

        key: (name, kind, mode, reason). Where SERIES other keys have counts already, the records
            are counted as those of an unknown tensor.

        steps: the step of each of these records, at least one. nbytes: how many bytes the values
        that were left out have.
        """
        if key not in self._gaps and len(self._gaps) >= SERIES:
            key = (UNKNOWN, "value", "all", key[3])
        first, last = int(steps.min()), int(steps.max())
        self.nbytes += nbytes
        old = self._gaps.get(key) or Gap(*key, count=0, first_step=first, last_step=first)
        self._gaps[key] = Gap(
            *key,
            count=old.count + len(steps),
            first_step=min(old.first_step, first),
            last_step=max(old.last_step, last),
        )
        self._unstated.add(key)

    @property
    def records(self) -> int:
        """How many records of this attempt were left out, completely or their values alone."""
        return sum(gap.count for gap in self._gaps.values())

    @property
    def series(self) -> int:
        """How many pairs of a series and a reason have a count; each becomes one gap."""
        return len(self._gaps)

    def due(self, run_bytes: int) -> bool:
        """Return whether it is time to state counts as gaps; False where none has changed.

        Changed counts are stated at most once a second. When the lines of gaps would become more
        than a small part of the rank's bytes, counts are stated only once their total has doubled:
        lines of a catalogue are never replaced, so each further line costs room.

        run_bytes: how many bytes the rank has by now.
        """
        if not self._unstated or time.monotonic() - self._stated_at <= STATE_SECONDS:
            return False
        size = len(self._unstated) * _LINE_BYTES
        small = self._stated_bytes + size <= max(_SMALL, run_bytes // _SHARE)
        return small or self.records >= 2 * self._stated_records

    def statements(self) -> list[Gap]:
        """Return the gaps whose counts have changed since the last call, and mark them as stated.

        The caller has to write them into the catalogue.
        """
        changed = [self._gaps[key] for key in sorted(self._unstated)]
        self._unstated.clear()
        self._stated_at = time.monotonic()
        self._stated_bytes += len(changed) * _LINE_BYTES
        self._stated_records = self.records
        return changed
