"""Decides which gaps, lineage and header entries of a rank are written, within size limits.

Such statements are lines of the catalogue, and lines are only ever appended to it. So a gap whose
total grows is not written each time that the writer hears of it, or the catalogue would outgrow the
records. Statements beyond the limits of a rank are not written but counted: gaps in one gap of
unknown tensors, everything else in an entry of the attempt's header. A ledger's memory is limited
too: it holds hashes and numbers instead of names.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import xxhash

from anchorlib.record import UNKNOWN, Gap

__all__ = ["FOLDED", "GAP_LINE_BYTES", "LEFT_OUT", "GapLedger", "LineageLedger"]

FOLDED: Final = "too many gaps to name"
"""The reason of the one gap that counts all gaps beyond the limits together."""

LEFT_OUT: Final = "statements_left_out"
"""The name of the header entry that counts lineage and header entries beyond the limits."""

GAP_BYTES: Final = 32 << 20  # most bytes of gap lines in one rank
LINEAGE_BYTES: Final = 64 << 20  # most bytes of lineage and header lines in one rank
NAMED: Final = 1 << 16  # gaps of one attempt written by name; of as many more totals are remembered
GAP_LINE_BYTES: Final = 200  # bytes of a gap's line beside the texts in it
_STATE_SECONDS: Final = 1.0
_SMALL: Final = 1 << 20
_SHARE: Final = 64  # growing totals are written every second while gaps are below 1/64 of the run


def _key(gap: Gap) -> int:
    """Return a hash of a gap's name, kind, mode and reason, by which an attempt's gaps differ."""
    return xxhash.xxh3_64_intdigest(
        "\0".join((gap.name, gap.kind, gap.mode, gap.reason)).encode(errors="surrogatepass")
    )


class GapLedger:
    """Keeps the totals of one attempt's gaps; says what is new in them, and which to write now.

    A gap counts observations that were not recorded; an attempt is what one writer records.
    stated: the gaps that the catalogue has of this attempt.
    nbytes: bytes of all gap lines in the catalogue.
    """

    def __init__(self, stated: Iterable[Gap], nbytes: int) -> None:
        self._nbytes = nbytes  # of gap lines that are written or waiting in `_grown`
        self._seen: dict[int, int] = {}  # the newest total of each gap
        self._written: dict[int, int] = {}  # the total in the newest line of each gap
        self._grown: dict[int, Gap] = {}  # gaps whose newest total is not written
        self._beyond: dict[int, int] = {}  # the newest total of gaps that are only counted
        self._folded: Gap | None = None
        self._folded_before = self._folded_written = 0
        self._stated_at = 0.0
        for gap in stated:
            if _is_folded(gap):
                self._folded_before = self._folded_written = gap.count
                self._folded = replace(gap, count=0)
            else:
                key = _key(gap)
                self._seen[key] = self._written[key] = gap.count

    def tell(self, gaps: Iterable[Gap]) -> Counter[str]:
        """Note new totals of gaps, that is, counts of observations that were not recorded.

        Return how many observations are new in these totals, by the reason of the gap.
        """
        fresh: Counter[str] = Counter()
        for gap in gaps:
            key = _key(gap)
            known = self._seen.get(key)
            if not self._is_named(gap, known):
                fresh[gap.reason] += self._fold(key, gap, known or 0)
            elif known is None or gap.count > known:
                fresh[gap.reason] += gap.count - (known or 0)
                self._seen[key] = gap.count
                if key not in self._grown:
                    self._nbytes += _size(gap)
                self._grown[key] = gap
        return fresh

    def due(self, run_bytes: int) -> list[Gap]:
        """Return the gaps that the caller has to write now, and count them as written.

        These are gaps that are new or whose count has doubled since it was written. At most once a
        second they are all gaps that have grown, as long as the lines of gaps take at most 1/64 of
        the run (or 1 MiB where that is more), and at most 16 MiB.
        run_bytes: the present size of the run.
        """
        now = time.monotonic()
        most = min(max(_SMALL, run_bytes // _SHARE), GAP_BYTES // 2)
        if now - self._stated_at > _STATE_SECONDS and self._nbytes <= most:
            self._stated_at = now
            return self.rest()
        due = [k for k, gap in self._grown.items() if gap.count >= 2 * self._written.get(k, 0)]
        return [self._write(key) for key in due] + self._folded_gap(growth=2)

    def rest(self) -> list[Gap]:
        """Return all gaps whose newest total is not written yet, and count them as written.

        The caller has to write them.
        """
        return [self._write(key) for key in list(self._grown)] + self._folded_gap(growth=1)

    def _is_named(self, gap: Gap, known: int | None) -> bool:
        if _is_folded(gap) or (known is None and len(self._seen) >= NAMED):
            return False
        return self._nbytes + _size(gap) <= GAP_BYTES

    def _fold(self, key: int, gap: Gap, known: int) -> int:
        """Add a gap's total to the one gap that counts all gaps beyond the limits.

        Return how many observations are new in the total of `gap`.
        key: the hash of `gap` (`_key`). known: the total of that gap so far; 0 for a new gap.
        """
        before = self._beyond.get(key, known)
        fresh = max(gap.count - before, 0)
        # Gaps beyond these are not remembered, so a total that comes again is added again: the
        # count is then too high. Too low would hide lost observations.
        if key in self._beyond or len(self._beyond) < NAMED:
            self._beyond[key] = before + fresh
        old = self._folded or Gap(UNKNOWN, "value", "all", FOLDED, 0, gap.first_step, gap.last_step)
        self._folded = replace(
            old,
            count=old.count + fresh,
            first_step=min(old.first_step, gap.first_step),
            last_step=max(old.last_step, gap.last_step),
        )
        return fresh

    def _folded_gap(self, *, growth: int) -> list[Gap]:
        if self._folded is None:
            return []
        # A resumed stream tells all its totals again, also those that an earlier count holds.
        total = max(self._folded.count, self._folded_before)
        if total <= self._folded_written or total < growth * self._folded_written:
            return []
        self._folded_written = total
        return [replace(self._folded, count=total)]

    def _write(self, key: int) -> Gap:
        gap = self._grown.pop(key)
        self._written[key] = gap.count
        return gap


def _is_folded(gap: Gap) -> bool:
    return (gap.name, gap.reason) == (UNKNOWN, FOLDED)


def _size(gap: Gap) -> int:
    return GAP_LINE_BYTES + len(gap.name) + len(gap.kind) + len(gap.mode) + len(gap.reason)


class LineageLedger:
    """Counts the bytes of lineage and header entries that were written, and how many were left out.

    Lineage says what each value was computed from.
    nbytes: bytes of all lines with lineage or header entries in the catalogue. header: the header
    of the attempt that is written about; where the attempt goes on after an interruption, the
    header may have a count of entries left out before.
    """

    def __init__(self, nbytes: int, header: Mapping[str, Any]) -> None:
        self.nbytes = nbytes
        before = header.get(LEFT_OUT, 0)
        self._before = before if isinstance(before, int) else 0
        self._left_out = 0
        self._written = self._before

    def fitting(self, line: bytes, *, refused: bool = False) -> bool:
        """Return whether a catalogue line may be written; if so, count its bytes as used.

        A line that does not fit the limit, or is `refused` by the caller, is counted as left out.
        """
        if refused or self.nbytes + len(line) > LINEAGE_BYTES:
            self._left_out += 1
            return False
        self.nbytes += len(line)
        return True

    def due(self, *, growth: int) -> dict[str, int]:
        """Return the header entry that counts lines left out; {} where it is not due yet.

        The entry is due once the count is above the count that was last written, and at least
        `growth` times as large.
        """
        # A resumed stream tells everything again, also the lines that an earlier count holds.
        total = max(self._left_out, self._before)
        if total <= self._written or total < growth * self._written:
            return {}
        self._written = total
        return {LEFT_OUT: total}
