"""From which tensors a value was computed, and with which scalar arguments."""

from anchorlib.capture.ancestry.lineage import LineageTracker
from anchorlib.capture.ancestry.walk import Given

__all__ = [
    "Given",
    "LineageTracker",
]
