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
    """Open the writer of one rank of a run in the directory `store`.

    writer_id: a secret by which a later writer can continue this attempt (one recording of the
        rank); empty for an attempt that nobody continues.

    lock: the lock of the rank's files if the caller holds it already; None to take it.

    Raises RunExistsError if the rank exists and `options` say neither to resume nor to overwrite
    it, RunBusyError if a live process is writing it, StoreError if the store cannot be used.
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
    """The sink that writes records straight into the run's zarr hierarchy on a local disk."""

    lost = 0
    retries = 0
    waiting = 0

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    @property
    def dropped(self) -> int:
        """How many records were stored without values for lack of room, or could not be stored."""
        return self._writer.left_out.records

    @property
    def dropped_bytes(self) -> int:
        """Bytes of the values that were left out because the disk, or `max_bytes`, had no room."""
        return self._writer.left_out.nbytes

    @property
    def own_gaps(self) -> int:
        """How many gap statements the writer has made of dropped records.

        A gap statement counts those of one series that were dropped for one reason.
        """
        return self._writer.left_out.series

    def put(self, block: RowBlock) -> None:
        """Write a block of records into the store and commit it, so that readers count it."""
        self._writer.write_block(block)

    def gap(self, gaps: Sequence[Gap]) -> None:
        """Store gap statements: how many observations of a series were not recorded, and why."""
        self._writer.gap(gaps)

    def edges(self, edges: Sequence[Edges]) -> None:
        """Store lineage: which tensors and operations each value was computed from."""
        self._writer.edges(edges)

    def header(self, entries: Mapping[str, Any]) -> None:
        """Store entries of the run header; a newer entry replaces an older one."""
        self._writer.header(entries)

    def operations(self, entries: Sequence[Entry]) -> None:
        """Append entries to the log of traced operations."""
        self._writer.operations(entries)

    def flush(self) -> Flushing:
        """Make the written records visible to any zarr reader; this is done when the call returns.

        The result has nothing left to wait for.
        """
        self._writer.publish()
        return DONE

    def close(self, timeout: float) -> int:  # noqa: ARG002  # writing is never far behind
        """Make the records visible to any zarr reader, mark the rank as closed, and unlock it.

        Returns 0: no record is lost. timeout: not used. After `revoke` this only unlocks the rank.
        """
        self._writer.close()
        return 0

    def revoke(self) -> None:
        """Make the writer write nothing more; a later `close` only unlocks the rank."""
        self._writer.revoke()
