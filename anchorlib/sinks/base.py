"""What a sink is: the place where a process puts its records.

One thread owns a sink: the drain's calls everything that changes it, in the order in which the
trainer did. Other threads may wait for a flush, read what was counted, and `revoke`. A sink may
raise: the drain in front of it counts what was lost and never lets an exception reach training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from anchorlib.block import RowBlock
from anchorlib.operations import Entry
from anchorlib.record import Edges, Gap

__all__ = ["DONE", "Flushing", "OnFull", "Sink"]

OnFull: TypeAlias = Literal["block", "drop", "raise"]
"""What happens to a record that finds no room: training waits, or values are dropped (and the next
step raises)."""


class Flushing(Protocol):
    """A flush that was asked for."""

    def wait(self, timeout: float | None) -> None:
        """Return when the flush is done; any thread may wait.

        Raises FlushTimeoutError after `timeout` seconds (None: wait as long as it takes).
        """


class _Done:
    """A flush that ended when it was asked for."""

    def wait(self, timeout: float | None) -> None:
        """Nothing is left to wait for."""


DONE: Flushing = _Done()


class Sink(Protocol):
    """Where records go."""

    def put(self, block: RowBlock) -> None:
        """Take a block of records. Their values are valid during the call only."""

    def gap(self, gaps: Sequence[Gap]) -> None:
        """State what was not recorded. Cumulative: the newest statement of a series wins."""

    def edges(self, edges: Sequence[Edges]) -> None:
        """State what values were computed from; the first statement of a place counts."""

    def header(self, entries: Mapping[str, Any]) -> None:
        """Add entries to the run header, as JSON can hold them; newer ones win."""

    def operations(self, entries: Sequence[Entry]) -> None:
        """Add entries to the log of operations; one that comes twice is kept once."""

    def flush(self) -> Flushing:
        """Ask that all that was put gets into the store, where any zarr reader sees it."""

    def close(self, timeout: float) -> int:
        """Flush, close the run for this rank, and say how many records could not be delivered.

        A sink that was revoked gives its run back as it is.
        """

    def revoke(self) -> None:
        """Any thread may call it: the owner writes nothing more, and its waits end.

        The operation that is under way on the owner's thread ends; the next one raises.
        """

    @property
    def dropped(self) -> int:
        """Records that this sink lost, or kept without their values, before it was closed."""

    @property
    def lost(self) -> int:
        """Those of the dropped records that are lost altogether."""

    @property
    def dropped_bytes(self) -> int:
        """Bytes of values among the dropped records."""

    @property
    def own_gaps(self) -> int:
        """How many series, each for each reason, this sink itself states a gap of."""

    @property
    def waiting(self) -> int:
        """Records that were put and are not delivered yet."""

    @property
    def retries(self) -> int:
        """How often delivery was tried again."""
