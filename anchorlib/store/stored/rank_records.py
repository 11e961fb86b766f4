"""The interface of the readers that sealing uses: records with figures and values, and gaps."""

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
    """The records of one rank; `RankReader` and `JoinedRank` have this interface.

    The parameter `rows` of its methods holds numbers of committed rows (int64). Methods that read
    values or histograms raise DamagedError where these do not fit their checksums. Raw values are
    elements as they are stored, in a dtype that numpy has: bfloat16 as uint16, for example.
    """

    @property
    def catalogue_end(self) -> int:
        """The offset in bytes behind the last complete line of the catalogue."""

    def kept(self, rows: Array) -> Array:
        """Return which of these rows have stored values, bool of shape (len(rows),)."""

    def dtype_set(self, rows: Array) -> Sequence[str]:
        """Return the dtypes of these rows, each once."""

    def shape_codes(self, rows: Array) -> tuple[list[tuple[int, ...]], Array]:
        """Return the shapes of these rows, each once, and for each row the index of its shape."""

    def stored_bytes(self, rows: Array) -> int:
        """Return how many bytes the stored values of these rows have together."""

    def check_rows(self, rows: Array) -> None:
        """Raise DamagedError where one of these rows does not fit its checksum."""

    def stack(self, rows: Array) -> Array:
        """Return the raw stored values of rows of one dtype and shape: (len(rows), *shape).

        There is at least one row, and the values of all rows must be stored (`kept`).
        """

    def histograms(self, rows: Array) -> Sequence[Log2Histogram]:
        """Return the log2 histogram of each of these rows."""

    def bins(self, rows: Array) -> tuple[Array, Array, Array]:
        """Return three parallel arrays, with an entry for each bin of these rows' histograms.

        The arrays hold the index in `rows` of the row that the bin is of, the bin's exponent, and
        how many elements are in the bin.
        """

    def pooled_pairs(self, rows: Array) -> Log2Histogram:
        """Return one histogram of all elements of these rows.

        Each of the rows must have a stored histogram.
        """

    def gaps(self) -> Sequence[Gap]:
        """Return the gaps: how much was observed and not recorded, by series and reason."""

    def operations(self) -> Sequence[Mapping[str, Any]]:
        """Return the entries of the log of traced operations."""
