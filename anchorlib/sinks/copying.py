"""A run of one store, recorded once more in another: records, attempts, gaps, lineage, headers.

Attempts are copied one by one, each under its writer's id, so that a copy that was cut short is
taken up where it ended, and one that is whole is not made twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash

from anchorlib.errors import CollectorError, FlushTimeoutError, RunExistsError, RunNotFoundError
from anchorlib.record import Coordinates, Flag, Record
from anchorlib.sinks.base import Sink
from anchorlib.store import FoundRun, RankReader, RunReader, Writer, find_run
from anchorlib.summary import Summary
from anchorlib.wire import is_address

__all__ = ["Copied", "copy_run"]

_ROWS: Final = 4096
_BATCH_BYTES: Final = 32 << 20
_FLAGS: Final = sum(Flag)
_WRITER_ID_BYTES: Final = 16

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied; `already` of the records were there before."""

    run: str
    ranks: list[int]
    records: int
    already: int


@dataclass(frozen=True, slots=True)
class _Part:
    """One attempt at one rank: its rows, and how it is told."""

    reader: RankReader
    number: int
    writer_id: bytes
    rows: range

    @property
    def header(self) -> dict[str, Any]:
        """What was recorded about it."""
        return dict(self.reader.catalogue.attempts[self.number].header)


def copy_run(found: FoundRun, to: str, *, patience: float, progress: Progress) -> Copied:
    """Copy every rank of a run into the store at `to`, under the same name.

    patience: seconds that a collector may take to confirm what was sent.

    Raises RunExistsError where that store has another recording under this name, RunBusyError,
    StoreError, CollectorError.
    """
    run = RunReader(found.location, found.name)
    run.refresh()
    readers = [run.rank(rank) for rank in run.ranks]
    total = sum(reader.committed for reader in readers)
    done = already = 0
    for reader in readers:
        there = _there(found.name, reader.rank, to)
        for part in _parts(reader):
            have = _already(part, there, found.name)
            already += have
            done += have
            if have < len(part.rows) or part.number >= len(there) - 1:
                _copy(part, have, found.name, to, patience)
                done += len(part.rows) - have
            progress(done, total)
    return Copied(found.name, run.ranks, total, already)


def _parts(reader: RankReader) -> Iterator[_Part]:
    attempts = reader.catalogue.attempts
    starts = [*(attempt.first_row for attempt in attempts), reader.committed]
    for attempt, (first, end) in zip(attempts, pairwise(starts), strict=True):
        told = attempt.writer_id
        if len(told) != _WRITER_ID_BYTES:  # an embedded writer has none
            seed = f"{reader.catalogue.uid} {attempt.number} {attempt.started_ns}"
            told = xxhash.xxh3_128_digest(seed.encode())
        yield _Part(reader, attempt.number, told, range(first, end))


def _there(run: str, rank: int, to: str) -> list[tuple[bytes, int]]:
    """The attempts that the other store has: who wrote each, and how many records."""
    try:
        found = find_run(run, to)
        reader = RunReader(found.location, found.name)
        reader.refresh()
        parts = list(_parts(reader.rank(rank)))
    except (RunNotFoundError, KeyError):
        return []
    return [(part.writer_id, len(part.rows)) for part in parts]


def _already(part: _Part, there: Sequence[tuple[bytes, int]], run: str) -> int:
    if part.number >= len(there):
        return 0
    writer_id, records = there[part.number]
    last = part.number == len(there) - 1
    if writer_id != part.writer_id or records > len(part.rows):
        raise RunExistsError(
            f"rank {part.reader.rank} of run {run!r} there is another recording; remove it, or "
            "copy to another store"
        )
    if records < len(part.rows) and not last:
        raise RunExistsError(
            f"rank {part.reader.rank} of run {run!r} there lacks records of attempt {part.number}, "
            "which can no longer be added; copy to another store"
        )
    return records


def _copy(part: _Part, have: int, run: str, to: str, patience: float) -> None:
    sink = _sink(part, have, run, to)
    catalogue = part.reader.catalogue
    wait = 0.0
    try:
        for records in _batches(part, have):
            sink.put(records)
            sink.flush().wait(patience)
        sink.gap([gap for key, gap in catalogue.gaps.items() if key[0] == part.number])
        sink.edges([edges for edges in catalogue.edges.values() if edges.attempt == part.number])
        sink.flush().wait(patience)
        wait = patience
    except FlushTimeoutError as late:
        raise CollectorError(f"{late}; push again to go on from there") from late
    finally:
        sink.close(wait)


def _sink(part: _Part, have: int, run: str, to: str) -> Sink:
    rank, resume = part.reader.rank, part.number > 0
    if is_address(to):
        from anchorlib.sinks.remote import RemoteSink  # gRPC is loaded where it is used

        return RemoteSink(
            to,
            run,
            rank,
            part.header,
            resume=resume,
            on_full="block",
            writer_id=part.writer_id,
            first=have,
        )
    from anchorlib.sinks.embedded import EmbeddedSink

    writer = Writer.open(
        Path(to), run, rank, resume=resume, header=part.header, writer_id=part.writer_id
    )
    if writer.committed != have:
        writer.abandon()
        raise CollectorError(f"rank {rank} of run {run!r} in {to} changed while it was copied")
    return EmbeddedSink(writer)


def _batches(part: _Part, have: int) -> Iterator[list[Record]]:
    batch: list[Record] = []
    size = 0
    for start in range(part.rows.start + have, part.rows.stop, _ROWS):
        for record in _records(part, range(start, min(start + _ROWS, part.rows.stop))):
            batch.append(record)
            size += record.nbytes
            if size >= _BATCH_BYTES:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _records(part: _Part, rows: range) -> Iterator[Record]:
    """The records of these rows, as they were before they were written."""
    reader, catalogue = part.reader, part.reader.catalogue
    places = np.arange(rows.start, rows.stop)
    histograms = reader.histograms(places)
    shapes = reader.shapes(places)
    kept = reader.kept(places)
    table = {name: reader.column(name)[rows.start : rows.stop].tolist() for name in _COLUMNS}
    base = catalogue.attempts[part.number].order_base
    for at, row in enumerate(rows):
        cell = {name: column[at] for name, column in table.items()}
        series = catalogue.series[cell["series"]]
        where = Coordinates(
            cell["step"], cell["pass_index"], cell["call"], catalogue.phases[cell["phase"]]
        )
        digest = cell["digest_high"].to_bytes(8, "big") + cell["digest_low"].to_bytes(8, "big")
        yield Record(
            series.name,
            series.kind,
            series.mode,
            where,
            cell["order"] - base,
            cell["time_ns"],
            catalogue.forms[cell["form"]].dtype,
            tuple(shapes[at]),
            reader.raw(row) if kept[at] else None,
            Summary(digest, cell["min"], cell["max"], cell["sum"], cell["l2"], histograms[at]),
            cell["count"],
            reader.rank,
            Flag(cell["flags"] & _FLAGS),
            cell["scale"],
        )


_COLUMNS: Final = [
    "series",
    "form",
    "step",
    "pass_index",
    "call",
    "phase",
    "order",
    "time_ns",
    "digest_high",
    "digest_low",
    "min",
    "max",
    "sum",
    "l2",
    "count",
    "flags",
    "scale",
]
