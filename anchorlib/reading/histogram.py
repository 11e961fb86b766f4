"""Log2 histograms of stored records: read where one is stored, else counted from the values."""

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
    """The histogram of one tensor and kind over some steps, all ranks together."""

    name: str
    kind: str
    first_step: int
    last_step: int
    records: int
    histogram: Log2Histogram


def pooled(reader: RankReader, rows: np.ndarray[Any, Any]) -> Log2Histogram:
    """The histogram of all elements of these rows together."""
    stored = reader.column("hist_length")[rows] >= 0
    parts = [reader.pooled_pairs(rows[stored])] if stored.any() else []
    counted = (log2_histogram(raw, dtype) for raw, dtype in reader.blocks(rows[~stored]))
    return Log2Histogram.pooled([*parts, *counted])


def gradients_first(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The (name, kind) pairs that a selector without a kind means: gradients, if there are any.

    Each name's `grad`, else its `pass_grad`; names without a gradient are left out. Where no name
    has a gradient, each name's first kind. A gradient and a value are never pooled.
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
