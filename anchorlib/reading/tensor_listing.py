"""The totals of each tensor, kind and mode over all ranks, which `Run.tensors` lists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from anchorlib.reading.rank_indexes import RankIndex
from anchorlib.reading.sizes import stored_sizes
from anchorlib.record import Gap, TensorInfo, summed_gaps
from anchorlib.store import RunFigures, common_shape

__all__ = ["listed_figures", "listing"]

Array = np.ndarray[Any, Any]
Key = tuple[str, str, str]
Shape: TypeAlias = tuple[int | None, ...] | None


class _Sum:
    """Accumulates the totals of one tensor, kind and mode over ranks, starting with one rank.

    figures: [order of the first record, number of records, first step, last step, stored bytes],
        over the ranks added so far.
    """

    __slots__ = ("dtypes", "figures", "ranks", "shape")

    def __init__(self, one: _Described, rank: int) -> None:
        self.dtypes, self.shape = one.dtypes, one.shape
        self.figures = [*one.figures]
        self.ranks = [rank]

    def add(self, other: _Described, rank: int) -> None:
        """Add the totals of another rank."""
        # Ranks nearly always agree in dtypes and shape, so these are merged only where they differ.
        if other.dtypes != self.dtypes:
            self.dtypes = tuple(dict.fromkeys((*self.dtypes, *other.dtypes)))
        if other.shape != self.shape:
            self.shape = common_shape([self.shape, other.shape])
        own, (order, records, first, last, nbytes) = self.figures, other.figures
        own[:] = (
            min(own[0], order),
            own[1] + records,
            min(own[2], first),
            max(own[3], last),
            own[4] + nbytes,
        )
        self.ranks.append(rank)


def listing(indexes: Iterable[RankIndex]) -> list[TensorInfo]:
    """Return a TensorInfo for each tensor, kind and mode of all ranks, in order of execution."""
    sums: dict[Key, _Sum] = {}
    gaps: list[Gap] = []
    for index in indexes:
        gaps += index.reader.gaps()
        for entry, one in zip(index.series, _described(index), strict=True):
            key = (entry.name, entry.kind, entry.mode)
            if key in sums:
                sums[key].add(one, index.reader.rank)
            else:
                sums[key] = _Sum(one, index.reader.rank)
    missing = _missing(summed_gaps(gaps))
    return [
        TensorInfo(
            name=key[0],
            kind=key[1],
            mode=key[2],
            dtype="|".join(one.dtypes),
            shape=one.shape,
            ranks=tuple(one.ranks),
            records=one.figures[1],
            first_step=one.figures[2],
            last_step=one.figures[3],
            bytes=one.figures[4],
            gaps=missing.get(key, 0),
        )
        for key, one in sorted(sums.items(), key=lambda item: item[1].figures[0])
    ]


def listed_figures(figures: RunFigures) -> list[TensorInfo]:
    """Return a TensorInfo for each tensor, kind and mode of an archived run.

    figures: the index of the run, so that no rank is read. The order is that of execution.
    """
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
    counts: dict[Key, int] = {}
    for gap in gaps:
        key = (gap.name, gap.kind, gap.mode)
        counts[key] = counts.get(key, 0) + gap.count
    return counts


class _Described(NamedTuple):
    """What a listing of tensors says about one series of one rank.

    shape: the shape of the records, with None for a dimension in which they differ; None as a whole
        where they differ in their number of dimensions.
    figures: (order of the first record, number of records, first step, last step, stored bytes).
    """

    dtypes: tuple[str, ...]
    shape: Shape
    figures: tuple[int, int, int, int, int]


def _described(index: RankIndex) -> list[_Described]:
    """Return a description of each series of a rank, in the order of `index.series`.

    It is computed column by column for all series together: series by series would take far longer.
    """
    if not index.series:
        return []
    reader, (rows, starts) = index.reader, index.laid_out()
    shapes, codes = reader.shape_codes(rows)
    steps = reader.column("step")[rows]
    figures = zip(
        reader.column("order")[rows[starts]].tolist(),
        np.diff(starts, append=len(rows)).tolist(),
        np.minimum.reduceat(steps, starts).tolist(),
        np.maximum.reduceat(steps, starts).tolist(),
        np.add.reduceat(stored_sizes(reader, rows), starts).tolist(),
        strict=True,
    )
    forms = _different(reader.column("form")[rows], starts)
    known = [form.dtype for form in reader.catalogue.forms]
    common: dict[tuple[int, ...], Shape] = {}
    descriptions = []
    for own, alike, one in zip(forms, _different(codes, starts), figures, strict=True):
        if alike not in common:
            common[alike] = common_shape([shapes[code] for code in alike])
        dtypes = tuple(dict.fromkeys(known[at] for at in own))
        descriptions.append(_Described(dtypes, common[alike], one))
    return descriptions


def _different(values: Array, starts: Array) -> list[tuple[int, ...]]:
    """Return the distinct values, ascending, of each segment of `values`.

    starts: where the segments begin, ascending; each ends where the next begins, the last at the
        end. No segment is empty.
    """
    ends = [*starts[1:].tolist(), len(values)]
    low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    return [
        (least,) if least == most else tuple(np.unique(values[start:end]).tolist())
        for least, most, start, end in zip(
            low.tolist(), high.tolist(), starts.tolist(), ends, strict=True
        )
    ]
