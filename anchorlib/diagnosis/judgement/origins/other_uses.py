"""Values that the runs use differently for one result, so that their gradients need not be equal.

    chosen = probabilities.topk(2).values               chosen = logits.topk(2).values
    weights = chosen / chosen.sum(-1, keepdim=True)     weights = chosen.softmax(-1)

A gradient is taken along the ways on which a value is used. Where one run computes a result from a
value and the other run computes it from what this value was made of, both gradients of the value
are right, and they need not be near. They meet again in the gradient of what both runs use.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

from anchorlib.diagnosis.pairing import Alignment
from anchorlib.record import Edges

__all__ = ["Uses", "used_otherwise", "uses"]

Uses = Mapping[str, Mapping[str, frozenset[tuple[str, ...]]]]
"""A value's name → the name of each value computed from it → the operations, by statement."""


def used_otherwise(alignment: Alignment, rank: int, names: Collection[str]) -> set[str]:
    """Return the values in `names` that B uses otherwise, so that gradients are not comparable.

    The runs compute different results from such a value, or one result by different operations
    (`_splits`). Those in `names` from which A computes such a value are returned, too: their
    gradients follow from its gradient.
    names: names of values of A on `rank`, whose gradients differ beyond rounding.
    """
    a, b = alignment.a.edges.get(rank, ()), alignment.b.edges.get(rank, ())
    renamed = {renaming.b: renaming.a for renaming in alignment.renamed}
    mine, other = uses(a, {}), uses(b, renamed)
    chosen = {
        name
        for name in names
        if name in mine
        and name in other
        and (set(mine[name]) != set(other[name]) or _splits(name, mine, other))
    }
    waiting = list(chosen)
    while waiting:
        made = waiting.pop()
        before = {name for name in names if made in mine.get(name, ()) and name not in chosen}
        chosen |= before
        waiting += before
    return chosen


def uses(statements: Collection[Edges], renamed: Mapping[str, str]) -> Uses:
    """Return what a run's statements say is computed from each value, and by which operations.

    renamed: the run's names -> A's, where they differ.
    """
    operations_of: defaultdict[str, defaultdict[str, set[tuple[str, ...]]]]
    operations_of = defaultdict(lambda: defaultdict(set))
    for edges in statements:
        for parent in edges.parents:
            if parent.call is not None:
                name = renamed.get(parent.name, parent.name)
                operations_of[name][renamed.get(edges.name, edges.name)].add(edges.ops)
    return {
        name: {made: frozenset(ops) for made, ops in own.items()}
        for name, own in operations_of.items()
    }


def _splits(name: str, mine: Uses, other: Uses) -> bool:
    """Return whether the runs compute a result from `name` by different operations.

    A must compute this result from a parent of `name` as well: then B may take from the parent what
    A takes from `name`.
    mine, other: the uses in A and in B.
    """
    made_of = [parent for parent, own in mine.items() if name in own]
    return any(
        mine[name][made] != other[name][made] and any(made in mine[parent] for parent in made_of)
        for made in mine[name]
    )
