"""Log2 histograms of stored records: read from the record's row, else counted from its values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlib.store import RankReader
from anchorlib.summary import Log2Histogram, log2_histogram

__all__ = ["TensorHistogram", "gradients_first", "pooled"]

GRADIENTS = ("grad", "pass_grad")


@dataclass(frozen=True, slots=True)
class TensorHistogram:
    """The log2 histogram of one tensor and kind over some steps, all ranks together.

    records: how many records were counted.
    """

    name: str
    kind: str
    first_step: int
    last_step: int
    records: int
    histogram: Log2Histogram


def pooled(reader: RankReader, rows: np.ndarray[Any, Any]) -> Log2Histogram:
    """Returns one log2 histogram of all elements of the records in these rows of a rank's table."""
    stored = reader.column("hist_length")[rows] >= 0
    parts = [reader.pooled_pairs(rows[stored])] if stored.any() else []
    counted = (log2_histogram(raw, dtype) for raw, dtype in reader.blocks(rows[~stored]))
    return Log2Histogram.pooled([*parts, *counted])


def gradients_first(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Chooses one kind for each name, for a selector that gives no kind: gradients, if any.

    pairs: all (name, kind) pairs that the selector matches. Returns the pairs it means: for each
    name `grad`, else `pass_grad`; names without a gradient are left out. Where no name has a
    gradient, each name has its first kind. So a gradient and a value never share a histogram.
    """
    for kinds in (GRADIENTS, tuple(dict.fromkeys(kind for _, kind in pairs))):
        gradients = [_first_kind(name, kinds, pairs) for name in dict.fromkeys(n for n, _ in pairs)]
        if chosen := [pair for pair in gradients if pair is not None]:
            return chosen
    return []


def _first_kind(
    name: str, kinds: Iterable[str], pairs: Sequence[tuple[str, str]]
) -> tuple[str, str] | None:
    return next(((name, kind) for kind in kinds if (name, kind) in pairs), None)
