"""The stored columns of all ranks on one grid, ranks × places, so that ranks can be compared.

A place is a record's series (name, kind, mode and phase), step, pass and call.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from anchorlib.names import is_operand_kind
from anchorlib.reading import Run
from anchorlib.record import Flag
from anchorlib.store import RankReader

__all__ = ["RankGrid", "SeriesKey", "grid_of"]

Array = np.ndarray[Any, Any]
UNJUDGED = int(Flag.STEP_SKIPPED | Flag.SCALED)
LEAST, MOST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


class SeriesKey(NamedTuple):
    """Name, kind, mode and phase: what identifies a series, on every rank alike."""

    name: str
    kind: str
    mode: str
    phase: str


@dataclass(frozen=True, slots=True)
class RankGrid:
    """What is known of the records of all ranks, as arrays with a column for each place of the run.

    A place is a series, step, pass and call. Places are sorted in this order.

    ranks: the numbers of the ranks, ascending. All arrays and lists of ranks have this order.
    last: the last step of each rank, -1 without a record.
    readers: the reader of each rank's records.
    series: all series.
    owner: (places,): the index in `series` of each place's series.
    step, pass_index, call: (places,): the step, pass and call of each place.

    The other arrays are (ranks, places), with an entry for each record:

    row: the record's row in the table of its rank; -1 where the rank has no record, or a record
        without elements: a shard of which a rank holds nothing tells nothing.
    digest: the upper half of the record's digest, 0 without a record.
    varied: whether the record has two different finite elements.
    nan, inf: whether the record has NaN, and whether it has infinities. False without a record, in
        a step that GradScaler skipped, and for a gradient that carries a loss scale: overflows are
        usual in these cases.
    rms: root mean square of the record's finite elements; NaN without a record, and where the root
        mean square is no positive number.
    """

    ranks: list[int]
    last: list[int]
    readers: list[RankReader]
    series: list[SeriesKey]
    owner: Array
    step: Array
    pass_index: Array
    call: Array
    row: Array
    digest: Array
    varied: Array
    nan: Array
    inf: Array
    rms: Array

    def each(self) -> Iterator[tuple[SeriesKey, slice]]:
        """Yield every series with the slice of its columns in the grid's arrays."""
        bounds = np.searchsorted(self.owner, np.arange(len(self.series) + 1)).tolist()
        for key, first, stop in zip(self.series, bounds, bounds[1:], strict=False):
            yield key, slice(first, stop)

    def order(self, rank: int, place: int) -> int:
        """Return the number of a record in its rank's order of execution.

        First the record's row is compared with its checksum, since damage on a disk is not a rank's
        fault. Raises DamagedError where the two do not agree.

        rank: the rank's index in `ranks`.
        place: the record's column in the grid.
        """
        row = int(self.row[rank, place])
        self.readers[rank].check_rows(np.array([row]))
        return int(self.readers[rank].cell("order", row))


@dataclass(frozen=True, slots=True)
class _Labels:
    """The rows of one rank's table of records that the grid holds, each with its place in the grid.

    rows: the indices of the rows in the table.
    keys: (4, rows): for each row the number of its series, its step, pass and call. These four
        numbers determine the record's place.
    """

    reader: RankReader
    rows: Array
    keys: Array  # (4, rows): series, step, pass, call


def grid_of(run: Run, pairs: Set[tuple[str, str]] | None) -> RankGrid:
    """Make the grid of the records that a run's ranks have of these names and kinds.

    Where a rank has several records of one place (series, step, pass and call), the grid holds the
    first. Raises DamagedError where a stored column is damaged, and CollectorError where the
    collector that stores the run does not answer.

    pairs: (name, kind) of the series that the grid holds; None for all series but those that hold
        values of traced operations.
    """
    known: dict[SeriesKey, int] = {}
    labels = [_labels(*both, known, pairs) for both in run.all_rows()]
    ranks = [one.reader.rank for one in labels]
    distinct = {id(one.keys): one.keys for one in _shared(labels)}
    all_keys = np.concatenate([np.zeros((4, 0), np.int64), *distinct.values()], axis=1)
    levels = [np.unique(keys) for keys in all_keys]
    codes = {number: _codes(keys, levels) for number, keys in distinct.items()}
    _, first = np.unique(_codes(all_keys, levels), return_index=True)
    owner, step, pass_index, call = all_keys[:, first]
    places = _codes(all_keys[:, first], levels)
    last = [int(one.keys[1].max(initial=-1)) for one in labels]
    grid = RankGrid(
        ranks, last, [one.reader for one in labels], list(known), owner, step, pass_index, call,
        **_empty(len(ranks), len(places)),
    )  # fmt: skip
    for number, one in enumerate(labels):
        _fill(grid, number, one.rows, np.searchsorted(places, codes[id(one.keys)]), one.reader)
    return grid


