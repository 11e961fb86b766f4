"""Runs that should be equal, and how far they are apart: a drift is judged by them.

envelope  how far apart noise runs are
growth    how the differences of each kind grow from step to step
leaving   the first record that is further off than noise runs ever are
covering  differences that noise runs excuse
"""

from anchorlib.diagnosis.judgement.noise.covering import Covering
from anchorlib.diagnosis.judgement.noise.envelope import (
    ELEMENTS,
    FLOOR,
    Envelope,
    envelope,
    perturbation,
    scores,
)
from anchorlib.diagnosis.judgement.noise.growth import Growth, growth, kinds_of, medians
from anchorlib.diagnosis.judgement.noise.leaving import Leaving, leaves_noise

__all__ = [
    "ELEMENTS",
    "FLOOR",
    "Covering",
    "Envelope",
    "Growth",
    "Leaving",
    "envelope",
    "growth",
    "kinds_of",
    "leaves_noise",
    "medians",
    "perturbation",
    "scores",
]
