"""Totals of an archived run: the totals of each series, merged from the indices of its ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from anchorlib.record import Gap, summed_gaps
from anchorlib.store.locations import PartKey
from anchorlib.store.seal import RankFigures, SeriesFigures
from anchorlib.summary import Log2Histogram

__all__ = ["MergedSeries", "RunFigures", "common_shape"]

Shape = tuple[int | None, ...] | None
"""The shape that several records share: None in place of a size in which they differ, and just
None where they differ in the number of dimensions."""


@dataclass(frozen=True, slots=True)
class MergedSeries:
    """Totals over the visible records of one tensor, kind and mode on all ranks of an archived run.

    Of records that a resumed run recorded again, only the later ones are counted.

    dtypes: the different dtypes of the records, by torch's names. shape: the shape that all records
        share, with None for sizes that differ, or None if numbers of dimensions differ. ranks: the
        ranks that have such records, ascending. first_order: the smallest `order` (number in the
        order of execution) of a record. first_step, last_step: the smallest and the largest step.
        bytes: the size of all stored values. histogram: one histogram of all elements of all
        records. scales: the different loss scales of the records, ascending.
    """

    name: str
    kind: str
    mode: str
    dtypes: tuple[str, ...]
    shape: Shape
    ranks: tuple[int, ...]
    records: int
    first_order: int
    first_step: int
    last_step: int
    bytes: int
    histogram: Log2Histogram
    scales: tuple[float, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        """The name, kind and mode of the series."""
        return (self.name, self.kind, self.mode)

    def joined(self, other: MergedSeries) -> MergedSeries:
        """Return the totals of the series over the ranks of `self` and of `other` together.

        The caller sees to it that no rank is in both, as its records would be counted twice.
        """
        return MergedSeries(
            *self.key,
            tuple(dict.fromkeys((*self.dtypes, *other.dtypes))),
            common_shape([self.shape, other.shape]),
            tuple(sorted((*self.ranks, *other.ranks))),
            self.records + other.records,
            min(self.first_order, other.first_order),
            min(self.first_step, other.first_step),
            max(self.last_step, other.last_step),
            self.bytes + other.bytes,
            self.histogram + other.histogram,
            tuple(sorted({*self.scales, *other.scales})),
        )


@dataclass(frozen=True, slots=True)
class RunFigures:
    """Totals of a run of sealed (archived) ranks, without its records: what the run's index says.

    ranks: the numbers of the ranks, ascending. closed: whether all ranks are closed. steps: the
        steps that have records, ascending. bytes: the size of all stored values, also of records
        that were recorded again later. created_ns, written_ns: when the first rank was made, and
        when the run was last written to, in nanoseconds since the epoch. series: in order of
        execution. gaps: how many observations were not recorded, by series and reason.
    parts: a pair (rank, part) for every part of the ranks that are stored in several parts; a rank
        that is stored as a whole has no pair.
    digests, by_step: the SHA-256, in hex, of the object that holds the digests of the ranks, and of
        the object that holds the figures of the steps; "" where there is no such object. See
        `run_digests` and `run_steps`.
    """

    ranks: tuple[int, ...]
    closed: bool
    steps: tuple[int, ...]
    bytes: int
    created_ns: int
    written_ns: int
    series: tuple[MergedSeries, ...]
    gaps: tuple[Gap, ...]
    parts: tuple[PartKey, ...] = ()
    digests: str = ""
    by_step: str = ""

    @classmethod
    def of(cls, ranks: Iterable[RankFigures]) -> RunFigures:
        """Return the totals of a run, merged from those of its ranks."""
        known = sorted(ranks, key=lambda one: one.rank)
        series: dict[tuple[str, str, str], list[tuple[int, SeriesFigures]]] = {}
        for one in known:
            for part in one.series:
                series.setdefault((part.name, part.kind, part.mode), []).append((one.rank, part))
        return cls(
            tuple(one.rank for one in known),
            all(one.state == "closed" for one in known),
            tuple(sorted({number for one in known for number in one.steps})),
            sum(one.bytes for one in known),
            min((one.created_ns for one in known), default=0),
            max((one.written_ns for one in known), default=0),
            _in_order(_pooled(parts) for parts in series.values()),
            tuple(summed_gaps(gap for one in known for gap in one.gaps)),
            tuple((one.rank, part) for one in known if one.parts != (0,) for part in one.parts),
        )

    def parts_of(self, rank: int) -> tuple[PartKey, ...]:
        """Return (rank, part) for each part of one rank; only (rank, 0) if it is stored whole."""
        return tuple(key for key in self.parts if key[0] == rank) or ((rank, 0),)

    @property
    def keys(self) -> set[PartKey]:
        """A pair (rank, part) for each part of all ranks; a rank stored as a whole has part 0."""
        apart = {rank for rank, _ in self.parts}
        return {*self.parts, *((rank, 0) for rank in self.ranks if rank not in apart)}

    def joined(self, other: RunFigures) -> RunFigures:
        """Return the totals over the ranks of `self` and of `other` together.

        The caller sees to it that no rank is in both. The result has the `digests` and `by_step` of
        `self`, which do not cover the ranks of `other`. Where `self` has no ranks, `other` is
        returned.
        """
        if not self.ranks:  # figures of no rank have no times that could be merged
            return other
        series = {one.key: one for one in self.series}
        for one in other.series:
            series[one.key] = series[one.key].joined(one) if one.key in series else one
        return RunFigures(
            tuple(sorted((*self.ranks, *other.ranks))),
            self.closed and other.closed,
            tuple(sorted({*self.steps, *other.steps})),
            self.bytes + other.bytes,
            min(self.created_ns, other.created_ns),
            max(self.written_ns, other.written_ns),
            _in_order(series.values()),
            tuple(summed_gaps((*self.gaps, *other.gaps))),
            tuple(sorted((*self.parts, *other.parts))),
            self.digests,
            self.by_step,
        )


def common_shape(shapes: Sequence[Shape]) -> Shape:
    """Return the shape that all `shapes` share, with None for each size in which they differ.

    Return None where the number of dimensions differs, one of the shapes is None, or `shapes` is
    empty.
    """
    if None in shapes or len({len(shape or ()) for shape in shapes}) != 1:
        return None
    dims = zip(*(shape or () for shape in shapes), strict=True)
    return tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in dims)


def _pooled(parts: Sequence[tuple[int, SeriesFigures]]) -> MergedSeries:
    """Return one series merged over several ranks.

    parts: (rank, totals on that rank), at least one. All histograms are added in a single call,
        which is faster than pair by pair.
    """
    first = parts[0][1]
    figures = [part for _, part in parts]
    return MergedSeries(
        *(first.name, first.kind, first.mode),
        tuple(dict.fromkeys(dtype for one in figures for dtype in one.dtypes)),
        common_shape([shape for one in figures for shape in one.shapes]),
        tuple(rank for rank, _ in parts),
        sum(one.records for one in figures),
        min(one.first_order for one in figures),
        min(one.first_step for one in figures),
        max(one.last_step for one in figures),
        sum(one.bytes for one in figures),
        Log2Histogram.pooled(one.histogram for one in figures),
        tuple(sorted({scale for one in figures for scale in one.scales})),
    )


def _in_order(series: Iterable[MergedSeries]) -> tuple[MergedSeries, ...]:
    return tuple(sorted(series, key=lambda one: one.first_order))
