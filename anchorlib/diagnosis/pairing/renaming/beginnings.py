"""Names of two runs that can be matched by themselves, without a matched neighbour in the graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from anchorlib.diagnosis.pairing.renaming.name_graph import NameGraph, NameNode, colours, kinds_of
from anchorlib.diagnosis.pairing.renaming.names import Shapes

__all__ = ["RunNames", "beginnings"]

Pairs = list[tuple[str, str]]
DEPTHS = (4, 1, 0)  # how far the neighbours reach that a description includes; tried in turn
MOST = 20_000_000  # pairs of names of equal descriptions; with more, difflib takes minutes


class RunNames(NamedTuple):
    """One run: the graph of its names, and which of them are matched with a name of the other run.

    known: matched names -> B's name of the match (for B its own name).
    free: the names without a match -> their numbers in the order of execution.
    """

    graph: NameGraph
    shapes: Shapes
    known: Mapping[str, str]
    free: Mapping[str, int]


def beginnings(a: RunNames, b: RunNames) -> Pairs:
    """Return pairs (A's name, B's name) of unmatched names that have no like among unmatched names.

    Their description must be equal, and unique in both runs. It holds a name's operations, kinds,
    shapes and neighbours. Descriptions with farther neighbours are tried first, then those with
    nearer neighbours only, until a pair is found. Where no description is unique, `_in_order` pairs
    names by the order of execution. [] where that finds no pair either.
    """
    if not a.free or not b.free:
        return []
    for depth in DEPTHS:
        classes_a, classes_b = _classes(a, depth), _classes(b, depth)
        alone = [
            (names[0], classes_b[colour][0])
            for colour, names in classes_a.items()
            if len(names) == len(classes_b.get(colour, ())) == 1
        ]
        if alone:
            return alone
    return _in_order(a, b)


def _classes(side: RunNames, depth: int) -> dict[Hashable, list[str]]:
    """Return description -> the unmatched names that have it, in order of execution.

    depth: how far away the neighbours may be that a description includes.
    """

    def first(name: str, node: NameNode) -> Hashable:
        return (node.parameter, node.ops, kinds_of(side.shapes, name))

    by_description: dict[Hashable, list[str]] = {}
    for name, colour in colours(side.graph, first, side.known, depth)[-1].items():
        if name in side.free:
            by_description.setdefault(colour, []).append(name)
    return by_description


def _in_order(a: RunNames, b: RunNames) -> Pairs:
    """Return pairs of unmatched names with equal keys at corresponding places of the two orders.

    `_sequence` says what a name's key is. The orders of execution are aligned by difflib; matched
    names are fixed points of the alignment. The pairs of a key are returned only if all names with
    that key, in both runs, are paired. [] where more than MOST pairs of names have equal keys.
    """
    told_a, told_b = _sequence(a), _sequence(b)
    counts = Counter(told_a.values()), Counter(told_b.values())
    if sum(count * counts[1][key] for key, count in counts[0].items()) > MOST:
        return []
    pairs = [(name_a, name_b) for name_a, name_b in _common(told_a, told_b) if name_a in a.free]
    paired = Counter(told_a[name_a] for name_a, _ in pairs)
    whole = {key for key, n in paired.items() if n == counts[0][key] == counts[1][key]}
    return [(name_a, name_b) for name_a, name_b in pairs if told_a[name_a] in whole]


def _sequence(side: RunNames) -> dict[str, Hashable]:
    """Return for each computed name the key by which it is compared, in order of execution.

    The key of a matched name is B's name; that of an unmatched name is its shapes and its
    parameters' shapes.
    """
    return {
        name: (node.holds, kinds_of(side.shapes, name)) if name in side.free else side.known[name]
        for name, node in side.graph.nodes.items()
        if node.ops
    }


def _common(a: Mapping[str, Hashable], b: Mapping[str, Hashable]) -> Pairs:
    """Return the pairs of names in difflib's matching blocks of two sequences of keys.

    difflib takes the longest block that both have, then continues before and after it. So the names
    may be fewer than those of a longest common subsequence.
    """
    sequence_a: Sequence[Hashable] = list(a.values())
    sequence_b: Sequence[Hashable] = list(b.values())
    names_a, names_b = list(a), list(b)
    matcher = SequenceMatcher(None, sequence_a, sequence_b, autojunk=False)
    return [
        (names_a[block.a + n], names_b[block.b + n])
        for block in matcher.get_matching_blocks()
        for n in range(block.size)
    ]
