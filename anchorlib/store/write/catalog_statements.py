"""Writes what an attempt states beside its records, as lines of the catalogue, within size limits.

Statements are gaps (what was not recorded), lineage (what each value was computed from) and entries
of the attempt's header. `ledgers` says how statements beyond the limits are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from anchorlib.record import Edges, Gap
from anchorlib.store.disk import RankQuota
from anchorlib.store.format import (
    Attempt,
    Catalogue,
    attempt_line,
    check_stated,
    edges_key,
    edges_line,
    encode,
    gap_line,
    header_line,
)
from anchorlib.store.write.ledgers import GAP_LINE_BYTES, GapLedger, LineageLedger
from anchorlib.store.write.table import CatalogFile

__all__ = ["Statements"]

_LINEAGE = ("edges", "header_of", "attempt")  # first keys of the lines that LineageLedger counts


class Statements:
    """Writes gaps, lineage and header entries of an attempt into the catalogue of one rank.

    An attempt is what one writer records; `begin` or `go_on` has to be called first, and says which
    attempt the statements are about. What happens on a full disk depends on whether the writer was
    opened with `wait_for_room`. If it was, the methods raise OSError (ENOSPC), and the caller sends
    the rejected statements again. If it was not, lineage is left out and counted as left out. Gaps
    are written even then, because by them a reader learns that the disk was full.
    """

    def __init__(self, file: CatalogFile, budget: RankQuota, catalogue: Catalogue) -> None:
        self._file = file
        self._budget = budget
        self._gap_bytes = catalogue.stated_bytes["gap"]
        self._gaps = GapLedger((), self._gap_bytes)
        self._lineage = LineageLedger(sum(catalogue.stated_bytes[key] for key in _LINEAGE), {})
        self._edges = {hash(key) for key in catalogue.edges}
        self._header: dict[str, Any] = {}
        self._attempt = 0

    def go_on(self, attempt: Attempt, stated: Iterable[Gap]) -> None:
        """Write about `attempt`, which the catalogue already has, from now on.

        stated: the gaps (counts of observations not recorded) that the catalogue has of that
            attempt.
        """
        self._attempt = attempt.number
        self._header = dict(attempt.header)
        self._gaps = GapLedger(stated, self._gap_bytes)
        self._lineage = LineageLedger(self._lineage.nbytes, attempt.header)

    def begin(self, attempt: Attempt) -> None:
        """Write the line of a new attempt, and write about this attempt from now on.

        An attempt is what one writer records. If its header is too large for the rank's limits, an
        empty header is written in its place, and the header is counted as left out.
        """
        line = encode(attempt_line(attempt))
        self._budget.claim(len(line))
        if not self._lineage.fitting(line):
            attempt = replace(attempt, header={})
            line = encode(attempt_line(attempt))
        self.append(line)
        self._attempt = attempt.number
        self._header = dict(attempt.header)

    def gaps(self, gaps: Sequence[Gap]) -> Counter[str]:
        """Note totals of gaps (counts of observations not recorded), and write the gaps now due.

        Return how many observations are new in these totals, by the reason of the gap.
        `GapLedger.due` says which gaps are due.
        """
        self._budget.claim(GAP_LINE_BYTES * len(gaps))
        fresh = self._gaps.tell(gaps)
        self.append_gaps(self._gaps.due(self._budget.used))
        return fresh

    def edges(self, edges: Sequence[Edges]) -> None:
        """Write lineage (what each value was computed from) that was not written before.

        edges: an entry for each value. Entries beyond the size limits are left out, and counted as
            left out. Raises StoreError where an entry is malformed.
        """
        mine = [replace(check_stated(one), attempt=self._attempt) for one in edges]
        fresh = {key: one for one in mine if (key := hash(edges_key(one))) not in self._edges}
        lines = {key: encode(edges_line(one)) for key, one in fresh.items()}
        # `max_bytes` leaves out values alone: lineage is still written beyond it.
        refused = self._budget.refusal(sum(map(len, lines.values()))) not in (None, "max_bytes")
        kept = {
            key: one for key, one in lines.items() if self._lineage.fitting(one, refused=refused)
        }
        self.append(b"".join(kept.values()))
        self._edges |= kept.keys()
        self._count_left_out(growth=2)

    def header(self, entries: Mapping[str, Any]) -> None:
        """Write those header entries (facts about the attempt) that are new or have another value.

        Entries beyond the size limit are left out, and counted as left out.
        """
        known = self._header
        fresh = {k: v for k, v in entries.items() if k not in known or known[k] != v}
        if not fresh:
            return
        line = encode(header_line(self._attempt, fresh))
        self._budget.claim(len(line))
        if self._lineage.fitting(line):
            self.append(line)
            self._header |= fresh
        self._count_left_out(growth=2)

    def rest(self) -> None:
        """Write all gaps (counts of observations not recorded) that are still unwritten.

        Also write the count of lineage and header entries that were left out.
        """
        self.append_gaps(self._gaps.rest())
        self._count_left_out(growth=1)

    def append_gaps(self, gaps: Iterable[Gap]) -> None:
        """Write gaps (observations not recorded) with these counts, whether or not they are due."""
        self.append(b"".join(encode(gap_line(self._attempt, gap)) for gap in gaps))

    def append(self, lines: bytes) -> None:
        """Write complete lines of the catalogue, of any kind."""
        if lines:
            self._file.append(lines)
            self._budget.spend(len(lines))

    def _count_left_out(self, *, growth: int) -> None:
        if entry := self._lineage.due(growth=growth):
            self.append(encode(header_line(self._attempt, entry)))
