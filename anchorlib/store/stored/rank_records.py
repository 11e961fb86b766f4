"""What sealing asks of a rank: its records, with their figures and values, and what it left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from anchorlib.record import Gap
from anchorlib.store.stored.rank_rows import RankRows
from anchorlib.summary import Log2Histogram

__all__ = ["RankRecords"]

Array = np.ndarray[Any, Any]


class RankRecords(RankRows, Protocol):
    """The records of one rank, as a `RankReader` or a `JoinedRank` reads them.

    rows: numbers of committed rows, int64. Each method that reads values or histograms raises
    DamagedError where they are not those that were written.
    """

    @property
    def catalogue_end(self) -> int:
        """How many bytes of the catalogue are committed."""

    def kept(self, rows: Array) -> Array:
        """Which of these rows have stored values, bool of shape (len(rows),)."""

    def dtype_set(self, rows: Array) -> Sequence[str]:
        """The different dtypes of these rows."""

    def shape_codes(self, rows: Array) -> tuple[list[tuple[int, ...]], Array]:
        """The different shapes of these rows, and for each row which of these is its shape."""

    def stored_bytes(self, rows: Array) -> int:
        """Bytes of the stored values of these rows."""

    def check_rows(self, rows: Array) -> None:
        """Raise DamagedError where a row does not fit its checksum."""

    def stack(self, rows: Array) -> Array:
        """Raw storage of rows of one dtype and shape whose values are kept, (len(rows), *shape)."""

    def histograms(self, rows: Array) -> Sequence[Log2Histogram]:
        """The log2 histogram of each of these rows."""

    def bins(self, rows: Array) -> tuple[Array, Array, Array]:
        """Of every bin of these rows' histograms: the place of its row, its exponent, its count."""

    def pooled_pairs(self, rows: Array) -> Log2Histogram:
        """One histogram of all elements of these rows, each of which has a stored histogram."""

    def gaps(self) -> Sequence[Gap]:
        """What was observed and not recorded."""

    def operations(self) -> Sequence[Mapping[str, Any]]:
        """The entries of the log of operations."""
