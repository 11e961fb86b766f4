"""Records whose noise lies in few elements: some noise runs do not show how large it may be.

    warped = grid_sample(image, places)      image: data, places: computed

Rounding moves a place across the middle of two pixels, or an element across the bound of a mask, in
some elements only, and these make nearly all of the norm by which runs differ. Three noise runs
turn three other handfuls of elements; one of them may differ a hundred times as much as another.
Without these elements the error and the noise can be compared.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.judgement.noise.envelope import Envelope
from anchorlib.diagnosis.judgement.series import values_of_pair
from anchorlib.diagnosis.pairing import Alignment
from anchorlib.diagnosis.sizes import Measures
from anchorlib.errors import StoreError

__all__ = ["score_without_few"]

Array = np.ndarray[Any, Any]
KINDS = ("value", "grad")
SHARE = 0.01
"""The share of a tensor's elements that are few: those that differ most."""
REST = 0.5
"""The largest share of the norm of a difference that lies outside of these elements, where it lies
in few elements."""
LARGEST = 1e-3
"""The largest relative error of a record whose few elements may be left out: faults are larger."""


def score_without_few(
    frontier: Frontier, measures: Measures, noise: Envelope, at: int
) -> tuple[int, float] | None:
    """Return how many elements hold most of a pair's difference, and the score without them.

    None where the difference of A and B, or that of a noise run from A, does not lie in few
    elements, and where that is not known. The score is the error of the other elements over their
    largest error in the noise runs.
    at: the pair's index into `measures`.
    """
    alignment = frontier.alignment
    row = int(alignment.a_row[measures.pair[at]])
    kind = alignment.a.tensors[alignment.a.tensor[row]].kind
    error = measures["error_eps"][at] * measures["eps"][at]
    if kind not in KINDS or not error <= LARGEST:
        return None
    few = max(1, int(SHARE * measures["numel"][at]))
    try:
        own = _parted(alignment, row, few)
        beside = [_parted(pairs, row, few) for pairs in noise.pairs]
    except StoreError:
        return None
    if own is None or any(one is None for one in beside):
        return None
    known = [one for one in (own, *beside) if one is not None]
    if any(rest > REST * whole for whole, rest, _ in known):
        return None
    least = float(noise.floor[at])
    return own[2], own[1] / max([least, *(rest for _, rest, _ in known[1:])])


def _parted(pairs: Alignment, row: int, few: int) -> tuple[float, float, int] | None:
    """Return how far a pair is apart, how far without few elements, and how many of these differ.

    The first two are relative L2 errors. None where the values are not known or have other sizes.
    pairs: A aligned with the other run. row: A's row. few: how many elements are left out.
    """
    both = values_of_pair(pairs, row)
    if both is None or not (norm := float(np.linalg.norm(both[0]))):
        return None
    apart = np.sort(np.abs(both[1] - both[0]))
    most = apart[-few:]
    return (
        float(np.linalg.norm(apart)) / norm,
        float(np.linalg.norm(apart[:-few])) / norm,
        int((most > 0).sum()),
    )
