"""Which values are computed from a parameter: a weight that one run alone ties, or unties."""

from __future__ import annotations

from collections.abc import Iterable

from anchorlib.diagnosis.causes import Frontier
from anchorlib.names import escape
from anchorlib.record import Edges

__all__ = ["shared_otherwise"]

Site = tuple[str, str, int, int]


def shared_otherwise(frontier: Frontier, row: int) -> list[str]:
    """Return a clause that names the value that one run alone computes from a parameter, or [].

    row: the parameter's gradient. Only values count that both runs' edges describe, and that the
        other run computes from another parameter instead.
    """
    alignment = frontier.alignment
    tensor = alignment.a.tensors[alignment.a.tensor[row]]
    if tensor.kind not in ("grad", "pass_grad"):
        return []
    names = {renaming.a: renaming.b for renaming in alignment.renamed}
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


def _parameters(statements: Iterable[Edges], names: dict[str, str]) -> dict[Site, set[str]]:
    """Return (name, phase, pass, call) of a value → the parameters that it was computed from.

    statements: the stored edges of a run, of which the first for each value counts.
    names: A's names -> B's; empty for B itself.
    """
    parameters: dict[Site, set[str]] = {}
    for edges in statements:
        site = (names.get(edges.name, edges.name), edges.phase, edges.pass_index, edges.call)
        own = {
            names.get(parent.name, parent.name) for parent in edges.parents if parent.call is None
        }
        parameters.setdefault(site, own)
    return parameters
