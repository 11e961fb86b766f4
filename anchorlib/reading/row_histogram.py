"""The log2 histogram of stored records: read from the record's row, else counted from values."""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib.store import RankReader
from anchorlib.summary import Log2Histogram, log2_histogram

__all__ = ["pooled"]


def pooled(reader: RankReader, rows: np.ndarray[Any, Any]) -> Log2Histogram:
    """Return one log2 histogram of all elements of the records in these rows of a rank's table.

    The values of rows without a stored histogram are read. Raises DamagedError where a histogram or
    values are not as they were written.

    rows: row numbers.
    """
    stored = reader.column("hist_length")[rows] >= 0
    parts = [reader.pooled_pairs(rows[stored])] if stored.any() else []
    counted = (log2_histogram(raw, dtype) for raw, dtype in reader.blocks(rows[~stored]))
    return Log2Histogram.pooled([*parts, *counted])
