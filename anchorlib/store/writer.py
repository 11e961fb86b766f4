"""The one writing hand of a store, the same in a training process and in the collector.

    with Writer.open(Path("anchors"), "run1", rank=0) as writer:
        writer.write(records)      # committed when it returns: survives kill -9

A batch is written in this order: values, columns, then `seq`, which makes the rows exist. Shapes in
zarr.json follow at `publish`. A Writer is used by one thread.
"""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from anchorlib.errors import OptionError, StoreError
from anchorlib.names import check_run_name
from anchorlib.record import Edges, Gap, Record
from anchorlib.store.budget import Budget, Room, RunRoom
from anchorlib.store.catalog import Attempt, encode
from anchorlib.store.columns import pack_block
from anchorlib.store.gaps import LeftOut
from anchorlib.store.layout import ROW
from anchorlib.store.lock import RankLock
from anchorlib.store.metadata import json_value
from anchorlib.store.opening import Place, resume_counters, store_errors, take_up
from anchorlib.store.packing import Batch, Packer
from anchorlib.store.publishing import Publisher
from anchorlib.store.rank import RankReader
from anchorlib.store.series import SeriesShelf
from anchorlib.store.slots import ChunkFiles
from anchorlib.store.statements import Statements
from anchorlib.store.table import RowTable
from anchorlib.store.tree import Tree, make_store

if TYPE_CHECKING:
    from anchorlib.wire import RowBlock

__all__ = ["Writer"]

