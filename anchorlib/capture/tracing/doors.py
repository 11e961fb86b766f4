"""The private names of torch through which compiled code is read. Nothing else knows them.

Where torch has moved a name, what it told is unknown, and a test fails that has that name.
"""

from __future__ import annotations

from types import FrameType
from typing import Any, Final

from torch import fx

__all__ = ["DOORS", "node_of"]

DOORS: Final = {
    "torch.fx.GraphModule._lineno_map": "which node of a graph an operation is",
    "torch.fx.GraphModule._prologue_start": "which node of a graph an operation is",
}
"""Each private name, and what it tells."""


def node_of(frame: FrameType) -> fx.Node | None:
    """The node whose line of a graph's code `frame` runs; None where that cannot be told."""
    graph_module: Any = frame.f_locals.get("self")
    if not isinstance(graph_module, fx.GraphModule):
        return None
    lines = getattr(graph_module, "_lineno_map", None)
    first = getattr(graph_module, "_prologue_start", None)
    if lines is None or first is None:
        return None
    place = lines.get(frame.f_lineno - first)
    if place is None:
        return None
    return next((node for at, node in enumerate(graph_module.graph.nodes) if at == place), None)
