"""Whether one run alone cuts the graph behind a tensor, by a `detach` that the other run lacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.judgement.changes.operations import plainly
from anchorlib.diagnosis.judgement.sparse_sums import INDICES, VALUES
from anchorlib.names import escape
from anchorlib.record import Edges
from anchorlib.scope import NO_GRAD, TRAIN

__all__ = ["detached"]

Site = tuple[str, str, int, int]


def detached(frontier: Frontier, row: int) -> list[str]:
    """Return a clause on the record from which a gradient comes back in one run alone; else [].

    row: a gradient of A; a `value` row gives [].

    Four signs are tried in turn. The first is a record from which gradients reach the row's tensor
    in one run, and that has no graph in the other run. The second is a record from which gradients
    reach, in the other run, the same tensors but the row's, or but several of which it is one. The
    third is a record of which one run makes more calls that lead gradients to the tensor, while the
    other run makes calls of it without gradients. The fourth is a record that both runs make of the
    tensor by the same operations, some of which take in one run alone what autograd follows.
    """
    alignment = frontier.alignment
    tensor = alignment.a.tensors[alignment.a.tensor[row]]
    if tensor.kind == "value":
        return []
    name = tensor.name.removesuffix(INDICES).removesuffix(VALUES)  # of a sparse gradient
    names = {renaming.a: renaming.b for renaming in alignment.renamed}
    back = {b: a for a, b in names.items()}
    told_a = alignment.a.edges.get(tensor.rank, ())
    told_b = alignment.b.edges.get(tensor.rank, ())
    for same in (name, *_same_tensor(told_a, name)):
        a = _leading(told_a, same, {})
        b = _leading(told_b, names.get(same, same), back)
        for run, own, others in (("A", a, b), ("B", b, a)):
            alone = [site[0] for site, leads in own.items() if leads and others.get(site) is False]
            if alone:
                who = escape(alone[0])
                return [f"in {run} alone gradients come back to it from {who} (detach?)"]
        cut = _cut(told_a, told_b, same, back) or _called_with_gradients(a, b)
        if cut := cut or _cut_inside(told_a, told_b, same, back):
            return [cut]
    return []


def _same_tensor(statements: Iterable[Edges], name: str) -> list[str]:
    """Return other names of a tensor: no operation lies between its records under both names.

    So it is with the result of a model that is the result of its last module.
    statements: the stored edges of A. name: A's name of the tensor.
    """
    pairs = (
        {edges.name, edges.parents[0].name}
        for edges in statements
        if not edges.ops and len(edges.parents) == 1 and edges.parents[0].call is not None
    )
    return sorted({other for pair in pairs if name in pair for other in pair - {name}})


def _called_with_gradients(a: dict[Site, bool], b: dict[Site, bool]) -> str:
    """Return a clause on a record that leads gradients back from more calls in one run; else "".

    The other run must make calls of this record without gradients instead.
    a, b: for each record of A and of B, by (name, phase, pass, call), whether gradients go back
    through it.
    """
    for run, own, others in (("A", a, b), ("B", b, a)):
        calls, fewer = _calls(own), _calls(others)
        silent, less = ({site for site in leads if site[1] == NO_GRAD} for leads in (others, own))
        names = {site[0] for site in silent - less}
        for name in calls:
            if name in names and calls[name] > fewer[name] > 0:
                both = f"{calls[name]} calls of {escape(name)}"
                other = "B" if run == "A" else "A"
                return (
                    f"in {run} alone gradients come back to it from {both}, which {other} also "
                    "calls without gradients (detach?)"
                )
    return ""


def _calls(led: dict[Site, bool]) -> Counter[str]:
    """Return how many training calls of each name lead gradients back: name → calls.

    Calls of equal number in different passes count as one call. led: for each record, whether
    gradients go back through it.
    """
    sites = {
        (name, call) for (name, phase, _, call), leads in led.items() if leads and phase == TRAIN
    }
    return Counter(name for name, _ in sites)


def _cut(
    edges_a: Iterable[Edges], edges_b: Iterable[Edges], name: str, back: dict[str, str]
) -> str:
    """Return a clause that names the record that leads gradients to `name` in one run alone, or "".

    In the other run, that record leads gradients only to some of the other tensors: what is cut may
    be made of several.
    edges_a, edges_b: the stored edges of A and of B. back: B's names -> A's, where they differ.
    """
    a, b = _parents(edges_a, {}), _parents(edges_b, back)
    for run, own, others in (("A", a, b), ("B", b, a)):
        for site, parents in own.items():
            other = others.get(site)
            if name in parents and other and other < parents and name not in other:
                return f"in {run} alone gradients come back to it from {escape(site[0])} (detach?)"
    return ""


def _cut_inside(
    edges_a: Iterable[Edges], edges_b: Iterable[Edges], name: str, back: dict[str, str]
) -> str:
    """Return a clause on a record inside of which one run cuts the graph behind `name`; or "".

    Both runs make the record by the same operations. Where the graph is cut, an operation takes a
    value that autograd does not follow: a state, for example, that is detached between two chunks.
    edges_a, edges_b: the stored edges of A and of B. back: B's names -> A's, where they differ.
    """
    made = {
        (edges.name, edges.phase, edges.pass_index, edges.call): edges
        for edges in reversed(list(edges_a))
        if name in _followed(edges)
    }
    for other in edges_b:
        site = (back.get(other.name, other.name), other.phase, other.pass_index, other.call)
        own = made.get(site)
        if own is None or own.ops != other.ops or len(own.inputs) != len(other.inputs):
            continue
        for run, more, fewer in (("A", own, other), ("B", other, own)):
            if ends := _followed_in_one(more, fewer):
                op = plainly(more.ops[ends[0]])
                times = f"{len(ends)} inputs" if len(ends) > 1 else "an input"
                return (
                    f"inside {escape(site[0])} gradients go on behind {times} of {op} in {run} "
                    "alone (detach?)"
                )
    return ""


def _followed_in_one(more: Edges, fewer: Edges) -> list[int]:
    """Return, for each input that autograd follows in `more` alone, the number of its operation.

    [] where any other input differs. more, fewer: edges with the same operations.
    """
    ends: list[int] = []
    for number, (own, other) in enumerate(zip(more.inputs, fewer.inputs, strict=True)):
        if len(own) != len(other):
            return []
        apart = [(x, y) for x, y in zip(own, other, strict=True) if x != y]
        if any(x == 0 or y != 0 for x, y in apart):
            return []
        ends += [number] * len(apart)
    return ends


def _parents(statements: Iterable[Edges], renamed: dict[str, str]) -> dict[Site, set[str]]:
    """Return, for each record, the names of the tensors that its gradients reach.

    Keys are (name, phase, pass, call). Where the edges of several steps have equal keys, the first
    edges count.
    statements: the stored edges of a run. renamed: B's names -> A's; empty for A's edges.
    """
    parents_of: dict[Site, set[str]] = {}
    for edges in statements:
        site = (renamed.get(edges.name, edges.name), edges.phase, edges.pass_index, edges.call)
        parents_of.setdefault(site, {renamed.get(parent, parent) for parent in _followed(edges)})
    return parents_of


def _leading(statements: Iterable[Edges], name: str, renamed: dict[str, str]) -> dict[Site, bool]:
    """Return, for each record, whether gradients reach `name` through it.

    Keys are (name, phase, pass, call). False stands for a record without a graph. A record with a
    graph that does not lead to `name` is left out. Of all other edges with equal keys, those of the
    first step count.
    statements: the stored edges of a run. renamed: B's names -> A's; empty for A's edges.
    """
    leads: dict[Site, bool] = {}
    for edges in statements:
        site = (renamed.get(edges.name, edges.name), edges.phase, edges.pass_index, edges.call)
        parents = _followed(edges)
        if not parents or name in parents:
            leads.setdefault(site, bool(parents))
    return leads


def _followed(edges: Edges) -> set[str]:
    """Return the names of the tensors to which gradients go back from one record, by its edges."""
    if not edges.ops:
        return {parent.name for parent in edges.parents}
    numbers = {-source for sources in edges.inputs for source in sources if source < 0}
    return {edges.parents[number - 1].name for number in numbers}
