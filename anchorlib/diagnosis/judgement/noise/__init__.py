"""Runs that should be equal, and how far they are apart: a drift is judged by them.

envelope  how far apart noise runs are
growth    how the differences of each kind grow from step to step
leaving   the first record that is further off than noise runs ever are
covering  differences that noise runs excuse
turns     decisions near zero that rounding turned in one run, and noise runs did not
"""

from anchorlib.diagnosis.judgement.noise.covering import Covering
from anchorlib.diagnosis.judgement.noise.envelope import (
    ELEMENTS,
    FLOOR,
    Envelope,
    envelope,
    perturbation,
)
from anchorlib.diagnosis.judgement.noise.growth import Growth, growth, kinds_of, medians
from anchorlib.diagnosis.judgement.noise.leaving import Leaving, leaves_noise
from anchorlib.diagnosis.judgement.noise.turns import Turn, turns

__all__ = [
    "ELEMENTS",
    "FLOOR",
    "Covering",
    "Envelope",
    "Growth",
    "Leaving",
    "Turn",
    "envelope",
    "growth",
    "kinds_of",
    "leaves_noise",
    "medians",
    "perturbation",
    "turns",
]
