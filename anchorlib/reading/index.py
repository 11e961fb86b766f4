"""Which rows belong to which series of a rank, and what a tensor listing says of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlib.record import Gap, TensorInfo
from anchorlib.store import RankReader, RunFigures, SeriesEntry, common_shape, visible_rows

__all__ = ["RankIndex", "listed_figures", "listing"]

Array = np.ndarray[Any, Any]
Key = tuple[str, str, str]


class RankIndex:
    """The seen rows of one rank, by series; made again when more was committed.

    series: those that have records, in the order they first had one.
    """

    def __init__(self, reader: RankReader, *, attempts: bool = False) -> None:
        self.reader = reader
        self.version = reader.version
        rows = visible_rows(reader, attempts=attempts)
        owner = reader.series_ids[rows]
        order = np.argsort(owner, kind="stable")
        self._rows = rows[order]
        # The catalogue of a live run grows ahead of its rows: what came later is not indexed here.
        self._entries = list(reader.catalogue.series)
        self._starts = np.searchsorted(owner[order], np.arange(len(self._entries) + 1))
        self._first_order = reader.column("order")
        held = [entry for entry in self._entries if len(self.rows(entry))]
        self.series = sorted(held, key=self.first_order)
        self._of_tensor: dict[tuple[str, str], list[SeriesEntry]] = {}
        for entry in self.series:
            self._of_tensor.setdefault((entry.name, entry.kind), []).append(entry)

    def of_tensor(self, name: str, kind: str) -> list[SeriesEntry]:
        """The series of one tensor and kind, one for each mode."""
        return self._of_tensor.get((name, kind), [])

    def rows(self, entry: SeriesEntry) -> Array:
        """The rows of a series in order of execution."""
        if entry.id >= len(self._entries):
            return self._rows[:0]
        found: Array = self._rows[self._starts[entry.id] : self._starts[entry.id + 1]]
        return found

    def first_order(self, entry: SeriesEntry) -> int:
        """The place of a series' first record in the rank's run."""
        return int(self._first_order[self.rows(entry)[0]])


@dataclass(slots=True)
class _Sum:
    """What several ranks hold of one tensor, kind and mode."""

    first_order: int
    dtypes: dict[str, None]
    shape: tuple[int | None, ...] | None
    ranks: list[int]
    records: int
    first_step: int
    last_step: int
    nbytes: int

    def add(self, other: _Sum) -> None:
        self.first_order = min(self.first_order, other.first_order)
        self.dtypes |= other.dtypes
        self.shape = common_shape([self.shape, other.shape])
        self.ranks += other.ranks
        self.records += other.records
        self.first_step = min(self.first_step, other.first_step)
        self.last_step = max(self.last_step, other.last_step)
        self.nbytes += other.nbytes


def listing(indexes: Iterable[RankIndex], gaps: Iterable[Gap]) -> list[TensorInfo]:
    """All tensors, kinds and modes of all ranks, in order of execution."""
    found: dict[Key, _Sum] = {}
    for index in indexes:
        for entry in index.series:
            one = _describe(index, entry)
            key = (entry.name, entry.kind, entry.mode)
            if key in found:
                found[key].add(one)
            else:
                found[key] = one
    missing = _missing(gaps)
    return [
        TensorInfo(
            name=key[0],
            kind=key[1],
            mode=key[2],
            dtype="|".join(one.dtypes),
            shape=one.shape,
            ranks=tuple(one.ranks),
            records=one.records,
            first_step=one.first_step,
            last_step=one.last_step,
            bytes=one.nbytes,
            gaps=missing.get(key, 0),
        )
        for key, one in sorted(found.items(), key=lambda item: item[1].first_order)
    ]


def listed_figures(figures: RunFigures) -> list[TensorInfo]:
    """The same of an archived run, as its index has it."""
    missing = _missing(figures.gaps)
    return [
        TensorInfo(
            name=one.name,
            kind=one.kind,
            mode=one.mode,
            dtype="|".join(one.dtypes),
            shape=one.shape,
            ranks=one.ranks,
            records=one.records,
            first_step=one.first_step,
            last_step=one.last_step,
            bytes=one.bytes,
            gaps=missing.get(one.key, 0),
        )
        for one in figures.series
    ]


def _missing(gaps: Iterable[Gap]) -> dict[Key, int]:
    found: dict[Key, int] = {}
    for gap in gaps:
        key = (gap.name, gap.kind, gap.mode)
        found[key] = found.get(key, 0) + gap.count
    return found


def _describe(index: RankIndex, entry: SeriesEntry) -> _Sum:
    reader, rows = index.reader, index.rows(entry)
    steps = reader.column("step")[rows]
    shapes: list[tuple[int | None, ...] | None] = [*reader.shape_set(rows)]
    return _Sum(
        first_order=index.first_order(entry),
        dtypes=dict.fromkeys(reader.dtype_set(rows)),
        shape=common_shape(shapes),
        ranks=[reader.rank],
        records=len(rows),
        first_step=int(steps.min()),
        last_step=int(steps.max()),
        nbytes=reader.stored_bytes(rows),
    )
