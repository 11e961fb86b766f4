"""Statements, which accompany the records: gaps, lineage, header entries, traced operations.

A gap counts the observations of one series that were not recorded for one reason; lineage says
which tensors and operations a value was computed from.

The trainer collects its statements and sends them through the ring. The drain, which empties the
ring, collects them and the gaps that it states itself, and hands all to the sink.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anchorlib.operations import Entry
from anchorlib.record import Edges, Gap
from anchorlib.sinks import Sink, statable

__all__ = ["PendingStatements"]

Key = tuple[str, str, str, str]


class PendingStatements:
    """Collects gaps, lineage, header entries and traced operations until they are handed on.

    Gaps of one series and reason are added up. The caller holds a lock.
    """

    def __init__(self) -> None:
        self._totals: dict[Key, Gap] = {}
        self._pending_gaps: dict[Key, None] = {}
        self._edges: list[Edges] = []
        self._header: dict[str, Any] = {}
        self._operations: list[Entry] = []

    def gap(self, gap: Gap) -> None:
        """Add the count and steps of `gap` to the total of its series and reason."""
        gap = statable(gap)
        key = (gap.name, gap.kind, gap.mode, gap.reason)
        old = self._totals.get(key)
        if old is not None:
            first = min(old.first_step, gap.first_step)
            last = max(old.last_step, gap.last_step)
            gap = Gap(*key, old.count + gap.count, first, last)
        self._totals[key] = gap
        self._pending_gaps[key] = None

    def total(self, gap: Gap) -> None:
        """Replace the total of a series and reason by `gap`, whose count is a total already."""
        key = (gap.name, gap.kind, gap.mode, gap.reason)
        self._totals[key] = gap
        self._pending_gaps[key] = None

    def edges(self, edges: Edges) -> None:
        """Add lineage: which tensors and operations a value was computed from."""
        self._edges.append(edges)

    def header(self, entries: Mapping[str, Any]) -> None:
        """Add entries of the run header; a newer entry replaces an older one."""
        self._header |= entries

    def operations(self, entries: Sequence[Entry]) -> None:
        """Add entries of the log of traced operations."""
        self._operations += entries

    @property
    def gaps(self) -> int:
        """How many gaps were stated so far, handed on or not: one for each series and reason."""
        return len(self._totals)

    def take(self, *, again: bool) -> StatementBatch:
        """Return the statements that earlier calls did not return; each is returned once only.

        Totals of gaps are kept, and a total that has changed is returned again.

        again: whether to return the totals of all gaps, returned before or not: a store that was
            away may have lost them.
        """
        gaps = [self._totals[key] for key in (self._totals if again else self._pending_gaps)]
        batch = StatementBatch(gaps, self._edges, self._header, self._operations)
        self._pending_gaps, self._edges, self._header, self._operations = {}, [], {}, []
        return batch

    def restore_gaps(self, batch: StatementBatch) -> None:
        """Make the next `take` return the gaps in `batch` again, which the sink did not accept."""
        for gap in batch.gaps:
            self._pending_gaps[gap.name, gap.kind, gap.mode, gap.reason] = None


@dataclass(frozen=True, slots=True)
class StatementBatch:
    """Statements that are handed to the sink together; false if there are none.

    gaps: counts of what was not recorded. edges: what each value was computed from.
    header: entries of the run header. operations: entries of the log of traced operations.
    """

    gaps: list[Gap]
    edges: list[Edges]
    header: dict[str, Any]
    operations: list[Entry]

    def __bool__(self) -> bool:
        return bool(self.gaps or self.edges or self.header or self.operations)

    def hand_to(self, sink: Sink, failed: Callable[[str, Exception], None]) -> bool:
        """Hand the statements to `sink`; return False only if the sink did not accept the gaps.

        Gaps must not be lost: the caller has to hand them on again after False. Other statements
        that the sink does not accept are lost.

        failed: called with a sentence and the exception for each kind of statement that the sink
            did not accept. No exception of the sink is raised.
        """
        taken = _hand_over(sink.gap, self.gaps, "what was not recorded could not be noted", failed)
        _hand_over(sink.edges, self.edges, "what values were computed from was not kept", failed)
        _hand_over(sink.header, self.header, "what the run's header gained was not kept", failed)
        _hand_over(sink.operations, self.operations, "what was traced was not kept", failed)
        return taken


def _hand_over(
    accept: Callable[[Any], None],
    statements: Any,
    lost: str,
    failed: Callable[[str, Exception], None],
) -> bool:
    if not statements:
        return True
    try:
        accept(statements)
    except Exception as fault:  # noqa: BLE001  # the sink boundary: told once, no further
        failed(lost, fault)
        return False
    return True
