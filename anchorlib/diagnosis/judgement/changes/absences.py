"""Records that one run alone has, among those that an origin was made of.

A state that is not carried on, a backward that reaches a parameter in one run alone, a module that
is called once more: such records have no partner in the other run, so that no pair can differ by
them, and only their absence tells of the cause.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import Frontier, Role
from anchorlib.diagnosis.judgement.changes.second_steps import stepped_again
from anchorlib.diagnosis.judgement.changes.unreached import unreached
from anchorlib.diagnosis.judgement.series import series
from anchorlib.diagnosis.pairing import Table
from anchorlib.names import escape

__all__ = [
    "absences",
    "called_otherwise",
    "models_called_otherwise",
    "untrained",
    "untrained_since",
]

Array = np.ndarray[Any, Any]
SHOWN = 3
OUTPUT = re.compile(r"(^|\.)output$")
"""The result of a watched model."""


def absences(frontier: Frontier, row: int, names: Mapping[str, str]) -> list[str]:
    """What one run alone has of the parents of an origin, one clause for each.

    names: A's names -> B's, where they differ.
    """
    a = frontier.alignment.a
    kind = a.tensors[a.tensor[row]].kind
    if kind == "grad":
        return _lone_backwards(frontier, row, names)
    return [*_lost(frontier, row, names), *_called(frontier, row, names)] if kind == "value" else []


def untrained_since(frontier: Frontier, row: int) -> str:
    """Says which run leaves an update's parameter as it was, and why; "" where neither does.

    Where that run has a graph behind a value to which gradients come back in the other run alone,
    it cut the graph there. Elsewhere the parameter may need no gradient.
    """
    run = untrained(frontier, row)
    if not run:
        return ""
    left = f"{run} has no gradient of it, and leaves it"
    why = [one for one in unreached(frontier, row) if one.endswith(f"{run} detaches it")]
    return f"{left}; {why[0]}" if why else f"{left}: requires_grad?"


def untrained(frontier: Frontier, row: int) -> str:
    """The run that has no gradient of an update's parameter, and leaves it as it was; else "".

    That a run lacks the record of a gradient does not tell: it may have recorded less.
    """
    alignment = frontier.alignment
    a = alignment.a
    if a.tensors[a.tensor[row]].kind != "updated":
        return ""
    row_b = int(alignment.b_row[np.searchsorted(alignment.a_row, row)])
    still = [_stands_still(a, row), _stands_still(alignment.b, row_b)]
    return "" if still[0] == still[1] else "AB"[still.index(True)]


def _stands_still(table: Table, row: int) -> bool:
    """Whether a run has no gradient of an update's parameter, and the update does not change it."""
    held = series(table, row, "value")
    held = held[(table.step[held] == table.step[row]) & (table.order[held] < table.order[row])]
    if len(series(table, row, "grad")) or not len(held):
        return False
    return bool((table.digest[held[-1]] == table.digest[row]).all())


def _lost(frontier: Frontier, row: int, names: Mapping[str, str]) -> list[str]:
    """Parents of the row in its step of which B has no record there, one clause for each.

    A parent that A computed counts only where B uses its name elsewhere: of a name that B never
    uses, B may only lack the anchor.
    """
    alignment, a = frontier.alignment, frontier.alignment.a
    if not frontier.orphaned[row]:
        return []
    step = int(a.step[row])
    here = alignment.only_a[a.step[alignment.only_a] == step]
    known = {names.get(one.name, one.name) for one in a.tensors}
    known &= {one.name for one in alignment.b.tensors}
    given = here[frontier.role[here] != Role.COMPUTED]
    only = {a.tensors[one].name for one in a.tensor[given].tolist()}
    only |= {
        name
        for one in a.tensor[here].tolist()
        if names.get(name := a.tensors[one].name, name) in known
    }
    parents = dict.fromkeys(link.name for link in frontier.ancestry(row).parents)
    lost = [name for name in parents if name in only]
    told = []
    for name in lost[:SHOWN]:
        phases = _phases(frontier, names.get(name, name), step + alignment.step_offset)
        there = f"which B makes in phase {escape(phases[0])}" if phases else "which B does not have"
        told.append(f"A computes it from {escape(name)}, {there}")
    return told


def _phases(frontier: Frontier, name: str, step: int) -> list[str]:
    """The phases in which B has a value of this name in a step that A does not have."""
    b = frontier.alignment.b
    rows = frontier.alignment.only_b
    rows = rows[(b.step[rows] == step) & _named(b, name, "value")[rows]]
    return [b.phases[one] for one in np.unique(b.phase[rows]).tolist()]


