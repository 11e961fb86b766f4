"""Names matched by their place in the sequence of operations, where spelling does not help."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from difflib import SequenceMatcher

from anchorlib.diagnosis.pairing.names import Naming, Shapes
from anchorlib.diagnosis.pairing.table import Table

__all__ = ["match_operations"]

MOST = 20_000_000  # comparisons of equal tokens, beyond which difflib takes minutes


def match_operations(naming: Naming, a: Table, b: Table) -> None:
    """Matches free names that stand at the same place in the same sequence of operations.

    A name is told by the operations that made it, those of what was first made of it, its kinds and
    shapes; one of which no operation is known, not at all. Names that are matched already hold
    the sequences together. Free names are taken only where a longest common subsequence pairs all
    that are told alike, of both runs.
    """
    if not naming.left_a or not naming.left_b:
        return
    back = {two: one for one, two in naming.to_b.items()}
    told_a = _tokens(naming.a, a, dict(naming.to_b))
    told_b = _tokens(naming.b, b, {two: two for two in back})
    free_a = Counter(told_a[name] for name in naming.left_a if name in told_a)
    free_b = Counter(told_b[name] for name in naming.left_b if name in told_b)
    if sum(count * free_b[token] for token, count in free_a.items()) > MOST:
        return
    names_a, names_b = list(told_a), list(told_b)
    matcher = SequenceMatcher(None, list(told_a.values()), list(told_b.values()), autojunk=False)
    pairs = [
        (names_a[block.a + n], names_b[block.b + n])
        for block in matcher.get_matching_blocks()
        for n in range(block.size)
        if names_a[block.a + n] not in naming.to_b
    ]
    paired = Counter(told_a[one] for one, _ in pairs)
    for one, two in pairs:
        token = told_a[one]
        if paired[token] == free_a[token] == free_b[token]:
            naming.match(one, two, "operations")


def _tokens(shapes: Shapes, table: Table, known: dict[str, str]) -> dict[str, Hashable]:
    """What each name is told by, in order of execution; a known one by B's name alone."""
    made: dict[str, Hashable] = {}
    used: dict[str, Hashable] = {}
    for rank in sorted(table.edges):
        for edges in table.edges[rank]:
            made.setdefault(edges.name, (edges.ops, len(edges.parents)))
            for number, parent in enumerate(edges.parents):
                used.setdefault(parent.name, (edges.ops, number))
    return {
        name: ("=", known[name])
        if name in known
        else (made.get(name), used.get(name), tuple(sorted(kinds.items())))
        for name, kinds in shapes.items()
        if name in known or name in made or name in used
    }
