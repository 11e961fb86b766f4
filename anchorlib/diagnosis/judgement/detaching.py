"""Whether one run alone cuts the graph behind a tensor: a `detach` too many, or one too few."""

from __future__ import annotations

from collections.abc import Iterable

from anchorlib.diagnosis.causes import Frontier
from anchorlib.names import escape
from anchorlib.record import DETACHED, Edges

__all__ = ["detached"]

Site = tuple[str, str, int, int]


def detached(found: Frontier, row: int) -> list[str]:
    """What to say of a gradient that differs where one run alone detaches its tensor."""
    alignment = found.alignment
    tensor = alignment.a.tensors[alignment.a.tensor[row]]
    if tensor.kind == "value":
        return []
    names = {one.a: one.b for one in alignment.renamed}
    a = _cut(alignment.a.edges.get(tensor.rank, ()), tensor.name, {})
    b = _cut(
        alignment.b.edges.get(tensor.rank, ()),
        names.get(tensor.name, tensor.name),
        {two: one for one, two in names.items()},
    )
    for run, other, own, others in (("A", "B", a, b), ("B", "A", b, a)):
        alone = [site[0] for site, cut in own.items() if cut and others.get(site) is False]
        if alone:
            return [f"{run} detaches it for {escape(alone[0])}, {other} does not"]
    return []


def _cut(told: Iterable[Edges], name: str, renamed: dict[str, str]) -> dict[Site, bool]:
    """By place, whether what was said of it first is a detached tensor of this name.

    False: it is made of a tensor with its graph, or known by no other name.
    """
    told = list(told)
    same = {name}
    for _ in range(2):
        for one in told:
            if not one.ops and one.parents and same & {one.name, one.parents[0].name}:
                same |= {one.name, one.parents[0].name}
    found: dict[Site, bool] = {}
    for one in told:
        site = (renamed.get(one.name, one.name), one.phase, one.pass_index, one.call)
        cut = one.ops == (DETACHED,)
        if not cut or one.parents[0].name in same:
            found.setdefault(site, cut)
    return found
