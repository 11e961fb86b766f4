"""Noise runs: trainings like A from parameters one rounding error away, by which B is judged.

envelope  how far each noise run is from A in each record, and from which step on that is too far
growth    how the differences of each kind grow from step to step
leaving   the first record in which B is further from A than noise runs ever are
covering  differences that are no fault, since noise runs differ there as much
turns     elements that rounding put on the other side of zero, as of a ReLU, in B alone
few_elements  records whose noise lies in few elements
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
