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

__all__ = ["Leaving", "leaves_noise"]

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
    """The first record in A's order of execution whose score is large; None where none is.

    Records with too few elements to be judged alone are left out.
    """
    a = alignment.a
    with np.errstate(invalid="ignore"):
        at = np.flatnonzero((scores > LEAVING) & (measures["numel"] >= ELEMENTS))
    if not len(at):
        return None
    rows = alignment.a_row[measures.pair[at]]
    first = int(np.lexsort((a.order[rows], a.step[rows]))[0])
    return Leaving(
        place_at(a, int(rows[first])),
        float(scores[at[first]]),
        float(measures["error_eps"][at[first]]),
    )
