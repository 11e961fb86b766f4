"""How an observation gets its coordinates (step, pass, call, phase) without the user's help."""

from anchorlib.capture.counting.checkpointing import (
    Repetition,
    UnfollowedCalls,
    recomputing,
    repetition,
)
from anchorlib.capture.counting.clock import CallCoordinates, Clock
from anchorlib.capture.counting.phases import Forward

__all__ = [
    "CallCoordinates",
    "Clock",
    "Forward",
    "Repetition",
    "UnfollowedCalls",
    "recomputing",
    "repetition",
]
