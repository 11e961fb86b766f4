"""From observations to records: which observations modes select, and the bytes of a step."""

from anchorlib.capture.recording.log_lines import tell
from anchorlib.capture.recording.recorder import Recorder
from anchorlib.capture.recording.streams import (
    MIXED,
    NEW,
    QUIET,
    REACHED,
    UNSCALED,
    NameStreams,
    ScaleAndFlags,
    Stream,
)
from anchorlib.capture.recording.weighing import StepBytes, size_text

__all__ = [
    "MIXED",
    "NEW",
    "QUIET",
    "REACHED",
    "UNSCALED",
    "NameStreams",
    "Recorder",
    "ScaleAndFlags",
    "StepBytes",
    "Stream",
    "size_text",
    "tell",
]
