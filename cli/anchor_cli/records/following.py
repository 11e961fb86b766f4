"""Follows a run while it is recorded, for `anchor tail`: yields its new records and gaps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from anchor_cli.records.summarised import summarised
from anchorlib.reading import Series

if TYPE_CHECKING:
    from anchorlib import Run
    from anchorlib.store import RankReader

__all__ = ["Following"]

Wanted = Callable[[str, str], bool]
Array = np.ndarray[Any, Any]


class Following:
    """Finds the records and gaps of a run that were not reported yet, while it is being recorded.

    A gap counts observations that were not recorded, or not with their values. To report is to
    yield from `records` or `gaps`.

    wanted: called with name and kind; returns whether that tensor is to be reported.
    """

    def __init__(self, run: Run, wanted: Wanted) -> None:
        self._run = run
        self._wanted = wanted
        self._seen: dict[int, int] = {}
        self._lost: dict[tuple[str, ...], int] = {}

    def skip(self, but: int) -> None:
        """Marks the present records as reported, except the last `but` records of each rank."""
        for rank in self._run.ranks:
            _, rows = self._run.rows(rank)
            if len(rows) > but:
                self._seen[rank] = int(np.sort(rows)[len(rows) - but - 1]) + 1

    def records(self) -> Iterator[dict[str, Any]]:
        """Yields the wanted records since the last call, as the dicts of `anchor stats --json`.

        The records come rank by rank, within a rank in the order in which they were written. Where
        a rank has fewer records than at the last call, because the run was recorded anew, all of
        its records are yielded.
        """
        for rank in self._run.ranks:
            reader, rows = self._run.rows(rank)
            # Fewer rows than were seen: the run was recorded anew under its name.
            seen = self._seen.get(rank, 0) if self._seen.get(rank, 0) <= reader.committed else 0
            self._seen[rank] = reader.committed
            yield from self._summaries(reader, np.sort(rows[rows >= seen]))

    def _summaries(self, reader: RankReader, rows: Array) -> Iterator[dict[str, Any]]:
        owner = reader.series_ids[rows]
        entries: list[tuple[int, dict[str, Any]]] = []
        for number in np.unique(owner).tolist():
            entry = reader.catalogue.series[number]
            if self._wanted(entry.name, entry.kind):
                own = rows[owner == number]
                summaries = summarised(Series(reader, entry, own))
                entries += zip(own.tolist(), summaries, strict=True)
        yield from (summaries for _, summaries in sorted(entries, key=lambda pair: pair[0]))

    def gaps(self) -> Iterator[tuple[str, str, str, int]]:
        """Yields (name, kind, reason, number) of observations that were lost since the last call.

        Lost are observations of wanted tensors that were not recorded, or not with their values;
        `number` says how many. The first call yields all that were lost before.
        """
        for gap in self._run.gaps():
            key = (gap.name, gap.kind, gap.mode, gap.reason)
            known = self._lost.get(key, 0)
            if gap.count > known and self._wanted(gap.name, gap.kind):
                self._lost[key] = gap.count
                yield gap.name, gap.kind, gap.reason, gap.count - known
