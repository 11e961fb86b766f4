"""The structure of two runs side by side: names, shapes, dtypes, operations, inputs.

    names of both ─┬─ only in one ────────────▶ added, removed
                   ├─ in both, facts differ ──▶ other: (fact, a's, b's)
                   └─ in both, facts agree ───▶ equal

A node stands for a name, or for a whole module whose names were all added, all removed or all left
equal. A module or tensor that neither run recorded is not known here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from anchorlib.diagnosis import Comparison
from anchorlib.diagnosis.causes import made_otherwise, module_key
from anchorlib.diagnosis.judgement import computing
from anchorlib.diagnosis.pairing import compiled
from anchorlib.names import escape
from anchorlib.record import Edges
from anchorlib.report.run_view import RunView

__all__ = ["StructureNode", "structure"]

Change = Literal["equal", "added", "removed", "other"]
Fact = tuple[str, str, str]
Way = tuple[tuple[str, ...], tuple[str, ...]]
"""How a value was computed: its operations and its inputs."""

MOST_NODES = 400
NAMES_SHOWN = 6


@dataclass(frozen=True, slots=True)
class StructureNode:
    """A module or a tensor of either run, and how the two runs differ in it.

    path: the name of the module or tensor. names: how many recorded names the node stands for: 1,
        or all those of a module.
    change: "added" if only run B has it, "removed" if only run A has it, "other" if both have it
        and facts differ, "equal" if both have it and no fact differs.
    facts: each fact that differs, as (what, run A's, run B's); what is "shape", "dtype", "module"
        (how it was constructed), "operations" or "inputs".
    """

    path: str
    change: Change
    names: int = 1
    facts: Sequence[Fact] = ()


def structure(comparison: Comparison, a: RunView, b: RunView) -> dict[str, Any]:
    """Return the modules and tensors of two runs for the page, and how the runs differ in each.

    The result is {"nodes": a list of [path, change, names, facts] (see `StructureNode`), sorted by
    path, "more": how many nodes were left out}. Of more than MOST_NODES nodes, those that changed
    are kept before equal ones. a, b: what the page shows of the runs.
    """
    nodes = _rolled(_compared(comparison, a, b))
    listed = sorted(nodes, key=lambda one: one.change == "equal")[:MOST_NODES]
    return {
        "nodes": [
            [escape(one.path), one.change, one.names, [[escape(t) for t in f] for f in one.facts]]
            for one in sorted(listed, key=lambda one: _by_number(one.path))
        ],
        "more": len(nodes) - len(listed),
    }


def _compared(comparison: Comparison, a: RunView, b: RunView) -> list[StructureNode]:
    """Return a node for every recorded name of either run; a renamed tensor goes by its name in A.

    a, b: what the page shows of run A and of run B.
    """
    names = {one.b: one.a for one in comparison.renamed}
    looks_a, looks_b = _looks(a, {}), _looks(b, names)
    alignment = comparison.alignment
    ways_a = _ways(alignment.a.edges, {}) if alignment is not None else {}
    ways_b = _ways(alignment.b.edges, names) if alignment is not None else {}
    nodes = []
    for name in dict.fromkeys([*looks_a, *looks_b]):
        if name not in looks_b or name not in looks_a:
            nodes.append(StructureNode(name, "added" if name in looks_b else "removed"))
            continue
        pairs = zip(("shape", "dtype"), looks_a[name], looks_b[name], strict=True)
        facts = [(what, one, two) for what, one, two in pairs if one != two]
        facts += _other_module(comparison, name, names)
        facts += _other_ways(ways_a.get(name, []), ways_b.get(name, []))
        nodes.append(StructureNode(name, "other" if facts else "equal", facts=facts))
    return nodes


def _other_module(
    comparison: Comparison, name: str, names: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """Return [("module", A's, B's)] if runs A and B constructed a module differently, else [].

    A's and B's are texts on how each run constructed the module. Also [] where that is not known.
    name: the module's name in A. names: {B's name: A's name} of what was renamed.
    """
    alignment = comparison.alignment
    if alignment is None:
        return []
    one, two = (next(iter(t.header.values()), {}) for t in (alignment.a, alignment.b))
    other = next((b for b, a in names.items() if a == name), name)
    made = made_otherwise(one.get(module_key(name)), two.get(module_key(other)))
    return [] if made is None else [("module", *made)]


def _looks(view: RunView, names: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return {name: (shape, dtype)} as texts, for each name of a run.

    They are those of the name's records of kind `value`; without these, of the name's first line.
    names: {B's name: A's name} of what was renamed, for the view of B; {} for that of A.
    """
    looks: dict[str, tuple[str, str]] = {}
    for line in sorted(view.lines, key=lambda one: one.kind != "value"):
        looks.setdefault(names.get(line.name, line.name), (line.shape, line.dtype))
    return looks