MAX_RANK = 1 << 31
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Writer:
    """Writes one rank of one run; made by `Writer.open`."""

    @classmethod
    def open(  # noqa: PLR0913 - each is a choice of its own, by keyword
        cls,
        store: Path,
        run: str,
        rank: int,
        *,
        resume: bool = False,
        overwrite: bool = False,
        header: Mapping[str, Any] | None = None,
        writer_id: bytes = b"",
        fsync: bool = False,
        max_bytes: int | None = None,
        wait_for_room: bool = False,
        run_room: RunRoom | None = None,
    ) -> Writer:
        """Makes the rank, or takes it up again, and holds it until `close`.

        resume: go on with a rank that exists, as its next attempt.
        overwrite: remove what this rank recorded before (other ranks stay) and begin anew.
        header: what to keep about this attempt, as JSON can hold it.
        writer_id: the same as that of the last attempt: that attempt goes on, whatever else is
            asked, and `committed` says how far it had come.
        fsync: wait for the disk before each batch is committed, so that it survives power loss.
        max_bytes: of this rank on disk, beyond which values are left out and summaries kept;
            None leaves a twentieth of the file system free.
        wait_for_room: a file system that is full is a StoreError, not a reason to leave values
            out: for callers that keep what was not written, and come again.
        run_room: what all ranks of the run may take together, as `max_bytes`.

        Raises RunExistsError, RunBusyError, InvalidNameError, OptionError, StoreError.
        """
        check_run_name(run)
        if not 0 <= rank < MAX_RANK:
            raise OptionError(f"a rank is a number from 0 to {MAX_RANK - 1}, not {rank}")
        document = _document(run, header or {})
        with store_errors(f"cannot open run {run!r} in {store}"):
            make_store(store, fsync=fsync)
            lock = RankLock(store, run, rank)
            try:
                place = Place(store, run, rank, Tree(store, fsync=fsync), fsync)
                budget = Budget(store, Room(max_bytes, wait_for_room, run_room))
                reader = place.take(writer_id, resume=resume, overwrite=overwrite, budget=budget)
                writer = cls(place, lock, reader, budget)
            except BaseException:
                lock.release()
                raise
            try:
                writer._begin(writer_id, document)
            except BaseException:
                writer.abandon()
                raise
        return writer

    def __init__(self, place: Place, lock: RankLock, reader: RankReader, budget: Budget) -> None:
        self._place = place
        self._lock = lock
        self._reader = reader
        self._open = True
        self._pid = os.getpid()
        self._files = ChunkFiles(None, fsync=place.fsync)
        self._catalog = take_up(reader, place)
        catalogue = reader.catalogue
        self._budget = budget
        self._shelf = SeriesShelf(
            place.path / "tensors",
            catalogue,
            self._catalog,
            place.tree,
            self._files,
            self._budget.made_files,
        )
        self._resumed = resume_counters(reader, self._shelf.variants)
        self._budget.take_up(reader.catalogue_end + self._resumed.nbytes)
        self._table = RowTable(
            place.path / "records", reader.committed, self._resumed.pairs, fsync=place.fsync
        )
        self._packer = Packer(self._shelf, self._catalog, self._budget, catalogue.phases)
        self._publisher = Publisher(place.path, place.tree, fsync=place.fsync)
        self._published = (catalogue.published, -1)
        self._left_out = LeftOut(())
        self._statements = Statements(self._catalog, self._budget, catalogue)
        self._first_row = 0

    def _begin(self, writer_id: bytes, header: Mapping[str, Any]) -> None:
        attempts = self._reader.catalogue.attempts
        last = attempts[-1] if attempts else None
        if last is not None and writer_id and last.writer_id == writer_id:
            attempt = last
            gaps = self._reader.catalogue.gaps.items()
            stated = [gap for key, gap in gaps if key[0] == last.number]
            self._left_out = LeftOut(stated)
            self._statements.go_on(attempt, stated)
        else:
            rows, order = self._reader.committed, self._resumed.order
            attempt = Attempt(len(attempts), writer_id, time.time_ns(), header, rows, order)
            self._statements.begin(attempt)
        if self._reader.catalogue.state != "open":
            self._statements.append(encode({"state": "open"}))
        self._packer.attempt = attempt.number
        self._packer.order_base = attempt.order_base
        self._first_row = attempt.first_row
        self._reader.catalogue.forget_statements()
        self._reader.refresh()
        self._publisher.publish_rank(self._reader.catalogue)

    @property
    def attempt(self) -> int:
        """Which attempt at this rank this is; the first is 0, each resume adds one."""
        return self._packer.attempt

    @property
    def committed(self) -> int:
        """Records that this attempt has written, which is how many of its stream are safe."""
        return self._table.rows - self._first_row

    @property
    def left_out(self) -> LeftOut:
        """What this writer kept without its values, for want of room."""
        return self._left_out

    def write(self, records: Sequence[Record]) -> None:
        """Writes a batch; when it returns, all of it is committed, and if it raises, none is.

        Each record must carry its summary. The attempt is the writer's own, and `order` goes on
        where the last attempt ended.
        Raises StoreError where the file system fails or a record is not what it says.
        """
        self._check_open()
        if not records:
            return
        with store_errors(f"cannot write {self._place}"):
            try:
                self._write(records)
            except OSError as error:
                if error.errno not in NO_ROOM or self._budget.waits:
                    raise
                self._budget.exhaust()
                self._write(records)
        if self._left_out.due(self._budget.used):
            self._statements.append_gaps(self._left_out.statements())

    def _write(self, records: Sequence[Record]) -> None:
        batch = Batch(self._table.pairs)
        try:
            self._packer.pack(batch, records)
            for variant in batch.touched:
                variant.write()
            exponents, counts = b"".join(batch.exponents), b"".join(batch.counts)
            self._table.append(b"".join(batch.rows), batch.checks, exponents, counts)
            self._table.commit(len(batch.rows), batch.pairs - self._table.pairs)
        except BaseException:
            batch.discard()
            raise
        for variant in batch.touched:
            variant.settle()
        self._budget.spend(batch.nbytes + ROW.itemsize * len(batch.rows))
        self._left_out.add(batch.left_out)

    def write_block(self, block: RowBlock) -> bool:
        """The same for many small records as columns; digests were compared with their values.

        Returns whether it was written: False, and nothing was, where each record needs a look.
        """
        self._check_open()
        # Where not all find room each decides for itself.
        nbytes = int(block.sizes.sum())
        with store_errors(f"cannot write {self._place}"):
            if not len(block) or self._budget.refusal(nbytes) is not None:
                return False
            packed = pack_block(block, self._shelf, self._packer, self._table.pairs)
            if packed is None:
                return False
            try:
                for variant, _, values in packed.values:
                    variant.write_packed(values)
                self._table.append(packed.rows, packed.checks, packed.exponents, packed.counts)
                self._table.commit(len(block), packed.pairs)
            except OSError as error:
                if error.errno not in NO_ROOM or self._budget.waits:
                    raise
                self._budget.exhaust()
                return False
        for variant, rows, _ in packed.values:
            variant.rows += rows
        self._budget.spend(nbytes + ROW.itemsize * len(block))
        return True

    def gap(self, gaps: Sequence[Gap]) -> Counter[str]:
        """States what was not recorded: totals so far, of which the largest counts.

        One total for each name, kind, mode and reason within this attempt; beyond a bound, one for
        all others together. A total that grows may be written as late as by `publish`. Returns how
        many observations were not known of, by reason.
        """
        self._check_open()
        with store_errors(f"cannot write {self._place}"):
            return self._statements.gaps(gaps)

    def edges(self, edges: Sequence[Edges]) -> None:
        """Keeps what values were computed from; what was stated before is not stated again.

        What there is no room for is left out, and counted in the header of this attempt.
        """
        self._check_open()
        with store_errors(f"cannot write {self._place}"):
            self._statements.edges(edges)

    def header(self, entries: Mapping[str, Any]) -> None:
        """Adds entries to this attempt's header, or states them anew.

        Raises OptionError for what JSON cannot hold, StoreError.
        """
        self._check_open()
        told = _document(self._place.run, entries)
        with store_errors(f"cannot write {self._place}"):
            self._statements.header(told)

    def publish(self) -> None:
        """Shows foreign readers all that is committed; ours see it anyway."""
        self._check_open()
        with store_errors(f"cannot write {self._place}"):
            self._statements.append_gaps(self._left_out.statements())
            self._statements.rest()
            if self._published == (self._table.rows, self._catalog.end):
                return
            self._reader.refresh()
            self._publisher.publish_values(self._reader, self._shelf.variants, self._published[0])
            self._statements.append(encode({"published": self._table.rows}))
            self._publisher.publish_table(self._table.rows, self._table.pairs, self._catalog.end)
            self._publisher.publish_rank(self._reader.catalogue)
            self._published = (self._table.rows, self._catalog.end)
            self._budget.published()

    def close(self) -> None:
        """Publishes, marks the rank closed and gives it back; a second call does nothing."""
        if not self._open:
            return
        if os.getpid() != self._pid:
            self.abandon()
            return
        try:
            with store_errors(f"cannot close {self._place}"):
                self._statements.append(encode({"state": "closed"}))
                self.publish()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Gives the rank back as it is, still marked open, as if the process had died."""
        if self._open:
            self._open = False
            self._files.close()
            self._publisher.close()
            self._table.close()
            self._catalog.close()
            self._lock.release()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if not self._open:
            raise StoreError(f"{self._place} was closed: open it again to write more")
        if os.getpid() != self._pid:
            raise StoreError(f"{self._place} is written by the process that forked this one")


def _document(run: str, header: Mapping[str, Any]) -> Any:
    try:
        return json_value(header)
    except TypeError as error:
        raise OptionError(f"the header of run {run!r} does not fit into JSON: {error}") from error
