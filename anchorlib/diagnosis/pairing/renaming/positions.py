"""Names matched by their place in the graph of operations, where spelling does not help.

Matches spread from the names that are matched already. Where they spread no farther, names that are
unique in both runs by their operations, shapes and neighbours are matched, and matches spread from
these. Where no name is unique, the order of execution pairs names that look alike.
"""

from __future__ import annotations

from collections.abc import Mapping

from anchorlib.diagnosis.pairing.renaming.beginnings import beginnings
from anchorlib.diagnosis.pairing.renaming.match_propagation import HOW, MatchPropagation
from anchorlib.diagnosis.pairing.renaming.name_graph import NameGraph, graph_of
from anchorlib.diagnosis.pairing.renaming.names import Naming
from anchorlib.diagnosis.pairing.tables import Table

__all__ = ["match_positions"]

BEGINNINGS = 200  # searches for names to spread from; each looks at all names


def match_positions(naming: Naming, a: Table, b: Table) -> None:
    """Match unmatched names that stand at equal places of the two runs' graphs of operations.

    A name without edges has no place in a graph: it is matched only where it belongs to a matched
    module and ends in the same word as a name of B.
    """
    if not naming.left_a or not naming.left_b:
        return
    graphs = graph_of(a, naming.a), graph_of(b, naming.b)
    for strict in (True, False):
        _match(MatchPropagation(naming, *graphs, strict=strict))
    _same_tensors(naming, *graphs)
    _members(naming)


def _match(spreading: MatchPropagation) -> None:
    """Match names by spreading from matched ones, and where that ends, from new beginnings."""
    spreading.begin()
    for _ in range(BEGINNINGS):
        spreading.spread()
        pairs = beginnings(*spreading.sides())
        if not pairs:
            return
        for pair in pairs:
            spreading.take(*pair)


def _same_tensors(naming: Naming, a: NameGraph, b: NameGraph) -> None:
    """Match the unmatched second names of matched tensors, in order.

    A tensor has a second name where, for example, a container's output is its last member's output.
    Only tensors with equally many unmatched second names in both runs are handled.
    """
    taken = set(naming.to_b.values())
    own = _free(a, naming.to_b)
    others = _free(b, taken)
    for whole, names in own.items():
        names_b = others.get(naming.to_b.get(whole, ""), [])
        if len(names_b) == len(names):
            for name_a, name_b in zip(names, names_b, strict=True):
                if naming.alike(name_a, name_b):
                    naming.match(name_a, name_b, HOW)


def _free(graph: NameGraph, taken: Mapping[str, str] | set[str]) -> dict[str, list[str]]:
    """Return first name -> second names (aliases) of the tensor that are not in `taken`.

    First names without such second names are left out.
    """
    second_names: dict[str, list[str]] = {}
    for name, whole in graph.again.items():
        if name not in taken:
            second_names.setdefault(whole, []).append(name)
    return second_names


def _members(naming: Naming) -> None:
    """Match unmatched names whose last parts are equal and whose modules are matched.

    These are mostly buffers, which autograd does not know. Kinds and shapes must be alike.
    """
    free = set(naming.left_b)
    for name_a in naming.left_a:
        whole, _, own = name_a.rpartition(".")
        name_b = f"{naming.to_b.get(whole, '')}.{own}"
        if name_b in free and naming.alike(name_a, name_b):
            naming.match(name_a, name_b, HOW)
