"""From observations to records: which observations modes select, and the bytes of a step."""

from anchorlib.capture.recording.log_lines import tell
from anchorlib.capture.recording.recorder import Recorder
from anchorlib.capture.recording.step_bytes import StepBytes, size_text
from anchorlib.capture.recording.streams import (
    LOOKED,
    MIXED,
    NEW,
    QUIET,
    REACHED,
    UNSCALED,
    NameStreams,
    ScaleAndFlags,
    Stream,
)

__all__ = [
    "LOOKED",
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