def _labels(
    reader: RankReader, rows: Array, known: dict[SeriesKey, int], pairs: Set[tuple[str, str]] | None
) -> _Labels:
    """Return those of a rank's rows that the grid holds, each with its series, step, pass and call.

    rows: indices into the rank's table of records.
    known: the number of each series so far; series that no earlier rank had are added here.
    pairs: (name, kind) of the series whose rows are kept; None keeps all but those of values of
        traced operations.
    """
    phases = reader.catalogue.phases
    ids = reader.series_ids[rows].astype(np.int64)
    of_phase = reader.column("phase")[rows].astype(np.int64)
    both, places = np.unique(ids * len(phases) + of_phase, return_inverse=True)
    numbers = np.full(len(both), -1)
    for at, code in enumerate(both.tolist()):
        entry = reader.catalogue.series[code // len(phases)]
        pair = entry.name, entry.kind
        if not is_operand_kind(entry.kind) if pairs is None else pair in pairs:
            key = SeriesKey(entry.name, entry.kind, entry.mode, phases[code % len(phases)])
            numbers[at] = known.setdefault(key, len(known))
    owner = numbers[places]
    chosen = owner >= 0
    rows, owner = rows[chosen], owner[chosen]
    where = [reader.column(name)[rows].astype(np.int64) for name in ("step", "pass_index", "call")]
    return _Labels(reader, rows, np.stack([owner, *where]))


def _shared(labels: list[_Labels]) -> list[_Labels]:
    """Return `labels`, changed in place so that ranks with equal keys share one array of keys.

    Each rank is compared with the rank before it. Ranks of a job mostly have the same keys, so the
    keys of thousands of ranks fit into memory.

    labels: one entry for each rank.
    """
    for number in range(1, len(labels)):
        before, one = labels[number - 1].keys, labels[number]
        if np.array_equal(before, one.keys):
            labels[number] = _Labels(one.reader, one.rows, before)
    return labels


def _codes(keys: Array, levels: list[Array]) -> Array:
    """Return one number for each column of `keys`; the numbers sort as the columns do.

    keys: (4, records): series, step, pass, call.
    levels: for each row of `keys` all values that occur in it, sorted.
    """
    codes = np.zeros(keys.shape[1], np.int64)
    for values, level in zip(keys, levels, strict=True):
        codes = codes * max(len(level), 1) + np.searchsorted(level, values)
    return codes


def _empty(ranks: int, places: int) -> dict[str, Array]:
    """Return the arrays (ranks, places) of a `RankGrid`, by name, filled with "no record".

    ranks, places: how many there are. A place is a series, step, pass and call.
    """
    shape = (ranks, places)
    flags = {name: np.zeros(shape, bool) for name in ("varied", "nan", "inf")}
    return {
        "row": np.full(shape, -1, np.int64),
        "digest": np.zeros(shape, np.uint64),
        "rms": np.full(shape, np.nan, np.float32),
        **flags,
    }


def _fill(grid: RankGrid, rank: int, rows: Array, at: Array, reader: RankReader) -> None:
    """Write a rank's records onto the grid; of several records at one place, only the first.

    Nothing is written for a record without elements. The arrays of `grid` are changed in place.

    rank: the rank's index in the grid.
    rows: indices into the rank's table of records.
    at: the grid's column for each row.
    reader: reads the rank's table.
    """
    numel = _numel(*reader.shape_codes(rows))
    with_elements = np.flatnonzero(numel > 0)[::-1]
    rows, at, numel = rows[with_elements], at[with_elements], numel[with_elements]

    def column(name: str) -> Array:
        # As a span, which the reader does not keep: thousands of ranks would fill the memory.
        return reader.span(name, 0, reader.committed)[rows]

    counts = (column("flags") & UNJUDGED) == 0
    grid.row[rank, at] = rows
    grid.digest[rank, at] = column("digest_high")
    grid.varied[rank, at] = column("min") < column("max")
    grid.nan[rank, at] = (column("nan") > 0) & counts
    grid.inf[rank, at] = (column("inf") > 0) & counts
    size = column("l2") / np.sqrt(numel)
    small = np.clip(size, LEAST, MOST)  # within float32's range, which norms of float64 may leave
    grid.rms[rank, at] = np.where((size > 0) & np.isfinite(size), small, np.nan)


def _numel(shapes: list[tuple[int, ...]], codes: Array) -> Array:
    numel: Array = np.array([prod(shape) for shape in shapes], np.float64)[codes]
    return numel
