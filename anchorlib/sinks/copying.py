"""Copies a run into another store: its records attempt by attempt, with gaps, lineage, operations.

An attempt is what one process recorded of a rank; a resumed training adds another attempt. Records
that the other store has already are compared with those of the run. A complete copy is not made
again; an interrupted copy can be continued by the user who began it (see `copy_key`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from anchorlib.block import block_of
from anchorlib.claims import claim_of
from anchorlib.errors import CollectorError, FlushTimeoutError, RunExistsError, RunNotFoundError
from anchorlib.progress import Progress
from anchorlib.record import Record
from anchorlib.sinks.base import Sink
from anchorlib.sinks.copy_key import copy_secret
from anchorlib.sinks.options import RunOptions
from anchorlib.store import (
    FoundRun,
    RankReader,
    RunReader,
    find_run,
    stored_fingerprint,
    stored_records,
)
from anchorlib.wire import is_address

__all__ = ["CopyResult", "copy_run"]

_ROWS: Final = 4096
_BATCH_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class CopyResult:
    """The outcome of copying a run.

    run: the run's name in the other store. ranks: the numbers of the run's ranks.
    records: how many records the run has, all of which the other store has now.
    already: how many of these records the other store had before the copying.
    """

    run: str
    ranks: list[int]
    records: int
    already: int


@dataclass(frozen=True, slots=True)
class _CopiedAttempt:
    """An attempt (what one process recorded of a rank) that is to be copied.

    reader: reads the rank. number: the attempt's number.
    run: the run's name in the other store.
    secret: by which the writer in the other store can continue a copy that was interrupted.
    rows: the indices of the attempt's records in the rank's table of records.
    """

    reader: RankReader
    number: int
    run: str
    secret: bytes
    rows: range

    @property
    def header(self) -> dict[str, Any]:
        """A copy of the run header that was recorded with the attempt."""
        return dict(self.reader.catalogue.attempts[self.number].header)


def copy_run(
    stored_run: FoundRun, to: str, name: str, *, patience: float, progress: Progress
) -> CopyResult:
    """Copy every rank of a run into the store at `to`, under the name `name`.

    patience: how many seconds a collector may take to confirm what was sent.

    progress: called after each attempt with (number of the run's records that `to` has by now,
        number of all its records).

    Raises RunExistsError where the store at `to` has another recording under this name, or a copy
    that this user cannot continue; RunBusyError where another process writes the rank there,
    StoreError where a store cannot be read or written, CollectorError where a collector fails, is
    late, or a directory changed meanwhile.
    """
    run = RunReader(stored_run.location, stored_run.name)
    run.refresh()
    readers = [run.rank(rank) for rank in run.ranks]
    total = sum(reader.committed for reader in readers)
    done = already = 0
    for reader in readers:
        there = _there(name, reader.rank, to)
        for part in _parts(reader, name, to):
            have = _already(part, there)
            already += have
            done += have
            if _is_open(part, have, there):
                _copy(part, have, to, patience)
                done += len(part.rows) - have
            progress(done, total)
    return CopyResult(name, run.ranks, total, already)


def _parts(reader: RankReader, name: str, to: str) -> Iterator[_CopiedAttempt]:
    attempts = reader.catalogue.attempts
    starts = [*(attempt.first_row for attempt in attempts), reader.committed]
    for attempt, (first, end) in zip(attempts, pairwise(starts), strict=True):
        what = (reader.catalogue.uid, attempt.number, attempt.started_ns, to, name)
        yield _CopiedAttempt(reader, attempt.number, name, copy_secret(what), range(first, end))


def _there(run: str, rank: int, to: str) -> RankReader | None:
    """Return a reader of a rank of `run` in the store `to`; None if that rank is not there."""
    try:
        located = find_run(run, to)
        reader = RunReader(located.location, located.name)
        reader.refresh()
        return reader.rank(rank)
    except (RunNotFoundError, KeyError):
        return None


def _already(part: _CopiedAttempt, there: RankReader | None) -> int:
    """Return how many records of an attempt the other store has from earlier copies.

    there: a reader of the rank in the other store; None if the rank is not there.
    Raises RunExistsError if the other store has other records under this attempt's number, or only
    some of the attempt's records in a copy that this user cannot continue.
    """
    attempts = [] if there is None else there.catalogue.attempts
    if there is None or part.number >= len(attempts):
        return 0
    ends = [*(attempt.first_row for attempt in attempts[1:]), there.committed]
    records = ends[part.number] - attempts[part.number].first_row
    where = f"rank {part.reader.rank} of run {part.run!r} there"
    if records > len(part.rows) or not _are_equal(part, there, records):
        raise RunExistsError(
            f"{where} is another recording; remove it, or copy under another name (--as NAME)"
        )
    if records == len(part.rows):
        return records
    if part.number < len(attempts) - 1:
        raise RunExistsError(
            f"{where} lacks records of attempt {part.number}, which can no longer be added; copy "
            "under another name (--as NAME)"
        )
    if attempts[part.number].claim != claim_of(part.secret):
        raise RunExistsError(
            f"{where} is part of a copy that another user or machine began and can continue; "
            "remove it, or copy under another name (--as NAME)"
        )
    return records


def _are_equal(part: _CopiedAttempt, there: RankReader, records: int) -> bool:
    spans = ((start, min(start + _ROWS, records)) for start in range(0, records, _ROWS))
    return all(
        stored_fingerprint(part.reader, part.number, *span)
        == stored_fingerprint(there, part.number, *span)
        for span in spans
    )


def _is_open(part: _CopiedAttempt, have: int, there: RankReader | None) -> bool:
    """Return whether an attempt has to be copied, because the other store may lack some of it.

    This is so if records are missing there. It is also so if all records are there, but the attempt
    is the last one there, and this user can continue it: then its gaps, lineage or traced
    operations may be missing.

    have: how many of the attempt's records the other store has.
    there: a reader of the rank in the other store; None if the rank is not there.
    """
    attempts = [] if there is None else there.catalogue.attempts
    if have < len(part.rows) or part.number >= len(attempts):
        return True
    mine = attempts[part.number].claim == claim_of(part.secret)
    return mine and part.number == len(attempts) - 1


def _copy(part: _CopiedAttempt, have: int, to: str, patience: float) -> None:
    sink = _sink(part, have, to)
    catalogue = part.reader.catalogue
    wait = 0.0
    try:
        for records in _batches(part, have):
            sink.put(block_of(records))
            sink.flush().wait(patience)
        sink.gap([gap for key, gap in catalogue.gaps.items() if key[0] == part.number])
        sink.edges([edges for edges in catalogue.edges.values() if edges.attempt == part.number])
        sink.operations(part.reader.operations(part.number))
        sink.flush().wait(patience)
        wait = patience
    except FlushTimeoutError as late:
        raise CollectorError(f"{late}; push again to go on from there") from late
    finally:
        sink.close(wait)


def _sink(part: _CopiedAttempt, have: int, to: str) -> Sink:
    rank = part.reader.rank
    options = RunOptions(part.run, rank, part.header, resume=part.number > 0, on_full="block")
    if is_address(to):
        from anchorlib.sinks.remote import RemoteSink  # gRPC is loaded where it is used

        return RemoteSink(to, options, writer_id=part.secret, first=have)
    from anchorlib.sinks.embedded import EmbeddedSink, open_writer

    writer = open_writer(Path(to), options, part.secret)
    if writer.committed != have:
        writer.abandon()
        raise CollectorError(f"rank {rank} of run {part.run!r} in {to} changed while it was copied")
    return EmbeddedSink(writer)


def _batches(part: _CopiedAttempt, have: int) -> Iterator[list[Record]]:
    batch: list[Record] = []
    size = 0
    for start in range(part.rows.start + have, part.rows.stop, _ROWS):
        rows = np.arange(start, min(start + _ROWS, part.rows.stop))
        for record in stored_records(part.reader, rows):
            batch.append(record)
            size += record.nbytes
            if size >= _BATCH_BYTES:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch
