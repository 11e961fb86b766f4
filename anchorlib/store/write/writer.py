"""The writer of one rank of a store; training processes and collectors use the same class.

    with Writer.open(Path("anchors"), "run1", rank=0) as writer:
        writer.write_block(block_of(records))      # committed when it returns: survives kill -9

A block is written in this order: values, columns, then `seq`, which makes the rows exist. Shapes in
zarr.json follow at `publish`. A Writer belongs to the first thread that writes with it.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from anchorlib.block import RowBlock
from anchorlib.claims import claim_of
from anchorlib.errors import OptionError, StoreError
from anchorlib.names import check_run_name
from anchorlib.operations import Entry
from anchorlib.record import Edges, Gap
from anchorlib.store.disk import (
    MISFIT,
    NO_ROOM,
    LeftOut,
    NodeWriter,
    RankDirectoryWatch,
    RankLock,
    RankQuota,
    RunQuota,
    SizeLimits,
    make_store,
)
from anchorlib.store.format import ANEW, ROW, Attempt, Begins, Part, encode, json_value
from anchorlib.store.read import RankReader, stored_fingerprint
from anchorlib.store.write.catalog_statements import Statements
from anchorlib.store.write.op_log import OperationFile
from anchorlib.store.write.open_files import MOST_OPEN, ChunkFiles
from anchorlib.store.write.publishing import Publisher
from anchorlib.store.write.rank_opening import RankPlace, resume_counters, store_errors, take_up
from anchorlib.store.write.register import FormResources, Register
from anchorlib.store.write.row_packing import Packer, without_values
from anchorlib.store.write.table import RowTable

__all__ = ["Writer"]

MAX_RANK = 1 << 31


class Writer:
    """Writes the records of one rank of one run into a store; made by `Writer.open`.

    replaced: whether opening the writer removed earlier records of the rank (`overwrite`).
    """

    replaced = False

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
        acknowledged: int = 0,
        run_room: RunQuota | None = None,
        lock: RankLock | None = None,
        author: str = "",
        part: Part | None = None,
    ) -> Writer:
        """Create the rank, or resume it; return its writer, which holds its lock until `close`.

        resume: continue a rank that exists, as its next attempt.
        overwrite: remove what this rank recorded before (other ranks stay) and begin anew.
        header: facts to keep about this attempt, by name; values that JSON can hold.
        writer_id: a secret of the writer; the store keeps its claim, a hash of it. Where the last
            attempt has this writer's claim, that attempt is continued, whatever `resume` and
            `overwrite` say, and `committed` says how far it had come.
        fsync: wait for the disk before each block is committed, so that it survives power loss.
        max_bytes: the limit of this rank's size on disk. Beyond it values are left out and
            summaries kept; None leaves a twentieth of the file system free.
        wait_for_room: whether writing raises StoreError where the file system is full, instead of
            leaving values out: for callers that keep unwritten records and try again.
        acknowledged: how many records this writer had delivered before. Where the store has lost
            them, StoreError is raised and no new rank is made in their place.
        run_room: the limit for all ranks of the run together, beside `max_bytes`.
        lock: the lock of this rank if the caller holds it; None takes the lock.
        author: the name by which the collector knows the writer; kept if the run is new.
        part: the piece of the rank that this store holds, where other collectors hold the rest.

        Raises RunExistsError where the rank exists and is neither to be resumed nor overwritten,
        takes no more records, or was archived and removed from this store; RunBusyError where
        another process holds the rank's lock; InvalidNameError for a forbidden name of the run;
        OptionError for a rank out of range or a header that JSON cannot hold; StoreError where the
        store cannot be written or is damaged, or has lost acknowledged records.
        """
        check_run_name(run)
        if not 0 <= rank < MAX_RANK:
            raise OptionError(f"a rank is a number from 0 to {MAX_RANK - 1}, not {rank}")
        document = _document(run, header or {})
        store = store.absolute()  # so that a later chdir does not change where it leads
        with store_errors(f"cannot open run {run!r} in {store}"):
            make_store(store, fsync=fsync)
            lock = lock or RankLock.take(store, run, rank, part.number if part else 0)
            try:
                place = RankPlace(store, run, rank, NodeWriter(store, fsync=fsync), author, part)
                claim = claim_of(writer_id)
                budget = RankQuota(store, SizeLimits(max_bytes, wait_for_room, run_room))
                existed = place.path.exists()
                reader = place.take(
                    claim, budget, resume=resume, overwrite=overwrite, acknowledged=acknowledged
                )
                writer = cls(place, lock, reader, budget)
                writer.replaced = overwrite and existed and not reader.catalogue.attempts
            except BaseException:
                lock.release()
                raise
            try:
                writer._begin(claim, document, _begins(part, resume=resume, anew=overwrite))
            except BaseException:
                writer.abandon()
                raise
        return writer

    def __init__(
        self, place: RankPlace, lock: RankLock, reader: RankReader, budget: RankQuota
    ) -> None:
        self._place = place
        self._lock = lock
        self._reader = reader
        self._open = True
        self._pid = os.getpid()
        self._owner = place.tree.owner
        self._files = ChunkFiles(MOST_OPEN, place.tree)
        self._catalog = take_up(reader, place)
        catalogue = reader.catalogue
        self._budget = budget
        self._register = Register(
            place.path, catalogue, self._catalog, FormResources(place.tree, self._files, budget)
        )
        self._resumed = resume_counters(reader, self._register.forms)
        self._budget.take_up(reader.catalogue_end + self._resumed.nbytes)
        self._table = RowTable(
            place.path / "records", reader.committed, self._resumed.pairs, place.tree
        )
        self._packer = Packer(self._register)
        self._publisher = Publisher(place.path, place.tree)
        self._published = (min(catalogue.published, reader.committed), -1)
        self._left_out = LeftOut(())
        self._statements = Statements(self._catalog, self._budget, catalogue)
        self._operations = OperationFile(place.path, place.tree, budget)
        self._first_row = self._first = 0
        self._directory_watch = RankDirectoryWatch(place.path, place.run, place.rank)

    def _begin(self, claim: bytes, header: Mapping[str, Any], begins: Begins) -> None:
        attempts = self._reader.catalogue.attempts
        if self._place.goes_on(self._reader, claim):
            attempt = last = attempts[-1]
            gaps = self._reader.catalogue.gaps.items()
            stated = [gap for key, gap in gaps if key[0] == last.number]
            self._left_out = LeftOut(stated)
            self._statements.go_on(attempt, stated)
        else:
            rows, order = self._reader.committed, self._resumed.order
            attempt = Attempt(len(attempts), claim, time.time_ns(), header, rows, order)
            if (part := self._place.part) is not None:
                attempt = replace(attempt, first=part.first, begins=begins, restart=part.restart)
            self._statements.begin(attempt)
        if self._reader.catalogue.state != "open":
            self._statements.append(encode({"state": "open"}))
        self._packer.attempt = attempt.number
        self._packer.order_base = attempt.order_base
        self._first_row, self._first = attempt.first_row, attempt.first
        self._reader.catalogue.forget_statements()
        self._reader.refresh()
        self._publisher.publish_rank(self._reader.catalogue)

    @property
    def attempt(self) -> int:
        """The number of this attempt to record the rank: the first is 0, each resume adds one."""
        return self._packer.attempt

    @property
    def committed(self) -> int:
        """The number of the next record that this attempt's sender has to send.

        All records with lower numbers are safe: in this store, or (where collectors share the rank)
        in another collector's.
        """
        return self._first + self._table.rows - self._first_row

    @property
    def first(self) -> int:
        """The number of this attempt's first record in this store, as its sender counts records.

        The number is above 0 where another collector has the attempt's earlier records.
        """
        return self._first

    @property
    def left_out(self) -> LeftOut:
        """Counts of records that were stored without their values, or could not be stored."""
        return self._left_out

    def fingerprint(self, attempt: int, first: int, end: int) -> bytes:
        """Return the 32-byte fingerprint of records first … end - 1 of an attempt.

        A sender compares it with a fingerprint of its own copy before it deletes that copy. Raises
        OptionError where there are no such records, StoreError for a damaged store.
        """
        self._check_ready()
        with store_errors(f"cannot read {self._place}"):
            if self._reader.committed < self._table.rows:
                self._reader.refresh()
            return stored_fingerprint(self._reader, attempt, first, end)

    def write_block(self, block: RowBlock) -> None:
        """Write a block; when this returns, all of it is committed, and if it raises, none is.

        The records belong to this writer's attempt, and `order` continues where the last attempt
        ended. Values for which there is no room are left out, and so are records with an invalid
        name, kind, mode, phase, dtype or shape. These and the block's `misfits` are counted in
        `left_out` and stated as gaps. Values are not compared with their digests. Raises StoreError
        where the file system fails.
        """
        self._check_ready()
        with store_errors(f"cannot write {self._place}"):
            fit = self._packer.admit(block)
            try:
                self._write(fit)
            except OSError as error:
                if error.errno not in NO_ROOM or self._budget.waits:
                    raise
                self._budget.exhaust()
                self._write(fit)
        for one in fit.misfits:
            key = (one.name, one.kind, one.mode, f"{MISFIT}{one.reason}")
            self._left_out.add(key, np.array([one.step]), 0)
        if self._left_out.due(self._budget.used):
            # The block is committed: were this raised, its sender would send it again. The counts
            # stay, and are stated later, at the latest when the rank is closed.
            with suppress(OSError):
                self._statements.append_gaps(self._left_out.statements())

    def _write(self, block: RowBlock) -> None:
        if not len(block):
            return
        sizes = block.sizes
        refused = self._budget.refusals(sizes)
        written = without_values(block, np.isin(np.arange(len(block)), list(refused)))
        packed = self._packer.pack(written if refused else block, self._table.pairs)
        for addition in packed.additions:
            addition.form.write(addition)
        self._table.append(packed.rows, packed.checks, packed.exponents, packed.counts)
        self._table.commit(len(block), packed.pairs)
        for addition in packed.additions:
            addition.form.settle(addition)
        taken = int(sizes.sum()) - sum(int(sizes[row]) for row in refused)
        self._budget.spend(taken + ROW.itemsize * len(block))
        for row, reason in refused.items():
            one = block.misfit(row, reason)
            key = (one.name, one.kind, one.mode, reason)
            self._left_out.add(key, np.array([one.step]), int(sizes[row]))

    def gap(self, gaps: Sequence[Gap]) -> Counter[str]:
        """State how many observations of this attempt were not recorded; return how many are new.

        gaps: totals since the attempt began. Where the total of a gap is stated several times, the
        largest counts. Gaps are told apart by name, kind, mode and reason; beyond a limit, all
        further gaps are counted in one. A total that grows may be written as late as by `publish`.
        The result has, by reason, how many observations the totals count for the first time. Once
        the rank is known to be gone from disk, nothing is written, and the result is empty.
        """
        if not self._stands():
            return Counter()
        with store_errors(f"cannot write {self._place}"):
            return self._statements.gaps(gaps)

    def edges(self, edges: Sequence[Edges]) -> None:
        """Write lineage (what each value was computed from); lineage written before is skipped.

        Lineage for which there is no room is left out, and counted in the header of this attempt.
        Nothing is written once the rank is known to be gone from disk.
        """
        if not self._stands():
            return
        with store_errors(f"cannot write {self._place}"):
            self._statements.edges(edges)

    def header(self, entries: Mapping[str, Any]) -> None:
        """Add entries (name and value) to this attempt's header, or give old entries new values.

        Nothing is written once the rank is known to be gone from disk. Raises OptionError for a
        value that JSON cannot hold, StoreError where writing fails.
        """
        if not self._stands():
            return
        values = _document(self._place.run, entries)
        with store_errors(f"cannot write {self._place}"):
            self._statements.header(values)

    def operations(self, entries: Sequence[Entry]) -> None:
        """Add entries to the log of traced operations; entries that the log has are skipped.

        Entries for which there is no room are left out, and counted in the log as a gap. Nothing is
        written once the rank is known to be gone from disk.
        """
        if not self._stands():
            return
        with store_errors(f"cannot write {self._place}"):
            self._operations.add(entries, self.attempt)

    def publish(self) -> None:
        """Update zarr metadata, so that other zarr readers see all that is committed.

        anchorlib's own readers need no such update. Also writes the gaps, and the counts of what
        was left out, that were held back.
        """
        self._check_ready()
        with store_errors(f"cannot write {self._place}"):
            self._statements.append_gaps(self._left_out.statements())
            self._statements.rest()
            self._operations.publish()
            if self._published == (self._table.rows, self._catalog.end):
                return
            self._reader.refresh()
            self._directory_watch.check()  # the rank that was just read is still this writer's
            self._publisher.publish_values(self._reader, self._register.forms, self._published[0])
            self._statements.append(encode({"published": self._table.rows}))
            self._publisher.publish_table(self._table.rows, self._table.pairs, self._catalog.end)
            self._publisher.publish_rank(self._reader.catalogue)
            self._published = (self._table.rows, self._catalog.end)
            self._budget.published()

    def revoke(self) -> None:
        """Forbid all further writing, after the present file operation; any thread may call this.

        The call only sets a mark, and does not wait for that operation. Committed records stay
        intact. The thread that owns the writer then has to release the rank by `close`.
        """
        self._owner.revoke()

    def close(self) -> None:
        """Publish, mark the rank closed and release its lock; a second call does nothing.

        After `revoke`, and in a forked child process, the rank is released as by `abandon`. Raises
        StoreError where the rank was moved or removed, unless an earlier call raised that.
        """
        if not self._open:
            return
        if os.getpid() != self._pid or self._owner.revoked:
            self.abandon()
            return
        self._owner.enter()
        try:
            if self._stands():
                with store_errors(f"cannot close {self._place}"):
                    self._statements.append(encode({"state": "closed"}))
                    self.publish()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Release the rank as it is, still marked open, as if the process had died."""
        if self._open:
            self.hand_over().release()

    def hand_over(self) -> RankLock:
        """Close all files and return the rank's lock, still held, for the rank's next writer.

        Nothing is published, and the rank stays marked open.
        """
        self._open = False
        self._files.close()
        self._table.close()
        self._catalog.close()
        self._operations.close()
        self._directory_watch.close()
        return self._lock

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if not self._open:
            raise StoreError(f"{self._place} was closed: open it again to write more")
        if os.getpid() != self._pid:
            raise StoreError(
                f"{self._place} is written by the process that forked this one: record in the "
                "parent process"
            )
        self._owner.enter()

    def _check_ready(self) -> None:
        self._check_open()
        self._directory_watch.check()

    def _stands(self) -> bool:
        """Return whether the rank's directory is still there, so that the catalogue can be written.

        The first call that finds the directory gone raises StoreError. Later calls return False, so
        that gaps, lineage and header entries are dropped without a further error.
        """
        self._check_open()
        if self._directory_watch.is_known_gone():
            return False
        self._directory_watch.check()
        return True


def _begins(part: Part | None, *, resume: bool, anew: bool) -> Begins:
    if part is None:
        return ""
    return ANEW if anew else "resumed" if resume else "new"


def _document(run: str, header: Mapping[str, Any]) -> Any:
    try:
        return json_value(header)
    except TypeError as error:
        raise OptionError(f"the header of run {run!r} does not fit into JSON: {error}") from error
