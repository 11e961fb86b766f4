"""From what a value was computed, and what the operations were told."""

from anchorlib.capture.ancestry.lineage import Given, LineageTracker

__all__ = [
    "Given",
    "LineageTracker",
]
