"""The embedded sink: writes the store in this process, with the store's own writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anchorlib.block import RowBlock
from anchorlib.operations import Entry
from anchorlib.record import Edges, Gap
from anchorlib.sinks.base import DONE, Flushing
from anchorlib.sinks.options import RunOptions
from anchorlib.store import RankLock, Writer

__all__ = ["EmbeddedSink", "open_writer"]


def open_writer(
    store: Path, options: RunOptions, writer_id: bytes = b"", lock: RankLock | None = None
) -> Writer:
    """The store's writer for this rank.

    writer_id: the writer's secret, with which a later writer can continue the attempt.
    lock: the rank's lock, where it is held already.

    Raises RunExistsError, RunBusyError, StoreError.
    """
    return Writer.open(
        store,
        options.run,
        options.rank,
        resume=options.resume,
        overwrite=options.overwrite,
        header=options.header,
        writer_id=writer_id,
        fsync=options.power,
        max_bytes=options.max_bytes,
        lock=lock,
    )


class EmbeddedSink:
    """Records go straight into the run's zarr hierarchy on this machine's disk."""

    lost = 0
    retries = 0
    waiting = 0

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    @property
    def dropped(self) -> int:
        """How many records are without their values, for want of disk or because of `max_bytes`."""
        return self._writer.left_out.records

    @property
    def dropped_bytes(self) -> int:
        """Bytes of the values that were left out."""
        return self._writer.left_out.nbytes

    @property
    def own_gaps(self) -> int:
        """The number of series that lack values which were left out."""
        return self._writer.left_out.series

    def put(self, block: RowBlock) -> None:
        """Write and commit a block."""
        self._writer.write_block(block)

    def gap(self, gaps: Sequence[Gap]) -> None:
        """Store gap statements."""
        self._writer.gap(gaps)

    def edges(self, edges: Sequence[Edges]) -> None:
        """Store lineage."""
        self._writer.edges(edges)

    def header(self, entries: Mapping[str, Any]) -> None:
        """Store entries of the header."""
        self._writer.header(entries)

    def operations(self, entries: Sequence[Entry]) -> None:
        """Store entries of the operations' log."""
        self._writer.operations(entries)

    def flush(self) -> Flushing:
        """Publish the written records: any zarr reader sees them now."""
        self._writer.publish()
        return DONE

    def close(self, timeout: float) -> int:  # noqa: ARG002  # writing is never far behind
        """Publish, mark the rank closed, unlock it."""
        self._writer.close()
        return 0

    def revoke(self) -> None:
        """Let the writer write nothing more; `close` then leaves the rank open and unlocks it."""
        self._writer.revoke()
