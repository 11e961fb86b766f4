"""What a session's traces share: each mostly sees again what the traces before it have seen."""

from __future__ import annotations

from dataclasses import dataclass, field

from anchorlib.capture.tracing.operand_layouts import Layouts
from anchorlib.operations import OpLog

__all__ = ["Repeats"]


@dataclass(slots=True)
class Repeats:
    """The log, which knows the structures of steps, and how tensors lie in memory."""

    log: OpLog = field(default_factory=OpLog)
    layouts: Layouts = field(default_factory=Layouts)