def _lone_backwards(frontier: Frontier, row: int, names: Mapping[str, str]) -> list[str]:
    """The passes whose backward reaches the row's parameter in one run alone, a clause a run."""
    if stepped_again(frontier, row):
        return []  # the run has no backward pass there at all: it lacks no detach
    alignment = frontier.alignment
    a, b = alignment.a, alignment.b
    tensor, step = a.tensors[a.tensor[row]], int(a.step[row])
    name = names.get(tensor.name, tensor.name)
    sides = (
        ("A", a, alignment.only_a, tensor.name, step),
        ("B", b, alignment.only_b, name, step + alignment.step_offset),
    )
    told = []
    for (run, table, only, own, at), (_, other, *_, there) in zip(sides, sides[::-1], strict=True):
        rows = only[(table.step[only] == at) & _named(table, own, "pass_grad")[only]]
        if not len(rows) or not _named(a, tensor.name, "pass_grad")[alignment.a_row].any():
            continue
        passes = sorted(set(table.pass_index[rows].tolist()))
        listed = ", ".join(map(str, passes[:SHOWN]))
        if np.isin(passes, other.pass_index[other.step == there]).any():
            why = "reaches it: a detach, or a requires_grad, that one run lacks"
        else:
            why = "belongs to this step: the optimizer did not step before it"
        told.append(f"in {run} alone the backward of pass {listed} {why}")
    return told


def _called(frontier: Frontier, row: int, names: Mapping[str, str]) -> list[str]:
    """Says that the module that owns a buffer was called more often in one run before this row."""
    alignment, a = frontier.alignment, frontier.alignment.a
    tensor = a.tensors[a.tensor[row]]
    module = tensor.name.rpartition(".")[0]
    before = a.step[(a.order < a.order[row]) & _named(a, module, "value")]
    if not module or not len(before):
        return []
    last = int(before.max())
    row_b = int(alignment.b_row[np.searchsorted(alignment.a_row, row)])
    sides = (
        (a, row, module, last),
        (alignment.b, row_b, names.get(module, module), last + alignment.step_offset),
    )
    counts = [
        int((_named(t, own, "value") & (t.step == at) & (t.order < t.order[one])).sum())
        for t, one, own, at in sides
    ]
    if counts[0] == counts[1] or 0 in counts:
        return []
    one, two = ("once" if count == 1 else f"{count} times" for count in counts)
    return [f"in step {last} {escape(module)} is called {one} in A, is called {two} in B"]


def called_otherwise(frontier: Frontier, row: int) -> list[str]:
    """Says that the module whose result a value is has more calls in one run, in the same pass."""
    alignment, a = frontier.alignment, frontier.alignment.a
    tensor = a.tensors[a.tensor[row]]
    if tensor.kind != "value" or alignment.merged:
        return []
    row_b = int(alignment.b_row[np.searchsorted(alignment.a_row, row)])
    counts = [_calls(table, one) for table, one in ((a, row), (alignment.b, row_b))]
    if counts[0] == counts[1]:
        return []
    one, two = ("once" if count == 1 else f"{count} times" for count in counts)
    return [f"{escape(tensor.name)} is called {one} in A, {two} in B"]


def models_called_otherwise(frontier: Frontier, row: int, names: Mapping[str, str]) -> list[str]:
    """Which models one run called more often in a value's step, before the value was made.

    A call without gradients, whose result code computes with, is no parent of what it computes.
    """
    alignment, a = frontier.alignment, frontier.alignment.a
    if a.tensors[a.tensor[row]].kind != "value" or alignment.merged or a.gaps or alignment.b.gaps:
        return []
    row_b = int(alignment.b_row[np.searchsorted(alignment.a_row, row)])
    counts = [_models(a, row, names), _models(alignment.b, row_b, {})]
    told = []
    for name in sorted(counts[0].keys() | counts[1].keys()):
        one, two = (side.get(name, 0) for side in counts)
        if one != two and 0 in (one, two):
            told.append(f"{escape(name)} is called in {'AB'[one == 0]} alone")
        elif one != two:
            first, second = ("once" if n == 1 else f"{n} times" for n in (one, two))
            told.append(f"{escape(name)} is called {first} in A, {second} in B")
    return told[:SHOWN]


def _models(table: Table, row: int, names: Mapping[str, str]) -> dict[str, int]:
    """How often a run had made the result of each model, up to a row of the same step."""
    rank = table.tensors[table.tensor[row]].rank
    before = (table.step == table.step[row]) & (table.order < table.order[row])
    before &= table.attempt == table.attempt[row]
    found: dict[str, int] = {}
    for number, tensor in enumerate(table.tensors):
        if tensor.kind == "value" and tensor.rank == rank and OUTPUT.search(tensor.name):
            count = int((before & (table.tensor == number)).sum())
            if count:
                found[names.get(tensor.name, tensor.name)] = count
    return found


def _calls(table: Table, row: int) -> int:
    """How many records of the row's tensor there are in its pass."""
    same = table.tensor == table.tensor[row]
    for place in (table.step, table.pass_index, table.phase, table.attempt):
        same &= place == place[row]
    return int(same.sum())


def _named(table: Table, name: str, kind: str) -> Array:
    """Whether each row of a table belongs to the tensor of this name and kind, on any rank."""
    series = [n for n, one in enumerate(table.tensors) if one[:2] == (name, kind)]
    found: Array = np.isin(table.tensor, series)
    return found
