"""The index of an archived run: the indices of its sealed ranks, merged.

    run1.zarr/index.json.zst    ranks, steps, gaps, and each series of all ranks: figures, histogram

With it a listing of a run, or a histogram of all records of a tensor, costs one request however
many ranks there are. It is one compressed line that ends with its checksum, as catalogue lines do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from anchorlib.errors import DamagedError, StoreError
from anchorlib.record import Gap, summed_gaps
from anchorlib.store.format import INDEX, encode, is_sound, items, mapping, step, text, texts, whole
from anchorlib.store.locations import Location, PartKey, listed_parts
from anchorlib.store.read.joined import joined_rank
from anchorlib.store.read.rank import RankReader
from anchorlib.store.seal import read_sealed
from anchorlib.store.seal.codecs import deflated, inflated
from anchorlib.store.seal.index import (
    MOST_BYTES,
    MOST_STEPS,
    RankFigures,
    SeriesFigures,
    figures_of,
    read_index,
)
from anchorlib.summary import Log2Histogram

__all__ = [
    "MergedSeries",
    "RunFigures",
    "archived_figures",
    "common_shape",
    "index_bytes",
    "parsed_index",
    "sealed_figures",
]

FORMAT: Final = "anchor-index"
VERSION: Final = 1
_MOST_RANKS: Final = 1 << 20

Shape = tuple[int | None, ...] | None
"""The shape that several records share: None in place of a size in which they differ, and None
alone where they differ in the number of dimensions."""


@dataclass(frozen=True, slots=True)
class MergedSeries:
    """All records of one tensor, kind and mode on all ranks; fields as in `SeriesFigures`."""

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
        """This series and the same series of other ranks, merged; the two share no rank."""
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
    """The figures of a run of sealed ranks, without its records.

    ranks: ascending. closed: whether all ranks are closed. steps: steps that have records,
    ascending. bytes: of stored values, all attempts together. series: in order of execution.
    parts: the parts of ranks that lie in several parts; every other rank is whole.
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

    @classmethod
    def of(cls, ranks: Iterable[RankFigures]) -> RunFigures:
        """The figures of several ranks, merged."""
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
        """The parts of one rank; a rank that is whole is its own part 0."""
        return tuple(key for key in self.parts if key[0] == rank) or ((rank, 0),)

    @property
    def keys(self) -> set[PartKey]:
        """The parts of all ranks; a rank that is whole is its own part 0."""
        apart = {rank for rank, _ in self.parts}
        return {*self.parts, *((rank, 0) for rank in self.ranks if rank not in apart)}

    def joined(self, other: RunFigures) -> RunFigures:
        """These figures and those of other ranks of the run, merged; the two share no rank."""
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
        )


def common_shape(shapes: Sequence[Shape]) -> Shape:
    """The shape that all of these share, with None for sizes that differ."""
    if None in shapes or len({len(shape or ()) for shape in shapes}) != 1:
        return None
    dims = zip(*(shape or () for shape in shapes), strict=True)
    return tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in dims)


def archived_figures(run: Location) -> RunFigures | None:
    """The figures in the index of the run at a location; None where its ranks have to be read.

    Ranks that were archived after the index was made are added. Costs one request, and one for
    every thousand ranks.
    """
    data = run.get(INDEX)
    if data is None:
        return None
    try:
        known = parsed_index(data)
    except DamagedError:  # the ranks themselves have the same figures
        return None
    listed, ranks = listed_parts(run), {*known.ranks}
    # A further part of a rank may have been archived after the index was made.
    if not ranks or {key for key in listed if key[0] in ranks} != known.keys:
        return None
    missing = sorted({rank for rank, _ in listed} - ranks)
    later = [*sealed_figures(run, missing, listed)]
    if len(later) < len(missing):  # a rank is live, or its sealing is not finished
        return None
    return known.joined(RunFigures.of(later)) if later else known


def sealed_figures(
    run: Location, ranks: Iterable[int], listed: Sequence[PartKey]
) -> Iterator[RankFigures]:
    """The figures of those of these ranks that are closed and sealed, from their indices.

    listed: all parts of the run. A rank in several parts is counted from its rows, and left out
    where records are missing between its parts.
    """
    parts: dict[int, list[int]] = {}
    for rank, part in listed:
        parts.setdefault(rank, []).append(part)
    for rank in ranks:
        own = parts.get(rank, [])
        if any(read_sealed(run, rank, part) is None for part in own):
            continue
        one = read_index(run, rank) if own == [0] else None
        if one is None or one.is_part:
            one = _joined_figures(run, rank, own)
        if one is not None and one.state == "closed":
            yield one


def _joined_figures(run: Location, rank: int, parts: Sequence[int]) -> RankFigures | None:
    """The figures of a rank in parts; None where records are missing between them."""
    if not parts:
        return None
    try:
        joined = joined_rank([RankReader(run, rank, part=part) for part in parts], f"rank {rank}")
    except DamagedError:
        raise
    except StoreError:
        return None
    found = figures_of(joined)
    # A part is made when its session moves to that collector, maybe after its last record.
    written = max(found.written_ns, *(one.started_ns for one in joined.catalogue.attempts))
    return replace(found, written_ns=written, parts=tuple(parts))


def index_bytes(figures: RunFigures) -> bytes:
    """The bytes of the index object. Raises ValueError where readers would refuse its size."""
    told = {
        "format": FORMAT,
        "version": VERSION,
        "ranks": _runs(figures.ranks),
        "closed": figures.closed,
        "steps": _runs(figures.steps),
        "bytes": figures.bytes,
        **({"parts": figures.parts} if figures.parts else {}),
        "created_ns": figures.created_ns,
        "written_ns": figures.written_ns,
        "series": [_told(one) for one in figures.series],
        "gaps": [
            [gap.name, gap.kind, gap.mode, gap.reason, gap.count, gap.first_step, gap.last_step]
            for gap in figures.gaps
        ],
    }
    line = encode(told)
    if len(line) > MOST_BYTES:
        raise ValueError(f"the index of a run would be larger than {MOST_BYTES} bytes")
    return deflated(line)


