"""What this folder asks of a rank whose rows it reads: its columns and its catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from anchorlib.store.format import Catalogue

__all__ = ["RankRows", "is_whole"]

Array = np.ndarray[Any, Any]


class RankRows(Protocol):
    """The committed rows of one rank, as a `RankReader` or a `JoinedRank` has them."""

    @property
    def run(self) -> str:
        """The name of the run, as errors show it."""

    @property
    def rank(self) -> int:
        """The number of the rank."""

    @property
    def part(self) -> int:
        """The number of the part of the rank."""

    @property
    def catalogue(self) -> Catalogue:
        """What the numbers in the rows mean."""

    @property
    def committed(self) -> int:
        """How many rows are committed."""

    @property
    def is_current(self) -> bool:
        """Whether the rank that was opened is still the one in the store."""

    @property
    def series_ids(self) -> Array:
        """The number of each row's series."""

    def column(self, name: str) -> Array:
        """One column of all committed rows."""

    def cell(self, name: str, row: int) -> Any:
        """One column of one row."""


def is_whole(parts: Sequence[RankRows]) -> bool:
    """Whether these parts are one part that is the whole rank: number 0, from the first record."""
    attempts = parts[0].catalogue.attempts
    return len(parts) == 1 and not any(one.first for one in attempts) and not parts[0].part
