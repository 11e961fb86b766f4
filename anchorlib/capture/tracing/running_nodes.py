"""Finds which node of a compiler's graph runs, where the graph runs operation by operation.

torch writes the code of such a graph module, one line for each node, and keeps the table from lines
to nodes in private attributes of the module. Where torch has moved these attributes, the node is
found by the variable name that the line assigns.
"""

from __future__ import annotations

import linecache
from types import FrameType
from typing import Any

from torch import fx

from anchorlib.torch_private import node_lines

__all__ = ["RunningNodes"]


class RunningNodes:
    """Finds the node of a graph that is running; keeps the nodes of seen graphs until `forget`."""

    def __init__(self) -> None:
        self._nodes: dict[fx.GraphModule, tuple[object, list[fx.Node]]] = {}

    def forget(self) -> None:
        """Drop all graphs, so that they can be freed."""
        self._nodes.clear()

    def node(self, frame: FrameType) -> fx.Node | None:
        """Return the node whose line of code `frame` is running; None where none can be found."""
        graph_module: Any = frame.f_locals.get("self")
        known = node_lines(graph_module) if isinstance(graph_module, fx.GraphModule) else None
        if known is None:
            return self._of_line(graph_module, frame)
        lines, first = known
        place = lines.get(frame.f_lineno - first)
        nodes = self._of(graph_module, lines)
        return nodes[place] if place is not None and place < len(nodes) else None

    def _of_line(self, graph_module: Any, frame: FrameType) -> fx.Node | None:
        """Return the node that the running line of `frame` computes, found by the line's variable.

        Each line assigns to a variable that has the node's name. None where the line assigns to no
        node's name, or where the frame does not run a graph module.
        """
        if not isinstance(graph_module, fx.GraphModule):
            return None
        code = frame.f_code
        line = linecache.getline(code.co_filename, frame.f_lineno, frame.f_globals)
        name = line.replace(":", "=").partition("=")[0].strip()
        nodes = self._of(graph_module, graph_module.code)
        return next((node for node in nodes if node.name == name), None)

    def _of(self, graph_module: fx.GraphModule, lines: object) -> list[fx.Node]:
        """Return the nodes of a graph module in order, from a cache if the module has not changed.

        lines: an object that torch replaces when it writes the module's code again. If it is not
        the object of the last call, the nodes are read anew.
        """
        known = self._nodes.get(graph_module)
        if known is None or known[0] is not lines:
            known = self._nodes[graph_module] = (lines, list(graph_module.graph.nodes))
        return known[1]
