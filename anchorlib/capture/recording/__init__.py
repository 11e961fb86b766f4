"""From observations to records: which observations modes select, and the bytes of a step."""

from anchorlib.capture.recording.log_lines import tell
from anchorlib.capture.recording.recorder import Recorder
from anchorlib.capture.recording.streams import (
    MIXED,
    NEW,
    QUIET,
    REACHED,
    UNSCALED,
    Plan,
    ScaleAndFlags,
    Stream,
)
from anchorlib.capture.recording.weighing import Weighing, size_text

__all__ = [
    "MIXED",
    "NEW",
    "QUIET",
    "REACHED",
    "UNSCALED",
    "Plan",
    "Recorder",
    "ScaleAndFlags",
    "Stream",
    "Weighing",
    "size_text",
    "tell",
]
