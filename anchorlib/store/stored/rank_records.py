"""What sealing needs from a reader of a rank: records, with figures and values, and gaps."""

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
        DamagedError where they do not fit their checksums.
    """

    @property
    def catalogue_end(self) -> int:
        """The offset in bytes behind the last complete line of the catalogue."""

    def kept(self, rows: Array) -> Array:
        """Returns which of these rows have stored values, bool of shape (len(rows),)."""

    def dtype_set(self, rows: Array) -> Sequence[str]:
        """Returns the different dtypes of these rows."""

    def shape_codes(self, rows: Array) -> tuple[list[tuple[int, ...]], Array]:
        """Returns the different shapes of these rows, and each row's index in that list."""

    def stored_bytes(self, rows: Array) -> int:
        """Returns how many bytes the stored values of these rows have together."""

    def check_rows(self, rows: Array) -> None:
        """Raises DamagedError where a row does not fit its checksum."""

    def stack(self, rows: Array) -> Array:
        """Returns the raw stored values of rows of one dtype and shape: (len(rows), *shape).

        The values of all these rows must be stored (`kept`).
        """

    def histograms(self, rows: Array) -> Sequence[Log2Histogram]:
        """Returns the log2 histogram of each of these rows."""

    def bins(self, rows: Array) -> tuple[Array, Array, Array]:
        """Returns three parallel arrays over all bins of these rows' histograms.

        They hold the row's index in `rows`, the exponent and the count.
        """

    def pooled_pairs(self, rows: Array) -> Log2Histogram:
        """Returns one histogram of all elements of these rows.

        Each of the rows must have a stored histogram.
        """

    def gaps(self) -> Sequence[Gap]:
        """Returns the gaps: what was observed and not recorded."""

    def operations(self) -> Sequence[Mapping[str, Any]]:
        """Returns the entries of the log of traced operations."""
