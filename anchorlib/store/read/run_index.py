"""The index of an archived run: the indices of its sealed ranks, merged into one object.

    run1.zarr/index.json.zst    ranks, steps, gaps, and each series of all ranks: figures, histogram

With it a listing of a run, or a histogram of all records of a tensor, costs one request however
many ranks there are. The object is one compressed line that ends with its checksum, as catalogue
lines do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from anchorlib.errors import DamagedError, StoreError
from anchorlib.record import Gap
from anchorlib.store.format import INDEX, encode, items, mapping, step, text, texts, whole
from anchorlib.store.locations import Location, PartKey, listed_parts
from anchorlib.store.read.joined import joined_rank
from anchorlib.store.read.rank import RankReader
from anchorlib.store.read.run_figures import MergedSeries, RunFigures
from anchorlib.store.seal import (
    MOST_BYTES,
    MOST_STEPS,
    RankFigures,
    RankLists,
    deflated,
    figures_of,
    loss_scale,
    numbers_of,
    ranges_of,
    read_index,
    read_line,
    read_sealed,
)
from anchorlib.summary import Log2Histogram

__all__ = [
    "archived_figures",
    "index_bytes",
    "parsed_index",
    "sealed_figures",
]

FORMAT: Final = "anchor-index"
VERSION: Final = 1
_MOST_RANKS: Final = 1 << 20
_NAME: Final = re.compile("[0-9a-f]{64}")


def archived_figures(run: Location) -> RunFigures | None:
    """Read the totals in the index of a run; None where the ranks themselves have to be read.

    The result is None without an index, and where the index is damaged, the ranks in the index have
    other parts now, or a rank that is not in the index is not closed and sealed. Ranks that were
    archived after the index was made are added from their own indices. Costs one request for the
    index, one to list every thousand ranks, and a few for each rank that is added. Raises
    StoreError where a later version wrote the index, DamagedError where an added rank is damaged.
    """
    data = run.get(INDEX)
    if data is None:
        return None
    try:
        known = parsed_index(data)
    except DamagedError:  # the indices of the ranks have the same figures
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
    """Yield the totals of each closed and sealed rank among `ranks`, from the rank's index.

    A rank that is not closed, or has a part that is not sealed, is left out. A rank in several
    parts, or without an index, is counted from its rows; it is left out where records are missing
    between its parts. Raises DamagedError where an index or a part is damaged.

    ranks: the numbers of the ranks to look at. listed: all parts of the run, as (rank, part).
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
    """Return the totals of a rank, counted from the rows of all its parts.

    parts: the numbers of the rank's parts. Return None if there are none, or if records between the
        parts are missing. Raises DamagedError where a part is damaged.
    """
    if not parts:
        return None
    try:
        joined = joined_rank([RankReader(run, rank, part=part) for part in parts], f"rank {rank}")
    except DamagedError:
        raise
    except StoreError:
        return None
    figures = figures_of(joined)
    # A part is made when its session moves to that collector, maybe after its last record.
    written = max(figures.written_ns, *(one.started_ns for one in joined.catalogue.attempts))
    return replace(figures, written_ns=written, parts=tuple(parts))


def index_bytes(figures: RunFigures) -> bytes:
    """Return the bytes of the index object of a run with these totals.

    Raises ValueError where the object would be larger than readers accept.
    """
    document = {
        "format": FORMAT,
        "version": VERSION,
        "ranks": ranges_of(figures.ranks),
        "closed": figures.closed,
        "steps": ranges_of(figures.steps),
        "bytes": figures.bytes,
        **({"parts": figures.parts} if figures.parts else {}),
        **({"digests": figures.digests} if figures.digests else {}),
        **({"by_step": figures.by_step} if figures.by_step else {}),
        "created_ns": figures.created_ns,
        "written_ns": figures.written_ns,
        "series": [_series_fields(one) for one in figures.series],
        "gaps": [
            [gap.name, gap.kind, gap.mode, gap.reason, gap.count, gap.first_step, gap.last_step]
            for gap in figures.gaps
        ],
    }
    line = encode(document)
    if len(line) > MOST_BYTES:
        raise ValueError(f"the index of a run would be larger than {MOST_BYTES} bytes")
    return deflated(line)


