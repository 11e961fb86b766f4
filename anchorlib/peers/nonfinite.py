"""Finds ranks with NaN where most of the other ranks have none."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from anchorlib.peers.grid import RankGrid
from anchorlib.peers.outlier import Departure

__all__ = ["departures_of_nan"]

COMMON = 4  # where more than one rank in four has NaN at some time, the data has them
ACTIVATIONS = "value"  # the kind in which infinities are usual, as in masks of attention


def departures_of_nan(grid: RankGrid) -> Iterator[Departure]:
    """Yield a Departure for each series and rank with NaN or infinities where most ranks have none.

    Infinities in tensors of kind "value" do not count, as masks of attention have them. A series in
    which more than one rank in four (and more than one) would be yielded is passed over: there the
    data is the cause. Steps that GradScaler skipped and gradients that carry its scale do not
    count: a loss scale that is too large lets gradients overflow, mostly on one rank first.
    """
    for key, places in grid.each():
        odd = grid.nan[:, places]
        if key.kind != ACTIVATIONS:
            odd = odd | grid.inf[:, places]
        if not odd.any():
            continue
        present = grid.row[:, places] >= 0
        few = 2 * odd.sum(axis=0) <= present.sum(axis=0)
        odd = odd & few
        ranks = np.flatnonzero(odd.any(axis=1)).tolist()
        if len(ranks) > max(len(odd) // COMMON, 1):
            continue
        for rank in ranks:
            at = int(np.argmax(odd[rank]))
            peers = tuple(np.flatnonzero(present[:, at] & ~odd[:, at]).tolist())
            yield Departure("nan", rank, places.start + at, int(odd[rank].sum()), peers)
