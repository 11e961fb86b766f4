"""What two runs are made of, side by side: names, shapes, dtypes, operations, inputs.

    names of both ─┬─ only in one ────────────▶ added, removed
                   ├─ in both, facts differ ──▶ other: (fact, a's, b's)
                   └─ in both, facts agree ───▶ equal

A module whose names all changed in the same way is one node. Only what was recorded is known.
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
from anchorlib.report.values import RunView

__all__ = ["Node", "structure"]

Change = Literal["equal", "added", "removed", "other"]
Fact = tuple[str, str, str]
Way = tuple[tuple[str, ...], tuple[str, ...]]
"""How a value was computed: its operations and its inputs."""

MOST_NODES = 400
NAMES_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Node:
    """A module or a tensor of either run.

    path: its name. names: how many recorded names it stands for, its own included.
    facts: of an `other`, what differs: (what, in A, in B).
    """

    path: str
    change: Change
    names: int = 1
    facts: Sequence[Fact] = ()


def structure(comparison: Comparison, a: RunView, b: RunView) -> dict[str, Any]:
    """The nodes for the document, by path, with their true number where not all are listed."""
    nodes = _rolled(_compared(comparison, a, b))
    told = sorted(nodes, key=lambda one: one.change == "equal")[:MOST_NODES]
    return {
        "nodes": [
            [escape(one.path), one.change, one.names, [[escape(t) for t in f] for f in one.facts]]
            for one in sorted(told, key=lambda one: _by_number(one.path))
        ],
        "more": len(nodes) - len(told),
    }


def _compared(comparison: Comparison, a: RunView, b: RunView) -> list[Node]:
    """Every recorded name of both runs; a renamed one stands under its name in A."""
    names = {one.b: one.a for one in comparison.renamed}
    told_a, told_b = _looks(a, {}), _looks(b, names)
    alignment = comparison.alignment
    ways_a = _ways(alignment.a.edges, {}) if alignment is not None else {}
    ways_b = _ways(alignment.b.edges, names) if alignment is not None else {}
    found = []
    for name in dict.fromkeys([*told_a, *told_b]):
        if name not in told_b or name not in told_a:
            found.append(Node(name, "added" if name in told_b else "removed"))
            continue
        pairs = zip(("shape", "dtype"), told_a[name], told_b[name], strict=True)
        facts = [(what, one, two) for what, one, two in pairs if one != two]
        facts += _other_module(comparison, name, names)
        facts += _other_ways(ways_a.get(name, []), ways_b.get(name, []))
        found.append(Node(name, "other" if facts else "equal", facts=facts))
    return found


def _other_module(
    comparison: Comparison, name: str, names: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """What the module of this name was made with, where the runs say different things."""
    alignment = comparison.alignment
    if alignment is None:
        return []
    one, two = (next(iter(t.header.values()), {}) for t in (alignment.a, alignment.b))
    other = next((b for b, a in names.items() if a == name), name)
    made = made_otherwise(one.get(module_key(name)), two.get(module_key(other)))
    return [] if made is None else [("module", *made)]


def _looks(view: RunView, names: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Shape and dtype of each name: of its value, where that was recorded."""
    found: dict[str, tuple[str, str]] = {}
    for line in sorted(view.lines, key=lambda one: one.kind != "value"):
        found.setdefault(names.get(line.name, line.name), (line.shape, line.dtype))
    return found


def _ways(edges: Mapping[int, Iterable[Edges]], names: Mapping[str, str]) -> dict[str, list[Way]]:
    """The ways in which each name was computed, each once.

    Left out is what autograd knows in part: code that was compiled into one operation, and values
    whose inputs could not all be told.
    """
    found: dict[str, list[Way]] = {}
    for one in (one for some in edges.values() for one in some):
        if one.missing or compiled(one.ops):
            continue
        inputs = {names.get(parent.name, parent.name) for parent in one.parents}
        way = (computing(one.ops), tuple(sorted(inputs, key=_by_number)))
        own = found.setdefault(names.get(one.name, one.name), [])
        if way not in own:
            own.append(way)
    return found


def _other_ways(a: Sequence[Way], b: Sequence[Way]) -> list[Fact]:
    """What one run computed otherwise than the other ever did; nothing where either is unknown."""
    if not a or not b or set(a) == set(b):
        return []
    one = next((way for way in a if way not in b), a[0])
    two = next((way for way in b if way not in a), b[0])
    found = []
    for what, first, second in zip(("operations", "inputs"), one, two, strict=True):
        left, right = Counter(first) - Counter(second), Counter(second) - Counter(first)
        if left or right:
            found.append((what, _listed(left), _listed(right)))
        elif first != second:
            found.append((what, _listed(Counter(first)), "the same in another order"))
    return found


def _listed(names: Counter[str]) -> str:
    """The names, each once with its number; "–" for none."""
    told = [f"{name} ×{count}" if count > 1 else name for name, count in names.items()]
    more = len(told) - NAMES_SHOWN
    return ", ".join(told[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "") or "–"


def _rolled(nodes: Sequence[Node]) -> list[Node]:
    """The same, but one node for each largest module whose names all changed alike."""
    changes: dict[str, Counter[str]] = {}
    for node in nodes:
        for lead in _leads(node.path):
            changes.setdefault(lead, Counter())[node.change] += 1
    found: dict[str, Node] = {}
    for node in nodes:
        leads = _leads(node.path) if node.change != "other" else ()
        top = next((lead for lead in leads if len(changes[lead]) == 1), "")
        if top:
            found[top] = Node(top, node.change, changes[top].total())
        else:
            found[node.path] = node
    return list(found.values())


def _leads(path: str) -> list[str]:
    """The modules that hold a name, the outermost first, itself last."""
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _by_number(path: str) -> list[tuple[int, str]]:
    """Sorts layer 2 before layer 10."""
    parts = path.split(".")
    return [(int(p), "") if re.fullmatch(r"[0-9]{1,9}", p) else (-1, p) for p in parts]
