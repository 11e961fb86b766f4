"""What programs call inside their models: `anchor` and `print_tensor`; and the loss, found."""

from anchorlib.capture.inline.hooks import anchor, paused, recording
from anchorlib.capture.inline.losses import Losses
from anchorlib.capture.inline.printing import print_tensor

__all__ = [
    "Losses",
    "anchor",
    "paused",
    "print_tensor",
    "recording",
]
