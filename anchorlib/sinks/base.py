"""The interface of a sink: the place where a process puts its records.

One thread, the drain's, owns a sink and makes every call that changes it, in the order in which the
trainer made them. Other threads may wait for a flush, read the counters, and `revoke`. A sink may
raise: the drain counts the records that were lost, and no exception reaches training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from anchorlib.block import RowBlock
from anchorlib.operations import Entry
from anchorlib.record import Edges, Gap

__all__ = ["DONE", "Flushing", "OnFull", "Sink"]

OnFull: TypeAlias = Literal["block", "drop", "raise"]
"""What happens to a record where the queue is full: training waits ("block"), or the record's
values are dropped ("drop"), and the next step raises as well ("raise")."""


class Flushing(Protocol):
    """A flush that was asked for."""

    def wait(self, timeout: float | None) -> None:
        """Return when the flush is done; any thread may wait.

        Raises FlushTimeoutError after `timeout` seconds (None: wait as long as it takes).
        """


class _Done:
    """A flush that was finished when it was asked for."""

    def wait(self, timeout: float | None) -> None:
        """Returns at once."""


DONE: Flushing = _Done()


class Sink(Protocol):
    """Where records go."""

    def put(self, block: RowBlock) -> None:
        """Store a block of records. The memory of their values is valid during the call only."""

    def gap(self, gaps: Sequence[Gap]) -> None:
        """Store gap statements: which observations were not recorded.

        A statement counts from the session's start, and replaces the earlier one of the same series
        and reason.
        """

    def edges(self, edges: Sequence[Edges]) -> None:
        """Store lineage: what values were computed from; a place's first statement counts."""

    def header(self, entries: Mapping[str, Any]) -> None:
        """Add entries that JSON can hold to the run header; a newer entry replaces an older one."""

    def operations(self, entries: Sequence[Entry]) -> None:
        """Add entries to the log of operations; an entry that comes twice is kept once."""

    def flush(self) -> Flushing:
        """Begin to bring all records to the store, where any zarr reader sees them."""

    def close(self, timeout: float) -> int:
        """Flush, close the run for this rank, and return how many records were not delivered.

        timeout: seconds. A run whose sink was revoked is left open, and is only unlocked.
        """

    def revoke(self) -> None:
        """Write nothing more, and end the owner's waits; any thread may call this.

        The owner's present operation ends; its next one raises.
        """

    @property
    def dropped(self) -> int:
        """How many records this sink lost, or kept without values, before it was closed."""

    @property
    def lost(self) -> int:
        """How many of the dropped records are lost altogether."""

    @property
    def dropped_bytes(self) -> int:
        """Bytes of values among the dropped records."""

    @property
    def own_gaps(self) -> int:
        """How many gaps this sink itself states, counted by series and reason."""

    @property
    def waiting(self) -> int:
        """How many records were put and are not delivered yet."""

    @property
    def retries(self) -> int:
        """How often delivery was tried again."""
