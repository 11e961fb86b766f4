"""Graphs in the language of Graphviz: clusters in clusters by stage and module, colours by stage.

A stage is the part of a step that runs an operation: "forward", "backward", "optimizer" and others.

anchor graph run1 --module fc1 -o fc1.dot && dot -Tsvg fc1.dot -o fc1.svg
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final

from anchorlib.graphs.graph import Graph, Node

__all__ = ["dot_text"]

_STAGES: Final = {
    "forward": "#dbeafe",
    "recompute": "#e0e7ff",
    "backward": "#fef3c7",
    "accumulate": "#dcfce7",
    "optimizer": "#ede9fe",
}
_OTHER: Final = "#f1f5f9"
_MARKED: Final = ' color="#c62828" fillcolor="#ffb3b3" penwidth=2'
_ELSEWHERE: Final = ' style=dashed color="#cbd5e1"'
"""The look of an edge into another stage.

It has no label: such an edge is long, and a label in its middle would stand beside other nodes.
"""

_SAVED: Final = " constraint=false"
"""Added to an edge for a tensor that forward saved for backward.

With it the two stages are placed beside each other, not one below the other.
"""

_BESIDE: Final = 60  # the most letters of a mark that are written beside its node
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "&": "&amp;", '"': "&quot;"})
_MOST: Final = 6  # the most facts about an operation in its tooltip


def dot_text(graphs: Sequence[Graph], remark: str = "") -> str:
    """Return the text of a DOT digraph that holds these graphs side by side.

    remark: a comment for the first line; none if empty.
    """
    lines = [f"// {remark}"] if remark else []
    lines += [
        "digraph anchorlib {",
        '  graph [fontname="Helvetica" rankdir=TB style=rounded color="#94a3b8"];',
        '  node [shape=box style="filled,rounded" fontname="Helvetica" fontsize=11];',
        '  edge [fontname="Helvetica" fontsize=9 color="#64748b" fontcolor="#64748b"];',
    ]
    numbers = count()
    for graph in graphs:
        lines += _Clusters(graph, numbers).lines()
        lines += _edges(graph)
    return "\n".join([*lines, "}", ""])


class _Clusters:
    """Writes the nodes of a graph as nested clusters, one for each stage and module.

    numbers: gives the clusters their numbers; all graphs of a file share it.
    """

    def __init__(self, graph: Graph, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._marks: set[str] = set()
        self._inside: dict[tuple[str, ...], dict[tuple[str, ...], None]] = {}
        self._nodes: dict[tuple[str, ...], list[Node]] = {}
        for node in graph.nodes:
            self._nodes.setdefault(node.scope, []).append(node)
            for depth in range(1, len(node.scope) + 1):
                self._inside.setdefault(node.scope[: depth - 1], {})[node.scope[:depth]] = None

    def lines(self, scope: tuple[str, ...] = ()) -> Iterator[str]:
        pad = "  " * (len(scope) + 1)
        for node in self._nodes.get(scope, ()):
            marked_before = node.mark in self._marks
            self._marks.add(node.mark)
            yield f"{pad}{_quoted(node.name)} [{_shown(node, marked_before=marked_before)}];"
        for inner in self._inside.get(scope, ()):
            yield f"{pad}subgraph cluster_{next(self._numbers)} {{"
            yield f"{pad}  label={_quoted(inner[-1])};"
            yield from self.lines(inner)
            yield f"{pad}}}"


def _shown(node: Node, *, marked_before: bool) -> str:
    """Return the DOT attributes of a node: its label, tooltip and colour.

    marked_before: whether another node already shows the same text about how the runs differ; then
    the text is not written beside this node again.
    """
    lines = [f"{key}: {text}" for key, text in node.attributes.items()][:_MOST]
    color = f' fillcolor="{_STAGES.get(node.stage, _OTHER)}"'
    look = _MARKED if node.mark else color
    if node.mark and not marked_before:
        look += f" xlabel={_quoted(node.mark.partition(';')[0][:_BESIDE])}"
    tooltip = _quoted("; ".join([node.name, *lines]))
    return f"label={_quoted(node.label)} tooltip={tooltip}{look}"


def _edges(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        for one in node.inputs:
            if one.maker is not None:
                maker = graph.nodes[one.maker]
                ends = f"{_quoted(maker.name)} -> {_quoted(node.name)}"
                yield f"  {ends} [{_drawn(maker.stage, node.stage, str(one.tensor))}];"


def _drawn(start: str, end: str, text: str) -> str:
    """Return the DOT attributes of an edge that leads from stage `start` to stage `end`.

    text: describes the edge's tensor.
    """
    if start == end:
        return f"label={_quoted(text)}"
    return f"tooltip={_quoted(text)}{_ELSEWHERE}{_SAVED if start == 'forward' else ''}"


def _quoted(text: str) -> str:
    r"""Return a quoted string of DOT that Graphviz shows as `text`.

    Backslashes are doubled. Quotes and "&" are written as HTML entities, which Graphviz shows as
    these characters: netron's reader would end the string at any quote, even at an escaped one.
    """
    return f'"{text.translate(_ESCAPES)}"'
