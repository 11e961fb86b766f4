"""Which values are computed from a parameter: a weight that one run alone ties, or unties."""

from __future__ import annotations

from collections.abc import Iterable

from anchorlib.diagnosis.causes import Frontier
from anchorlib.names import escape
from anchorlib.record import Edges

__all__ = ["shared_otherwise"]

Site = tuple[str, str, int, int]


def shared_otherwise(frontier: Frontier, row: int) -> list[str]:
    """Says of a parameter's gradient which value one run alone computes from the parameter.

    Only values that both runs state are looked at, of which one has another parameter in its place.
    """
    alignment = frontier.alignment
    tensor = alignment.a.tensors[alignment.a.tensor[row]]
    if tensor.kind not in ("grad", "pass_grad"):
        return []
    names = {one.a: one.b for one in alignment.renamed}
    own = names.get(tensor.name, tensor.name)
    one = _parameters(alignment.a.edges.get(tensor.rank, ()), names)
    two = _parameters(alignment.b.edges.get(tensor.rank, ()), {})
    for site in one:
        used = (own in one[site], own in two.get(site, ()))
        if site not in two or used[0] == used[1]:
            continue
        sides = [escape(own), ", ".join(sorted(map(escape, one[site] ^ two[site] ^ {own})))]
        if sides[1]:
            first, second = sides if used[0] else sides[::-1]
            return [f"A computes {escape(site[0])} from {first}, B from {second}"]
    return []


def _parameters(told: Iterable[Edges], names: dict[str, str]) -> dict[Site, set[str]]:
    """The parameters from which each value is computed at first, by its name and coordinates."""
    found: dict[Site, set[str]] = {}
    for one in told:
        site = (names.get(one.name, one.name), one.phase, one.pass_index, one.call)
        own = {names.get(parent.name, parent.name) for parent in one.parents if parent.call is None}
        found.setdefault(site, own)
    return found
