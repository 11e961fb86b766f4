"""The interface of the readers that this folder's modules use: columns and catalogue of a rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from anchorlib.store.format import Catalogue

__all__ = ["RankRows", "is_whole"]

Array = np.ndarray[Any, Any]


class RankRows(Protocol):
    """The committed rows of one rank; `RankReader` and `JoinedRank` have this interface."""

    @property
    def run(self) -> str:
        """The name of the run, as errors show it."""

    @property
    def rank(self) -> int:
        """The number of the rank."""

    @property
    def part(self) -> int:
        """The number of the part of the rank that is read; 0 for the first or only part."""

    @property
    def catalogue(self) -> Catalogue:
        """The catalogue of the rank, which says what the numbers in its rows mean."""

    @property
    def committed(self) -> int:
        """How many rows are committed."""

    @property
    def is_current(self) -> bool:
        """Whether the rank was not overwritten or removed since it was opened."""

    @property
    def series_ids(self) -> Array:
        """The series number of each row."""

    def column(self, name: str) -> Array:
        """Return column `name` of the table, with an entry for each committed row."""

    def cell(self, name: str, row: int) -> Any:
        """Return the entry of column `name` in row `row`."""


def is_whole(parts: Sequence[RankRows]) -> bool:
    """Return whether `parts` is one reader alone, which reads the whole rank.

    parts: readers of parts of one rank, at least one. Where several collectors share a rank, each
        holds a part. A reader has the whole rank if its part has number 0, and each attempt in it
        begins with the attempt's first record.
    """
    attempts = parts[0].catalogue.attempts
    return len(parts) == 1 and not any(one.first for one in attempts) and not parts[0].part
