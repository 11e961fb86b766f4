"""What each difference is, and whether it matters: rounding, noise, or something else."""

from anchorlib.diagnosis.judgement.benign import benign, only_dead_ends
from anchorlib.diagnosis.judgement.classes import BAD
from anchorlib.diagnosis.judgement.completeness import COMPLETE, Completeness, completeness
from anchorlib.diagnosis.judgement.envelope import Envelope, envelope, perturbation, scores
from anchorlib.diagnosis.judgement.growth import Growth, growth
from anchorlib.diagnosis.judgement.judge import Judge
from anchorlib.diagnosis.judgement.leaving import Leaving, leaves_noise
from anchorlib.diagnosis.judgement.losses import Losses, losses
from anchorlib.diagnosis.judgement.nearness import Nearness
from anchorlib.diagnosis.judgement.operations import computing
from anchorlib.diagnosis.judgement.origins import Origin, Replay, Way
from anchorlib.diagnosis.judgement.preceding import preceding
from anchorlib.diagnosis.judgement.reference import measured_from
from anchorlib.diagnosis.judgement.verdict import Drift, drift, verdict

__all__ = [
    "BAD",
    "COMPLETE",
    "Completeness",
    "Drift",
    "Envelope",
    "Growth",
    "Judge",
    "Leaving",
    "Losses",
    "Nearness",
    "Origin",
    "Replay",
    "Way",
    "benign",
    "completeness",
    "computing",
    "drift",
    "envelope",
    "growth",
    "leaves_noise",
    "losses",
    "measured_from",
    "only_dead_ends",
    "perturbation",
    "preceding",
    "scores",
    "verdict",
]
