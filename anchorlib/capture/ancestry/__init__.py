"""From what a value was computed, and what the operations were told."""

from anchorlib.capture.ancestry.lineage import LineageTracker
from anchorlib.capture.ancestry.walk import Given

__all__ = [
    "Given",
    "LineageTracker",
]
