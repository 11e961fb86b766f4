"""The interface of a sink: the place where a process puts its records.

One thread owns a sink: that of the drain, which empties the queue of recorded tensors. It makes
every call that changes the sink, in the order in which the training asked for them. Other threads
may wait for a flush, read the counters, and `revoke`. A sink may raise: the drain counts the
records that were lost, and no exception reaches training.

Beside records a sink takes gaps (statements of how many observations were not recorded, and why),
lineage (what each value was computed from), entries of the run header, and traced operations.
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
    """A flush that a sink was asked for, which may still be under way."""

    def wait(self, timeout: float | None) -> None:
        """Block until the flush is done; any thread may call this.

        Raises FlushTimeoutError if it is not done after `timeout` seconds; None: as long as it
        takes.
        """


class _Done:
    """The `Flushing` of a sink that flushes at once, so that nothing is left to wait for."""

    def wait(self, timeout: float | None) -> None:
        """Return at once, as the flush is done already."""


DONE: Flushing = _Done()


class Sink(Protocol):
    """The interface of a sink: what stores, sends or keeps the records of one rank."""

    def put(self, block: RowBlock) -> None:
        """Store or send a block of records, or keep a copy to be sent later.

        The memory of the records' values is valid during the call only.
        """

    def gap(self, gaps: Sequence[Gap]) -> None:
        """Store gap statements: how many observations of a series were not recorded, and why.

        A statement's count is the total since the session began, so the statement replaces an
        earlier statement of the same series and reason.
        """

    def edges(self, edges: Sequence[Edges]) -> None:
        """Store lineage: which tensors and operations each value was computed from.

        Where the lineage of a value is stated again, the first statement is kept.
        """

    def header(self, entries: Mapping[str, Any]) -> None:
        """Add entries that JSON can hold to the run header; a newer entry replaces an older one."""

    def operations(self, entries: Sequence[Entry]) -> None:
        """Add entries to the log of traced operations; an entry that comes twice is kept once."""

    def flush(self) -> Flushing:
        """Begin to bring all records to the store, where any zarr reader sees them.

        Returns an object whose `wait` blocks until this is done.
        """

    def close(self, timeout: float) -> int:
        """Flush, mark the run as closed for this rank, and return how many records this loses.

        The result does not include records that `lost` counts already. After `revoke` the run is
        only unlocked, and not marked as closed; but a sink whose collector still lacks records of
        the run delivers these, and closes the run.

        timeout: the most seconds to wait for a collector.
        """

    def revoke(self) -> None:
        """Make the sink write nothing more, so that closing a session does not wait for the sink.

        Any thread may call this. A call to the sink that another thread is making ends early. Later
        calls of `put` raise, or count their records as lost.
        """

    @property
    def dropped(self) -> int:
        """How many records this sink lost, or kept without values, before it was closed."""

    @property
    def lost(self) -> int:
        """How many of the dropped records are lost: not even their summary is kept."""

    @property
    def dropped_bytes(self) -> int:
        """Bytes of the values that the dropped records had."""

    @property
    def own_gaps(self) -> int:
        """How many gap statements this sink has made of records that it dropped itself.

        There is one statement for each series and reason.
        """

    @property
    def waiting(self) -> int:
        """How many records were `put` and are not delivered yet; 0 where `put` itself stores."""

    @property
    def retries(self) -> int:
        """How often the sink tried again to deliver to its collector, after a failure."""