def parsed_index(data: bytes) -> RunFigures:
    """Return the totals that a run's index object, whose bytes are `data`, states.

    Raises DamagedError for a damaged index, StoreError for an index that a later version wrote.
    """
    try:
        document = read_line(data)
        if document["format"] != FORMAT:
            raise ValueError("it is no index of a run")
        if whole(document["version"]) > VERSION:
            raise StoreError(
                f"the run's index was written in version {document['version']}, and this anchorlib "
                f"knows versions up to {VERSION}: read it with a newer anchorlib"
            )
        return _read(document)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(f"the run's index is damaged: {error}") from error


def _series_fields(one: MergedSeries) -> dict[str, Any]:
    histogram = one.histogram
    return {
        "name": one.name,
        "kind": one.kind,
        "mode": one.mode,
        "dtypes": one.dtypes,
        "shape": one.shape,
        "ranks": ranges_of(one.ranks),
        "records": one.records,
        "first_order": one.first_order,
        "first_step": one.first_step,
        "last_step": one.last_step,
        "bytes": one.bytes,
        "scales": one.scales,
        "counts": [histogram.zero, histogram.nan, histogram.inf, histogram.subnormal],
        "bins": [[exponent, count] for exponent, count in histogram.bins.items()],
    }


def _read(document: Mapping[str, Any]) -> RunFigures:
    ranks = numbers_of(document["ranks"], _MOST_RANKS)
    known = RankLists(ranks)
    series = tuple(_read_series(mapping(one), known) for one in items(document["series"]))
    return RunFigures(
        ranks=ranks,
        closed=document["closed"] is True,
        steps=numbers_of(document["steps"], MOST_STEPS),
        bytes=whole(document["bytes"]),
        created_ns=whole(document["created_ns"]),
        written_ns=whole(document["written_ns"]),
        series=series,
        gaps=tuple(_read_gap(items(one)) for one in items(document["gaps"])),
        parts=_read_parts(document.get("parts", ()), known),
        digests=_read_name(document.get("digests", "")),
        by_step=_read_name(document.get("by_step", "")),
    )


def _read_name(value: Any) -> str:
    """Return the SHA-256, in hex, by which an index refers to an object; "" if it refers to none.

    value: what the index has in this place. Raises ValueError for any other text, because the text
    becomes part of a file name.
    """
    name = text(value)
    if name and not _NAME.fullmatch(name):
        raise ValueError("the name of an object is no SHA-256")
    return name


def _read_parts(pairs: Any, known: RankLists) -> tuple[PartKey, ...]:
    """Return a pair (rank, part) for each part that an index lists.

    pairs: the list in the index. known: the ranks that the run has by this index. Raises ValueError
    for a part of another rank.
    """
    parts = tuple((whole(rank), whole(part)) for rank, part in map(items, items(pairs)))
    if not all(known.has(rank) for rank, _ in parts):
        raise ValueError("it speaks of a part of no rank")
    return parts


def _read_series(fields: Mapping[str, Any], known: RankLists) -> MergedSeries:
    zero, nan, inf, subnormal = map(whole, items(fields["counts"]))
    bins = {step(exponent): whole(count) for exponent, count in map(items, items(fields["bins"]))}
    shape = fields["shape"]
    return MergedSeries(
        name=text(fields["name"]),
        kind=text(fields["kind"]),
        mode=text(fields["mode"]),
        dtypes=texts(fields["dtypes"]),
        shape=None if shape is None else tuple(map(_dimension, items(shape))),
        ranks=known.of(fields["ranks"]),
        records=whole(fields["records"]),
        first_order=whole(fields["first_order"]),
        first_step=step(fields["first_step"]),
        last_step=step(fields["last_step"]),
        bytes=whole(fields["bytes"]),
        histogram=Log2Histogram(bins, zero=zero, nan=nan, inf=inf, subnormal=subnormal),
        scales=tuple(map(loss_scale, items(fields["scales"]))),
    )


def _dimension(value: Any) -> int | None:
    return None if value is None else whole(value)


def _read_gap(fields: Sequence[Any]) -> Gap:
    name, kind, mode, reason, count, first, last = fields
    words = (text(name), text(kind), text(mode), text(reason))
    return Gap(*words, count=whole(count), first_step=step(first), last_step=step(last))
