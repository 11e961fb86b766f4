"""The graph of one run's names: which tensors are computed from which, by which operations."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from anchorlib.diagnosis.pairing.renaming.names import Shapes
from anchorlib.diagnosis.pairing.tables import Table
from anchorlib.record import Edges

__all__ = ["NameGraph", "NameNode", "Neighbour", "colours", "graph_of", "kinds_of"]

Kinship = Literal["parent", "parameter", "child", "user"]


class Neighbour(NamedTuple):
    """A tensor next to a node of the graph: one of the two is computed from the other.

    kinship: what the neighbour is to the node. The node is computed from a "parent" or a
        "parameter". A "child" is computed from the node; a "user" is computed from the node, too,
        which is a parameter of the user.
    number: the place of the parent among the child's parents, or of the parameter among the user's
        parameters.
    name: the neighbour's name.
    """

    kinship: Kinship
    number: int
    name: str


@dataclass(slots=True)
class NameNode:
    """One node of the graph of names: a tensor by its name.

    parameter: whether other names are computed from this name as a parameter.
    ops: the operations that made the tensor, sorted.
    holds: the shapes of the parameters that the tensor is computed from, sorted.
    neighbours: the neighbours, as the keys of a dict, which keeps their order.
    """

    parameter: bool = False
    ops: tuple[str, ...] = ()
    holds: tuple[tuple[int, ...], ...] = ()
    neighbours: dict[Neighbour, None] = field(default_factory=dict)


@dataclass(slots=True)
class NameGraph:
    """The names of a run that have operations or neighbours, as nodes in order of execution.

    again: the second names of tensors -> their first names. A container's output, for one, is its
        last member's output. Second names are no nodes.
    """

    nodes: dict[str, NameNode]
    again: dict[str, str]


def graph_of(table: Table, shapes: Shapes) -> NameGraph:
    """Return the graph of the names that a run recorded, as its edges give it.

    shapes: name -> kind -> shape, for all recorded names.
    """
    statements = [edges for rank in sorted(table.edges) for edges in table.edges[rank]]
    again = _again(statements, shapes)
    nodes = {name: NameNode() for name in shapes if name not in again}
    for edges in statements:
        if edges.name in nodes:
            _add(nodes, edges, again)
    for node in nodes.values():
        held = (neighbour.name for neighbour in node.neighbours if neighbour.kinship == "parameter")
        node.holds = tuple(sorted(_shape(shapes[name]) for name in held))
    return NameGraph(
        {name: node for name, node in nodes.items() if node.neighbours or node.ops}, again
    )


def _again(statements: Iterable[Edges], shapes: Shapes) -> dict[str, str]:
    """Return the second names of tensors -> their first names.

    A second name has one parent, the first name, and no operation between the two.
    """
    first_names: dict[str, str] = {}
    for edges in statements:
        if edges.name not in shapes or edges.name in first_names:
            continue
        if not edges.ops and len(edges.parents) == 1 and not edges.missing:
            above = edges.parents[0].name
            above = first_names.get(above, above)
            if above in shapes and above != edges.name:
                first_names[edges.name] = above
    return first_names


def _add(nodes: dict[str, NameNode], edges: Edges, again: Mapping[str, str]) -> None:
    """Add the operations of one tensor, and make the tensor and its parents neighbours.

    edges: from what the tensor was computed. again: second names of tensors -> first names.
    """
    node = nodes[edges.name]
    node.ops = node.ops or tuple(sorted(edges.ops))
    counts = {"parent": 0, "parameter": 0}
    for parent in edges.parents:
        kinship: Kinship = "parameter" if parent.call is None else "parent"
        number = counts[kinship]
        counts[kinship] += 1
        name = again.get(parent.name, parent.name)
        if name not in nodes or name == edges.name:
            continue
        node.neighbours.setdefault(Neighbour(kinship, number, name))
        other = nodes[name]
        other.parameter |= kinship == "parameter"
        back: Kinship = "user" if kinship == "parameter" else "child"
        other.neighbours.setdefault(Neighbour(back, number, edges.name))


def _shape(kinds: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape of the kind that was recorded first. kinds: kind -> shape, of one name."""
    return next(iter(kinds.values()))


def kinds_of(shapes: Shapes, name: str) -> Hashable:
    """Return the kinds that were recorded of a name, with their shapes, as a hashable key."""
    return tuple(sorted(shapes[name].items()))


def colours(
    graph: NameGraph,
    first: Callable[[str, NameNode], Hashable],
    known: Mapping[str, str],
    depth: int,
) -> list[dict[str, Hashable]]:
    """Return the colour of each name: without neighbours, then with neighbours farther and farther.

    A colour is a key that describes a name. The list has `depth` + 1 dicts, name -> colour, for the
    distances 0 to `depth`. Two names have equal colours where they and their neighbours, up to that
    distance, look alike. This is colour refinement (Weisfeiler-Leman).
    first: returns the colour of a name without its neighbours.
    known: matched names -> B's names, which are their colours at every depth.
    """
    rounds: list[dict[str, Hashable]] = [
        {
            name: ("=", known[name]) if name in known else first(name, node)
            for name, node in graph.nodes.items()
        }
    ]
    for _ in range(depth):
        last = rounds[-1]
        rounds.append(
            {
                name: last[name] if name in known else hash((last[name], _around(node, last)))
                for name, node in graph.nodes.items()
            }
        )
    return rounds


def _around(node: NameNode, colour_of: Mapping[str, Hashable]) -> Hashable:
    """Return a key of the colours (descriptions) of a node's neighbours, whatever their order.

    The positions of operands do not count, since another program may order operands differently.
    colour_of: the colour of each name.
    """
    near = {(neighbour.kinship, neighbour.name) for neighbour in node.neighbours}
    return tuple(sorted((kinship, hash(colour_of[name])) for kinship, name in near))
