"""Names matched by their place in the graph of operations, where spelling does not help.

What is matched already holds the graphs together, and from there matches spread. Where nothing
spreads any more, a name that alone is told by its shapes, operations and surroundings is a new
beginning; then the order of execution is, where it pairs all that are told alike.
"""

from __future__ import annotations

from collections.abc import Mapping

from anchorlib.diagnosis.pairing.beginnings import beginnings
from anchorlib.diagnosis.pairing.graph import Graph, graph_of
from anchorlib.diagnosis.pairing.names import Naming
from anchorlib.diagnosis.pairing.spreading import HOW, Spreading
from anchorlib.diagnosis.pairing.table import Table

__all__ = ["match_positions"]

BEGINNINGS = 200  # looked for; each costs a look at all names


def match_positions(naming: Naming, a: Table, b: Table) -> None:
    """Matches free names that stand at the same place among what is computed of what.

    A name of which no operation is known is not told at all.
    """
    if not naming.left_a or not naming.left_b:
        return
    graphs = graph_of(a, naming.a), graph_of(b, naming.b)
    for strict in (True, False):
        _match(Spreading(naming, *graphs, strict=strict))
    _same_tensors(naming, *graphs)
    _members(naming)


def _match(spreading: Spreading) -> None:
    spreading.begin()
    for _ in range(BEGINNINGS):
        spreading.spread()
        pairs = beginnings(*spreading.sides())
        if not pairs:
            return
        for pair in pairs:
            spreading.take(*pair)


def _same_tensors(naming: Naming, a: Graph, b: Graph) -> None:
    """Names of tensors once more: of matched tensors, as many in both runs, in order."""
    taken = set(naming.to_b.values())
    own = _free(a, naming.to_b)
    others = _free(b, taken)
    for whole, names in own.items():
        twos = others.get(naming.to_b.get(whole, ""), [])
        if len(twos) == len(names):
            for one, two in zip(names, twos, strict=True):
                if naming.alike(one, two):
                    naming.match(one, two, HOW)


def _free(graph: Graph, taken: Mapping[str, str] | set[str]) -> dict[str, list[str]]:
    """For each tensor the free names that it has once more."""
    found: dict[str, list[str]] = {}
    for name, whole in graph.again.items():
        if name not in taken:
            found.setdefault(whole, []).append(name)
    return found


def _members(naming: Naming) -> None:
    """What else matched modules hold under one name: buffers, of which autograd knows nothing."""
    free = set(naming.left_b)
    for one in naming.left_a:
        whole, _, own = one.rpartition(".")
        two = f"{naming.to_b.get(whole, '')}.{own}"
        if two in free and naming.alike(one, two):
            naming.match(one, two, HOW)
