"""The state that the traces of one session share.

A later trace mostly meets operations and tensor layouts of earlier traces again. These are then
neither stored nor computed a second time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from anchorlib.capture.tracing.operand_layouts import Layouts
from anchorlib.operations import OpLog

__all__ = ["TraceCache"]


@dataclass(slots=True)
class TraceCache:
    """What later traces of a session reuse: the log of operations, and the known tensor layouts."""

    log: OpLog = field(default_factory=OpLog)
    layouts: Layouts = field(default_factory=Layouts)
