"""The index of a sealed rank: figures of each series, so that readers need not read the table.

The index holds the figures that listings and pooled histograms need. They are counted over the
visible rows when the rank is sealed, from rows that fit their checksums. Where a resumed run
recorded a step, pass, call and phase of a series again, the last attempt's rows are visible.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from anchorlib.errors import DamagedError
from anchorlib.record import Gap
from anchorlib.store.format import (
    encode,
    items,
    mapping,
    rank_name,
    read_gap,
    step,
    text,
    texts,
    whole,
)
from anchorlib.store.locations import Location
from anchorlib.store.seal.index_format import (
    MOST_BYTES,
    MOST_STEPS,
    loss_scale,
    numbers_of,
    ranges_of,
    read_line,
)
from anchorlib.store.seal.rank_digests import RankDigests, digests_of, read_digests
from anchorlib.store.seal.step_counting import step_figures_of
from anchorlib.store.seal.step_figures import StepFigures
from anchorlib.store.seal.step_format import read_step_figures, step_figures_document
from anchorlib.store.stored import RankRecords, is_whole, visible_rows
from anchorlib.summary import Log2Histogram

if TYPE_CHECKING:
    from anchorlib.store.format import SeriesEntry

__all__ = [
    "INDEX",
    "RankFigures",
    "SeriesFigures",
    "figures_of",
    "index_document",
    "read_index",
]

Array = np.ndarray[Any, Any]
INDEX: Final = "index.json.zst"
_APART: Final = ("zero", "nan", "inf", "subnormal")
_AT_ONCE: Final = 1 << 14  # rows whose histograms are made at a time


@dataclass(frozen=True, slots=True)
class SeriesFigures:
    """Totals over the visible records of one tensor, kind and mode on one rank.

    Of records that a resumed run recorded again, only the later ones are counted.

    dtypes, shapes: the different dtypes (torch's names) and shapes of the records, each once.
    first_order: the `order` (number in the order of execution) of the first record.
    first_step, last_step: the smallest and the largest step of a record.
    bytes: the size of all stored values. minimum, maximum: over all finite elements, None where
        there are none. histogram: one histogram of all elements of all records. scales: the
        different loss scales of the records, ascending; 1.0 where no loss scale was used.
    """

    name: str
    kind: str
    mode: str
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    records: int
    first_order: int
    first_step: int
    last_step: int
    bytes: int
    minimum: float | None
    maximum: float | None
    histogram: Log2Histogram
    scales: tuple[float, ...] = (1.0,)


@dataclass(frozen=True, slots=True)
class RankFigures:
    """The totals of a sealed rank, without its records: the content of its index.

    uid: the id of the rank. state: "closed" or "open".
    records, bytes: how many records the rank has, and how many bytes their stored values have, also
        counting records that were recorded again later. steps: the steps that have records,
        ascending. created_ns, written_ns: when the rank was made, and when its newest record was
        observed, in nanoseconds since the epoch.
    series: in order of execution. gaps: how many observations were not recorded, by series and
        reason.
    parts: the numbers of the rank's parts that are counted.
    is_part: whether these are totals of one part of several, and not of the complete rank.
    digests: hashes of the records of each range of steps. by_step: counts, extremes and histograms
        of each step. Both are None for a part, and in the index of an older version.
    """

    rank: int
    uid: str
    state: str
    records: int
    bytes: int
    created_ns: int
    written_ns: int
    steps: tuple[int, ...]
    series: tuple[SeriesFigures, ...]
    gaps: tuple[Gap, ...]
    parts: tuple[int, ...] = (0,)
    is_part: bool = False
    digests: RankDigests | None = None
    by_step: StepFigures | None = None


def read_index(run: Location, rank: int, part: int = 0) -> RankFigures | None:
    """Read the index of one sealed (archived) rank, or of a part of it, in one request.

    Return the totals that the index states; None where the rank or part has no index. Raises
    DamagedError for a damaged index.
    """
    key = f"{rank_name(rank, part)}/{INDEX}"
    data = run.get(key, 0, MOST_BYTES)
    if data is None:
        return None
    try:
        document = read_line(data)
        if whole(document["rank"]) != rank:
            raise ValueError(f"it is that of rank {document['rank']}")
        return _read_rank(document, part)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(f"{key} is damaged: {error}") from error


def index_document(figures: RankFigures) -> bytes:
    """Return the index of a sealed rank as one line of JSON, before it is compressed."""
    document = asdict(replace(figures, digests=None, by_step=None))
    del document["parts"], document["digests"], document["by_step"]
    if not figures.is_part:
        del document["is_part"]
    if figures.digests is not None:
        document["digests"] = figures.digests.document()
    if figures.by_step is not None:
        document["by_step"] = step_figures_document(figures.by_step)
    document["steps"] = ranges_of(figures.steps)
    for one, series in zip(document["series"], figures.series, strict=True):
        histogram = series.histogram
        one["histogram"] = {
            **{name: getattr(histogram, name) for name in _APART},
            "bins": [[exponent, count] for exponent, count in histogram.bins.items()],
        }
    return encode(document)


def figures_of(reader: RankRecords) -> RankFigures:
    """Count the totals that the index of a sealed rank holds, from the rank's rows.

    Raises DamagedError where its rows are damaged.
    """
    catalogue, rows = reader.catalogue, visible_rows(reader)
    owner = reader.series_ids[rows]
    order = np.argsort(owner, kind="stable")
    ends = np.searchsorted(owner[order], np.arange(len(catalogue.series) + 1))
    parts = zip(catalogue.series, np.split(rows[order], ends)[1:-1], strict=True)
    series = [_series(reader, entry, own) for entry, own in parts if len(own)]
    is_part = not is_whole([reader])
    return RankFigures(
        rank=reader.rank,
        uid=catalogue.uid,
        state=catalogue.state,
        records=reader.committed,
        bytes=reader.stored_bytes(np.arange(reader.committed)),
        created_ns=catalogue.created_ns,
        written_ns=int(reader.column("time_ns").max(initial=catalogue.created_ns)),
        steps=tuple(np.unique(reader.column("step")).tolist()),
        series=tuple(sorted(series, key=lambda one: one.first_order)),
        gaps=tuple(reader.gaps()),
        parts=(reader.part,),
        is_part=is_part,
        digests=None if is_part else digests_of(reader),
        by_step=None if is_part else step_figures_of(reader),
    )


def _series(reader: RankRecords, entry: SeriesEntry, rows: Array) -> SeriesFigures:
    steps = reader.column("step")[rows]
    shapes, codes = reader.shape_codes(rows)
    return SeriesFigures(
        name=entry.name,
        kind=entry.kind,
        mode=entry.mode,
        dtypes=tuple(reader.dtype_set(rows)),
        shapes=tuple(shapes[code] for code in dict.fromkeys(codes.tolist())),
        records=len(rows),
        first_order=int(reader.column("order")[rows[0]]),
        first_step=int(steps.min()),
        last_step=int(steps.max()),
        bytes=reader.stored_bytes(rows),
        minimum=_finite(np.fmin.reduce(reader.column("min")[rows])),
        maximum=_finite(np.fmax.reduce(reader.column("max")[rows])),
        histogram=Log2Histogram.pooled(_histograms(reader, rows)),
        scales=tuple(np.unique(reader.column("scale")[rows]).tolist()),
    )


def _histograms(reader: RankRecords, rows: Array) -> Iterable[Log2Histogram]:
    own = reader.column("hist_length")[rows] >= 0
    yield reader.pooled_pairs(rows[own])
    made = rows[~own]  # without a stored histogram: it is counted from their few values
    for start in range(0, len(made), _AT_ONCE):
        yield from reader.histograms(made[start : start + _AT_ONCE])


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _read_rank(document: Mapping[str, Any], part: int) -> RankFigures:
    return RankFigures(
        rank=whole(document["rank"]),
        uid=text(document["uid"]),
        state=text(document["state"]),
        records=whole(document["records"]),
        bytes=whole(document["bytes"]),
        created_ns=whole(document["created_ns"]),
        written_ns=whole(document["written_ns"]),
        steps=numbers_of(document["steps"], min(whole(document["records"]), MOST_STEPS)),
        series=tuple(_read_series(mapping(one)) for one in items(document["series"])),
        gaps=tuple(read_gap(mapping(one)) for one in items(document["gaps"])),
        parts=(part,),
        is_part=document.get("is_part", False) is True,
        digests=read_digests(document["digests"]) if "digests" in document else None,
        by_step=read_step_figures(document["by_step"]) if "by_step" in document else None,
    )


def _read_series(fields: Mapping[str, Any]) -> SeriesFigures:
    one = mapping(fields["histogram"])
    bins = [(step(exponent), whole(count)) for exponent, count in map(items, items(one["bins"]))]
    figures = {name: whole(one[name]) for name in _APART}
    return SeriesFigures(
        name=text(fields["name"]),
        kind=text(fields["kind"]),
        mode=text(fields["mode"]),
        dtypes=texts(fields["dtypes"]),
        shapes=tuple(tuple(map(whole, items(shape))) for shape in items(fields["shapes"])),
        records=whole(fields["records"]),
        first_order=whole(fields["first_order"]),
        first_step=step(fields["first_step"]),
        last_step=step(fields["last_step"]),
        bytes=whole(fields["bytes"]),
        minimum=_extreme(fields["minimum"]),
        maximum=_extreme(fields["maximum"]),
        histogram=Log2Histogram(dict(bins), **figures),
        scales=tuple(map(loss_scale, items(fields["scales"]))),
    )


def _extreme(value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, float):
        raise ValueError("an extreme is no number")
    return value
