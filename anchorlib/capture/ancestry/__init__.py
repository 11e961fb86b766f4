"""From which tensors a value was computed, and with which scalar arguments."""

from anchorlib.capture.ancestry.lineage import Given, LineageTracker

__all__ = [
    "Given",
    "LineageTracker",
]