def _ways(edges: Mapping[int, Iterable[Edges]], names: Mapping[str, str]) -> dict[str, list[Way]]:
    """Return {name: the distinct ways in which it was computed}, as operations and inputs.

    Values of which autograd knows only a part are left out: those of code that was compiled into
    one operation, and those whose inputs are not all known.
    edges: the lineage of a run, by rank: what each value was computed from.
    names: {B's name: A's name} of what was renamed, for the lineage of B; {} for that of A.
    """
    ways: dict[str, list[Way]] = {}
    for one in (one for some in edges.values() for one in some):
        if one.missing or compiled(one.ops):
            continue
        inputs = {names.get(parent.name, parent.name) for parent in one.parents}
        way = (computing(one.ops), tuple(sorted(inputs, key=_by_number)))
        own = ways.setdefault(names.get(one.name, one.name), [])
        if way not in own:
            own.append(way)
    return ways


def _other_ways(a: Sequence[Way], b: Sequence[Way]) -> list[Fact]:
    """Return how the ways in which runs A and B computed a name differ, as facts.

    A fact is ("operations" or "inputs", what only A's way has, what only B's way has). The first
    way that only A has is compared with the first way that only B has; a run without a way of its
    own takes part with its first way. Returns [] where both runs have the same ways, or where the
    ways of a run are not known.
    a, b: all ways in which runs A and B computed the name.
    """
    if not a or not b or set(a) == set(b):
        return []
    one = next((way for way in a if way not in b), a[0])
    two = next((way for way in b if way not in a), b[0])
    facts = []
    for what, first, second in zip(("operations", "inputs"), one, two, strict=True):
        left, right = Counter(first) - Counter(second), Counter(second) - Counter(first)
        if left or right:
            facts.append((what, _listed(left), _listed(right)))
        elif first != second:
            facts.append((what, _listed(Counter(first)), "the same in another order"))
    return facts


def _listed(names: Counter[str]) -> str:
    """Return names as text, such as "add ×2, mul"; "–" for no names.

    Names beyond NAMES_SHOWN are only counted ("and 3 more").
    """
    texts = [f"{name} ×{count}" if count > 1 else name for name, count in names.items()]
    more = len(texts) - NAMES_SHOWN
    return ", ".join(texts[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "") or "–"


def _rolled(nodes: Sequence[StructureNode]) -> list[StructureNode]:
    """Return the nodes, with one node for a whole module whose nodes all have the same change.

    Nodes that are in both runs and differ ("other") are never merged. Where such modules lie
    inside one another, only the outermost gets a node.
    """
    changes: dict[str, Counter[str]] = {}
    for node in nodes:
        for lead in _leads(node.path):
            changes.setdefault(lead, Counter())[node.change] += 1
    rolled: dict[str, StructureNode] = {}
    for node in nodes:
        leads = _leads(node.path) if node.change != "other" else ()
        top = next((lead for lead in leads if len(changes[lead]) == 1), "")
        if top:
            rolled[top] = StructureNode(top, node.change, changes[top].total())
        else:
            rolled[node.path] = node
    return list(rolled.values())


def _leads(path: str) -> list[str]:
    """Return the paths of the modules around a name, the outermost first, and the name last.

    For "a.b.c" this is ["a", "a.b", "a.b.c"].
    """
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _by_number(path: str) -> list[tuple[int, str]]:
    """Return a sorting key for paths that puts layer 2 before layer 10."""
    parts = path.split(".")
    return [(int(p), "") if re.fullmatch(r"[0-9]{1,9}", p) else (-1, p) for p in parts]
