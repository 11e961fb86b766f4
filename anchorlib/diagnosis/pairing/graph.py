"""The graph of one run's names: which tensors are computed from which, by which operations."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from anchorlib.diagnosis.pairing.names import Shapes
from anchorlib.diagnosis.pairing.table import Table
from anchorlib.record import Edges

__all__ = ["Beside", "Graph", "Node", "colours", "graph_of", "kinds_of"]

Way = Literal["parent", "parameter", "child", "user"]


class Beside(NamedTuple):
    """One neighbour: `name` is the number-th parent or parameter, or it is the number-th of its."""

    way: Way
    number: int
    name: str


@dataclass(slots=True)
class Node:
    """One name.

    parameter: whether it is what computed values are made of and lasts.
    ops: the operations that made it, sorted. holds: the shapes of the parameters that it is made
    of, sorted. beside: its neighbours.
    """

    parameter: bool = False
    ops: tuple[str, ...] = ()
    holds: tuple[tuple[int, ...], ...] = ()
    beside: dict[Beside, None] = field(default_factory=dict)


@dataclass(slots=True)
class Graph:
    """The names of which anything is known, in order of execution.

    again: names that are another tensor once more (what a container gives is what its last member
        gave), and that tensor's. They are no nodes.
    """

    nodes: dict[str, Node]
    again: dict[str, str]


def graph_of(table: Table, shapes: Shapes) -> Graph:
    """The graph that the edges of a run give for the names that it recorded."""
    told = [edges for rank in sorted(table.edges) for edges in table.edges[rank]]
    again = _again(told, shapes)
    nodes = {name: Node() for name in shapes if name not in again}
    for edges in told:
        if edges.name in nodes:
            _add(nodes, edges, again)
    for node in nodes.values():
        held = (one.name for one in node.beside if one.way == "parameter")
        node.holds = tuple(sorted(_shape(shapes[name]) for name in held))
    return Graph({name: node for name, node in nodes.items() if node.beside or node.ops}, again)


def _again(told: Iterable[Edges], shapes: Shapes) -> dict[str, str]:
    found: dict[str, str] = {}
    for edges in told:
        if edges.name not in shapes or edges.name in found:
            continue
        if not edges.ops and len(edges.parents) == 1 and not edges.missing:
            above = edges.parents[0].name
            above = found.get(above, above)
            if above in shapes and above != edges.name:
                found[edges.name] = above
    return found


def _add(nodes: dict[str, Node], edges: Edges, again: Mapping[str, str]) -> None:
    node = nodes[edges.name]
    node.ops = node.ops or tuple(sorted(edges.ops))
    counts = {"parent": 0, "parameter": 0}
    for parent in edges.parents:
        way: Way = "parameter" if parent.call is None else "parent"
        number = counts[way]
        counts[way] += 1
        name = again.get(parent.name, parent.name)
        if name not in nodes or name == edges.name:
            continue
        node.beside.setdefault(Beside(way, number, name))
        other = nodes[name]
        other.parameter |= way == "parameter"
        back: Way = "user" if way == "parameter" else "child"
        other.beside.setdefault(Beside(back, number, edges.name))


def _shape(kinds: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    return next(iter(kinds.values()))


def kinds_of(shapes: Shapes, name: str) -> Hashable:
    """The kinds that were recorded of a name, with their shapes, as a key."""
    return tuple(sorted(shapes[name].items()))


def colours(
    graph: Graph, first: Callable[[str, Node], Hashable], known: Mapping[str, str], depth: int
) -> list[dict[str, Hashable]]:
    """What each name is told by: alone, and with its neighbours up to 1, 2, … `depth` away.

    first: what a name is told by alone. known: names that are told by another.
    """
    found: list[dict[str, Hashable]] = [
        {
            name: ("=", known[name]) if name in known else first(name, node)
            for name, node in graph.nodes.items()
        }
    ]
    for _ in range(depth):
        last = found[-1]
        found.append(
            {
                name: last[name] if name in known else hash((last[name], _around(node, last)))
                for name, node in graph.nodes.items()
            }
        )
    return found


def _around(node: Node, found: Mapping[str, Hashable]) -> Hashable:
    """The neighbours' colours; not at which place they stand, which a port may choose."""
    near = {(one.way, one.name) for one in node.beside}
    return tuple(sorted((way, hash(found[name])) for way, name in near))
