"""What a sink is: the place where a process puts its records.

One drain thread puts batches; nothing of a sink runs on the training thread. A sink may raise: the
queue in front of it counts what was lost and never lets an exception reach training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from anchorlib.record import Edges, Gap, Record

__all__ = ["Sink"]


class Sink(Protocol):
    """Where records go."""

    def put(self, records: Sequence[Record]) -> None:
        """Take a batch. Records carry summaries; raw arrays are valid during the call only."""

    def gap(self, gaps: Sequence[Gap]) -> None:
        """State what was not recorded. Cumulative: the newest statement of a series wins."""

    def edges(self, edges: Sequence[Edges]) -> None:
        """State what values were computed from; the first statement of a place counts."""

    def header(self, entries: Mapping[str, Any]) -> None:
        """Add entries to the run header, as JSON can hold them; newer ones win."""

    def flush(self, timeout: float | None) -> None:
        """Return when all that was put is in the store and any zarr reader sees it.

        Raises FlushTimeoutError after `timeout` seconds (None: wait as long as it takes).
        """

    def close(self, timeout: float) -> int:
        """Flush, close the run for this rank, and say how many records could not be delivered."""

    @property
    def dropped(self) -> int:
        """Records that this sink lost, or kept without their values, before it was closed."""

    @property
    def dropped_bytes(self) -> int:
        """Bytes of values among them."""

    @property
    def own_gaps(self) -> int:
        """How many series, each for each reason, this sink itself states a gap of."""

    @property
    def waiting(self) -> int:
        """Records that were put and are not delivered yet."""

    @property
    def retries(self) -> int:
        """How often delivery was tried again."""
