"""Names of two runs that can be matched by themselves, without a matched name beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from anchorlib.diagnosis.pairing.renaming.name_graph import NameGraph, Node, colours, kinds_of
from anchorlib.diagnosis.pairing.renaming.names import Shapes

__all__ = ["Side", "beginnings"]

Pairs = list[tuple[str, str]]
DEPTHS = (4, 1, 0)  # how far the neighbours reach that a description includes; tried in turn
MOST = 20_000_000  # pairs of names of equal descriptions; with more, difflib takes minutes


class Side(NamedTuple):
    """One run: its graph, and which of its names are matched.

    known: matched names -> B's name of the match (for B its own name). free: the names without a
    match -> their places in the order of execution.
    """

    graph: NameGraph
    shapes: Shapes
    known: Mapping[str, str]
    free: Mapping[str, int]


def beginnings(a: Side, b: Side) -> Pairs:
    """Pairs of free names whose description is unique in both runs; else pairs told by their order.

    A description holds a name's operations, kinds, shapes and neighbours; the farthest neighbours
    that give any pair are taken.
    """
    if not a.free or not b.free:
        return []
    for depth in DEPTHS:
        one, two = _classes(a, depth), _classes(b, depth)
        alone = [
            (names[0], two[colour][0])
            for colour, names in one.items()
            if len(names) == len(two.get(colour, ())) == 1
        ]
        if alone:
            return alone
    return _in_order(a, b)


def _classes(side: Side, depth: int) -> dict[Hashable, list[str]]:
    """The free names of each description, in order of execution."""

    def first(name: str, node: Node) -> Hashable:
        return (node.parameter, node.ops, kinds_of(side.shapes, name))

    found: dict[Hashable, list[str]] = {}
    for name, colour in colours(side.graph, first, side.known, depth)[-1].items():
        if name in side.free:
            found.setdefault(colour, []).append(name)
    return found


def _in_order(a: Side, b: Side) -> Pairs:
    """Pairs of free computed names that have equal descriptions at the same place of the order.

    Both orders of execution are laid beside each other by difflib; matched names hold them
    together. A description counts only where all names that have it, in both runs, are paired.
    """
    told_a, told_b = _sequence(a), _sequence(b)
    counts = Counter(told_a.values()), Counter(told_b.values())
    if sum(count * counts[1][one] for one, count in counts[0].items()) > MOST:
        return []
    pairs = [(one, two) for one, two in _common(told_a, told_b) if one in a.free]
    paired = Counter(told_a[one] for one, _ in pairs)
    whole = {one for one, n in paired.items() if n == counts[0][one] == counts[1][one]}
    return [(one, two) for one, two in pairs if told_a[one] in whole]


def _sequence(side: Side) -> dict[str, Hashable]:
    """What each computed name is compared by, in order of execution.

    A matched name is compared by B's name; a free one by its shapes and those of its parameters.
    """
    return {
        name: (node.holds, kinds_of(side.shapes, name)) if name in side.free else side.known[name]
        for name, node in side.graph.nodes.items()
        if node.ops
    }


def _common(a: Mapping[str, Hashable], b: Mapping[str, Hashable]) -> Pairs:
    """The names in difflib's matching blocks of two sequences.

    difflib takes the longest block that both have, then continues before and after it. So
    the names may be fewer than those of a longest common subsequence.
    """
    one: Sequence[Hashable] = list(a.values())
    two: Sequence[Hashable] = list(b.values())
    names_a, names_b = list(a), list(b)
    matcher = SequenceMatcher(None, one, two, autojunk=False)
    return [
        (names_a[block.a + n], names_b[block.b + n])
        for block in matcher.get_matching_blocks()
        for n in range(block.size)
    ]
