"""The summary of each record as a dict: the rows of `anchor stats`, `tail` and `export --csv`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anchorlib import Series
    from anchorlib.reading import MapFunction

__all__ = ["summaries", "summarised"]


def summarised(series: Series) -> Iterator[dict[str, Any]]:
    """Yields for each record of a series a dict of its coordinates and its summary.

    The keys are tensor, kind, mode, rank and all columns of `Series.columns`. Raises DamagedError
    where a row does not fit its checksum.
    """
    return _entries(series, _columns(series))


def summaries(parts: Sequence[Series], over: MapFunction) -> list[dict[str, Any]]:
    """Returns the dicts that `summarised` yields, for the records of several series.

    Raises DamagedError where a row does not fit its checksum.

    parts: the series, in the order of the result.
    over: the map function by which blocks of records are read.
    """
    from anchorlib.reading import map_blocks  # loads numpy, which help does without

    of_parts = zip(parts, map_blocks(_columns, parts, over), strict=True)
    return [
        entry for series, blocks in of_parts for some in blocks for entry in _entries(series, some)
    ]


def _columns(series: Series) -> dict[str, list[Any]]:
    return {name: column.tolist() for name, column in series.columns.checked().items()}


def _entries(series: Series, columns: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    head = {"tensor": series.name, "kind": series.kind, "mode": series.mode, "rank": series.rank}
    for values in zip(*columns.values(), strict=True):
        yield {**head, **dict(zip(columns, values, strict=True))}
