"""Functions that programs call inside models, `anchor` and `print_tensor`; and finding the loss."""

from anchorlib.capture.inline.hooks import anchor, paused, recording
from anchorlib.capture.inline.loss import LossFinder
from anchorlib.capture.inline.printing import print_tensor

__all__ = [
    "LossFinder",
    "anchor",
    "paused",
    "print_tensor",
    "recording",
]
