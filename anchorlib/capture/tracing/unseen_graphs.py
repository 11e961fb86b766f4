"""Graphs of AOTAutograd whose backend runs them unseen: not node by node, not through Inductor."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import NamedTuple

from torch import fx

from anchorlib.capture.tracing.compiler_graphs import CompilerGraph, read_graph
from anchorlib.capture.tracing.graph_texts import read_text
from anchorlib.torch_private import CompileContext

__all__ = ["UnseenGraphs", "compile_id", "signature"]


class _Read(NamedTuple):
    compile_id: str
    signature: tuple[str, ...]
    graph: CompilerGraph
    is_text: bool


class UnseenGraphs:
    """Stores each graph of AOTAutograd until it is known whether the graph's runs are seen.

    has_texts: whether some of the graphs that `take` returned last were read from their text.
    """

    def __init__(self) -> None:
        self._read: list[_Read] = []
        self.has_texts = False

    def read_text(self, text: str) -> None:
        """Store the graph that torch logs as text, unless the graph itself was read already.

        A text that cannot be read as a graph is ignored.
        """
        logged = read_text(text)
        here = compile_id()
        known = [one.signature for one in self._read if one.compile_id == here]
        if logged is not None and logged.signature not in known:
            self._read.append(_Read(here, logged.signature, logged.graph, is_text=True))

    def read(self, graph: fx.Graph) -> None:
        """Store a graph that AOTAutograd hands to its backend."""
        self._read.append(
            _Read(compile_id(), signature(graph), read_graph(graph, {}), is_text=False)
        )

    def take(
        self, inductors: AbstractSet[str], ran: AbstractSet[tuple[str, ...]]
    ) -> list[CompilerGraph]:
        """Return the graphs that were not seen to run in the ended step; forget all stored graphs.

        inductors: ids of the compilations for which Inductor has made kernels. ran: signatures of
        the graphs that ran node by node.
        """
        # By compilation: a backward that has not run yet will run as its forward did.
        seen = inductors | {one.compile_id for one in self._read if one.signature in ran}
        left = [one for one in self._read if one.compile_id not in seen]
        self.has_texts = any(one.is_text for one in left)
        self._read.clear()
        return [one.graph for one in left]


def signature(graph: fx.Graph) -> tuple[str, ...]:
    """Return the names of a graph's nodes; a backend's copy of the graph has equal names."""
    return tuple([node.name for node in graph.nodes])


def compile_id() -> str:
    """Return the id that torch gives to the compilation under way, as text."""
    return str(CompileContext.current_compile_id())
