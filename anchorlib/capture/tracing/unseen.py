"""Graphs of AOT's whose backend runs them out of sight: neither one by one nor through Inductor."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import NamedTuple

from torch import fx

from anchorlib.capture.tracing.graphs import Graph, read_graph
from anchorlib.torch_private import CompileContext

__all__ = ["Unseen", "compile_id", "signature"]


class _Read(NamedTuple):
    compile_id: str
    signature: tuple[str, ...]
    graph: Graph


class Unseen:
    """Keeps each graph of AOT's until it is known who runs it."""

    def __init__(self) -> None:
        self._read: list[_Read] = []

    def read(self, graph: fx.Graph) -> None:
        """AOT hands a graph to its backend."""
        self._read.append(_Read(compile_id(), signature(graph), read_graph(graph, {})))

    def take(self, inductors: AbstractSet[str], ran: AbstractSet[tuple[str, ...]]) -> list[Graph]:
        """Those that nobody was seen to run in the step that has ended; each is given once.

        inductors: the compilations of which Inductor has made kernels. ran: the signatures of
        graphs that ran one by one.
        """
        # A backward that has not run yet runs as its forward did.
        seen = inductors | {one.compile_id for one in self._read if one.signature in ran}
        left = [one.graph for one in self._read if one.compile_id not in seen]
        self._read.clear()
        return left


def signature(graph: fx.Graph) -> tuple[str, ...]:
    """What tells a graph from others, also where a backend has copied it."""
    return tuple([node.name for node in graph.nodes])


def compile_id() -> str:
    """Which compilation is under way."""
    return str(CompileContext.current_compile_id())