def parsed_index(data: bytes) -> RunFigures:
    """The figures in an index object.

    Raises DamagedError for a damaged one, StoreError for one of a later version.
    """
    try:
        line = inflated(data, MOST_BYTES)
        if not line.endswith(b"\n") or not is_sound(line[:-1]):
            raise ValueError("it does not fit its checksum")
        told = mapping(json.loads(line))
        if told["format"] != FORMAT:
            raise ValueError("it is no index of a run")
        if whole(told["version"]) > VERSION:
            raise StoreError(
                f"the run's index was written in version {told['version']}, and this anchorlib "
                f"knows versions up to {VERSION}: read it with a newer anchorlib"
            )
        return _read(told)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(f"the run's index is damaged: {error}") from error


def _pooled(parts: Sequence[tuple[int, SeriesFigures]]) -> MergedSeries:
    """One series merged over several ranks; all histograms are added in one go."""
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


def _told(one: MergedSeries) -> dict[str, Any]:
    histogram = one.histogram
    return {
        "name": one.name,
        "kind": one.kind,
        "mode": one.mode,
        "dtypes": one.dtypes,
        "shape": one.shape,
        "ranks": _runs(one.ranks),
        "records": one.records,
        "first_order": one.first_order,
        "first_step": one.first_step,
        "last_step": one.last_step,
        "bytes": one.bytes,
        "scales": one.scales,
        "counts": [histogram.zero, histogram.nan, histogram.inf, histogram.subnormal],
        "bins": [[exponent, count] for exponent, count in histogram.bins.items()],
    }


def _read(told: Mapping[str, Any]) -> RunFigures:
    ranks = _numbers(told["ranks"], _MOST_RANKS)
    known = _Ranks(ranks)
    series = tuple(_read_series(mapping(one), known) for one in items(told["series"]))
    return RunFigures(
        ranks=ranks,
        closed=told["closed"] is True,
        steps=_numbers(told["steps"], MOST_STEPS),
        bytes=whole(told["bytes"]),
        created_ns=whole(told["created_ns"]),
        written_ns=whole(told["written_ns"]),
        series=series,
        gaps=tuple(_read_gap(items(one)) for one in items(told["gaps"])),
        parts=_read_parts(told.get("parts", ()), known),
    )


def _read_parts(told: Any, known: _Ranks) -> tuple[PartKey, ...]:
    """The parts in an index. Raises ValueError for a part of a rank that the run does not have."""
    found = tuple((whole(rank), whole(part)) for rank, part in map(items, items(told)))
    if not all(known.has(rank) for rank, _ in found):
        raise ValueError("it speaks of a part of no rank")
    return found


def _read_series(told: Mapping[str, Any], known: _Ranks) -> MergedSeries:
    zero, nan, inf, subnormal = map(whole, items(told["counts"]))
    bins = {step(exponent): whole(count) for exponent, count in map(items, items(told["bins"]))}
    shape = told["shape"]
    return MergedSeries(
        name=text(told["name"]),
        kind=text(told["kind"]),
        mode=text(told["mode"]),
        dtypes=texts(told["dtypes"]),
        shape=None if shape is None else tuple(map(_dimension, items(shape))),
        ranks=known.of(told["ranks"]),
        records=whole(told["records"]),
        first_order=whole(told["first_order"]),
        first_step=step(told["first_step"]),
        last_step=step(told["last_step"]),
        bytes=whole(told["bytes"]),
        histogram=Log2Histogram(bins, zero=zero, nan=nan, inf=inf, subnormal=subnormal),
        scales=tuple(map(_number, items(told["scales"]))),
    )


def _number(told: Any) -> float:
    if not isinstance(told, float):
        raise ValueError("a loss scale is no number")
    return told


def _dimension(told: Any) -> int | None:
    return None if told is None else whole(told)


def _read_gap(told: Sequence[Any]) -> Gap:
    name, kind, mode, reason, count, first, last = told
    words = (text(name), text(kind), text(mode), text(reason))
    return Gap(*words, count=whole(count), first_step=step(first), last_step=step(last))


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Ascending numbers as ranges start … stop - 1."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1][1] = number + 1
        else:
            found.append([number, number + 1])
    return found


class _Ranks:
    """The rank lists of series: equal lists, which are the rule, are held in memory once."""

    def __init__(self, all_ranks: tuple[int, ...]) -> None:
        self._all = frozenset(all_ranks)
        self._most = len(all_ranks)
        self._room = MOST_STEPS  # most numbers of all different lists together
        self._known: dict[str, tuple[int, ...]] = {}

    def has(self, rank: int) -> bool:
        """Whether the run has a rank."""
        return rank in self._all

    def of(self, told: Any) -> tuple[int, ...]:
        """The ranks of one series. Raises ValueError where they are more than the run has."""
        key = json.dumps(told)
        if key not in self._known:
            self._known[key] = _numbers(told, min(self._most, self._room))
            self._room -= len(self._known[key])
        return self._known[key]


def _numbers(told: Any, most: int) -> tuple[int, ...]:
    found: list[int] = []
    for start, stop in (map(step, items(one)) for one in items(told)):
        if not 0 <= stop - start <= most - len(found):
            raise ValueError("it speaks of more ranks or steps than there can be")
        found += range(start, stop)
    return tuple(found)
