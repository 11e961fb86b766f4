"""Records that one run alone has and that may explain why a record differs in the other run.

Examples are a state that is not carried on, a backward that reaches a parameter in one run alone,
and a module that is called once more. Such records have no partner in the other run, so that no
pair of records can show the cause: only their absence does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from anchorlib.diagnosis.causes import Frontier, Role
from anchorlib.diagnosis.judgement.changes.optimizer_steps import parameters_of
from anchorlib.diagnosis.judgement.changes.second_steps import stepped_again
from anchorlib.diagnosis.judgement.changes.step_passes import passes_apart
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

SHOWN = 3
OUTPUT = re.compile(r"(^|\.)output$")
"""The result of a watched model."""


def absences(frontier: Frontier, row: int, names: Mapping[str, str]) -> list[str]:
    """Return clauses on records that one run alone has and that explain a row of A; [] without any.

    For a `grad` row these are backward passes that reached the parameter in one run alone. For a
    `value` row they are parents (records it was computed from) that B did not record in the step,
    and calls of its module. Other kinds have no clause.
    names: A's names -> B's, where they differ.
    """
    a = frontier.alignment.a
    kind = a.tensors[a.tensor[row]].kind
    if kind == "grad":
        return _lone_backwards(frontier, row, names)
    return [*_lost(frontier, row, names), *_called(frontier, row, names)] if kind == "value" else []


def untrained_since(frontier: Frontier, row: int) -> str:
    """Say which run leaves an update's parameter unchanged, and why; "" where neither run does.

    Two reasons are possible. If a value of the step has a gradient in the other run alone, the run
    detaches that value. Otherwise the parameter may not require a gradient.
    row: a row of A; only an `updated` row gives an answer.
    """
    run = untrained(frontier, row)
    if not run:
        return ""
    left = f"{run} has no gradient of it, and leaves it"
    why = [clause for clause in unreached(frontier, row) if clause.endswith(f"{run} detaches it")]
    return f"{left}; {why[0]}" if why else f"{left}: requires_grad?"


def untrained(frontier: Frontier, row: int) -> str:
    """Return the run ("A", "B") that has no gradient of an updated parameter and left it unchanged.

    "" where neither run, or both, did so. A missing gradient record alone does not suffice: the run
    may have recorded less. row: an `updated` row of the parameter; other rows give "".
    """
    alignment = frontier.alignment
    a = alignment.a
    if a.tensors[a.tensor[row]].kind != "updated":
        return ""
    row_b = int(alignment.b_row[np.searchsorted(alignment.a_row, row)])
    still = [_stands_still(a, row), _stands_still(alignment.b, row_b)]
    return "" if still[0] == still[1] else "AB"[still.index(True)]


def _stands_still(table: Table, row: int) -> bool:
    """Return whether a run has no gradient of an updated parameter, and left it unchanged.

    row: the parameter's `updated` record. False where the run has no `value` record of the
    parameter earlier in the step.
    """
    held = series(table, row, "value")
    held = held[(table.step[held] == table.step[row]) & (table.order[held] < table.order[row])]
    graded = series(table, row, "grad")
    if (table.step[graded] == table.step[row]).any() or not len(held):
        return False
    return bool((table.digest[held[-1]] == table.digest[row]).all())


def _lost(frontier: Frontier, row: int, names: Mapping[str, str]) -> list[str]:
    """Return a clause for each parent of a row that B lacks in the row's step; at most SHOWN.

    A parent that A computed counts only where B uses its name elsewhere: where B never uses the
    name, B may compute the tensor and lack its anchor. A parameter that B has does not count: a run
    records the value of a parameter only where it was changed. row: a value of A. names: A's names
    -> B's, where they differ.
    """
    alignment, a = frontier.alignment, frontier.alignment.a
    if not frontier.parent_only_in_a[row]:
        return []
    step = int(a.step[row])
    here = alignment.only_a[a.step[alignment.only_a] == step]
    known = {names.get(tensor.name, tensor.name) for tensor in a.tensors}
    known &= {tensor.name for tensor in alignment.b.tensors}
    given = here[frontier.role[here] != Role.COMPUTED]
    only = {a.tensors[number].name for number in a.tensor[given].tolist()}
    only |= {
        name
        for number in a.tensor[here].tolist()
        if names.get(name := a.tensors[number].name, name) in known
    }
    parents = dict.fromkeys(link.name for link in frontier.ancestry(row).parents)
    parameters = parameters_of(a, a.tensors[a.tensor[row]].rank)
    held = {name for name in parameters if names.get(name, name) in known}
    lost = [name for name in parents if name in only - held]
    clauses = []
    for name in lost[:SHOWN]:
        phases = _phases(frontier, names.get(name, name), step + alignment.step_offset)
        there = f"which B makes in phase {escape(phases[0])}" if phases else "which B does not have"
        clauses.append(f"A computes it from {escape(name)}, {there}")
    return clauses


def _phases(frontier: Frontier, name: str, step: int) -> list[str]:
    """Return the phases of B's step `step` in which B alone recorded a value of this name."""
    b = frontier.alignment.b
    rows = frontier.alignment.only_b
    rows = rows[(b.step[rows] == step) & b.of_tensor(name, "value")[rows]]
    return [b.phases[code] for code in np.unique(b.phase[rows]).tolist()]


def _lone_backwards(frontier: Frontier, row: int, names: Mapping[str, str]) -> list[str]:
    """Return a clause for each run whose backward passes alone reach a row's parameter.

    Where the runs have different passes at the row, the clause of `passes_apart` is returned
    instead. [] where the same passes reach the parameter in both runs, where the other run lost
    records, and where one run's optimizer stepped twice on the gradients of one backward.
    row: a `grad` row of the parameter in A. Only passes of the row's step and rank count: another
    rank may lack them since it is at another step.
    """
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
    clauses = []
    for (run, table, only, own, at), (_, other, *_, there) in zip(sides, sides[::-1], strict=True):
        rows = only[(table.step[only] == at) & table.of_tensor(own, "pass_grad", tensor.rank)[only]]
        if not len(rows) or not a.of_tensor(tensor.name, "pass_grad")[alignment.a_row].any():
            continue
        if other.gaps:
            continue  # the passes may have been lost there
        passes = sorted(set(table.pass_index[rows].tolist()))
        listed = ", ".join(map(str, passes[:SHOWN]))
        if np.isin(passes, other.pass_index[other.step == there]).any():
            why = "reaches it: a detach, or a requires_grad, that one run lacks"
        else:
            why = "belongs to this step: the optimizer did not step before it"
        clauses.append(f"in {run} alone the backward of pass {listed} {why}")
    return [*filter(None, [passes_apart(frontier, row)])] or clauses


def _called(frontier: Frontier, row: int, names: Mapping[str, str]) -> list[str]:
    """Return a clause if one run called a value's module more often than the other run; else [].

    The module is the value's name without the last part. Calls count that come before the row, in
    the last step in which A called the module. [] too for parameters, and where B did not call the
    module in that step.
    row: a value of A, such as a buffer.
    """
    alignment, a = frontier.alignment, frontier.alignment.a
    tensor = a.tensors[a.tensor[row]]
    module = tensor.name.rpartition(".")[0] if frontier.role[row] != Role.PARAMETER else ""
    rank = tensor.rank
    before = a.step[(a.order < a.order[row]) & a.of_tensor(module, "value", rank)]
    if not module or not len(before):
        return []
    last = int(before.max())
    row_b = int(alignment.b_row[np.searchsorted(alignment.a_row, row)])
    sides = (
        (a, row, module, last),
        (alignment.b, row_b, names.get(module, module), last + alignment.step_offset),
    )
    counts = [
        int((t.of_tensor(own, "value", rank) & (t.step == at) & (t.order < t.order[calls_a])).sum())
        for t, calls_a, own, at in sides
    ]
    if counts[0] == counts[1] or 0 in counts:
        return []
    calls_a, calls_b = ("once" if count == 1 else f"{count} times" for count in counts)
    return [f"in step {last} {escape(module)} is called {calls_a} in A, is called {calls_b} in B"]


def called_otherwise(frontier: Frontier, row: int, names: Mapping[str, str]) -> list[str]:
    """Return a clause if one run calls a value's module, or a gradient's, more often; else [].

    The module of a gradient is the one that holds its parameter. The calls of a value's pass are
    counted; for a gradient those of its step's first pass. [] also where passes or ranks were
    merged, for other kinds of rows, and, for a gradient, where a run has no record of a call.
    row: a row of A.
    """
    alignment, a = frontier.alignment, frontier.alignment.a
    tensor = a.tensors[a.tensor[row]]
    if alignment.merged:
        return []
    row_b = int(alignment.b_row[np.searchsorted(alignment.a_row, row)])
    sides = ((a, row), (alignment.b, row_b))
    if tensor.kind == "value":
        module, counts = tensor.name, [_calls(table, at) for table, at in sides]
    else:
        module = tensor.name.rpartition(".")[0]
        counts = [
            _calls_for_gradient(table, at, name)
            for (table, at), name in zip(sides, (module, names.get(module, module)), strict=True)
        ]
        if tensor.kind not in ("grad", "pass_grad") or 0 in counts:
            return []
    if counts[0] == counts[1]:
        return []
    calls_a, calls_b = ("once" if count == 1 else f"{count} times" for count in counts)
    return [f"{escape(module)} is called {calls_a} in A, {calls_b} in B"]


def models_called_otherwise(frontier: Frontier, row: int, names: Mapping[str, str]) -> list[str]:
    """Return clauses on models that one run called more often in a value's step, before the value.

    A model is known by its result, a value named `output` or `….output`. [] for other kinds of
    rows, and where records were lost or merged.

    Such a call may explain the value although it is no parent: autograd does not follow a call
    without gradients, even where the program computes with its result.
    row: a row of A. At most SHOWN clauses.
    """
    alignment, a = frontier.alignment, frontier.alignment.a
    if a.tensors[a.tensor[row]].kind != "value" or alignment.merged or a.gaps or alignment.b.gaps:
        return []
    row_b = int(alignment.b_row[np.searchsorted(alignment.a_row, row)])
    counts = [_models(a, row, names), _models(alignment.b, row_b, {})]
    clauses = []
    for name in sorted(counts[0].keys() | counts[1].keys()):
        count_a, count_b = (side.get(name, 0) for side in counts)
        if count_a != count_b and 0 in (count_a, count_b):
            clauses.append(f"{escape(name)} is called in {'AB'[count_a == 0]} alone")
        elif count_a != count_b:
            first, second = ("once" if n == 1 else f"{n} times" for n in (count_a, count_b))
            clauses.append(f"{escape(name)} is called {first} in A, {second} in B")
    return clauses[:SHOWN]


def _models(table: Table, row: int, names: Mapping[str, str]) -> dict[str, int]:
    """Return how often each model was called before a row, in the row's step: output name → count.

    names: A's names -> B's for A's table, else {}. The counts are by B's names.
    """
    rank = table.tensors[table.tensor[row]].rank
    before = (table.step == table.step[row]) & (table.order < table.order[row])
    before &= table.attempt == table.attempt[row]
    counts: dict[str, int] = {}
    for number, tensor in enumerate(table.tensors):
        if tensor.kind == "value" and tensor.rank == rank and OUTPUT.search(tensor.name):
            count = int((before & (table.tensor == number)).sum())
            if count:
                counts[names.get(tensor.name, tensor.name)] = count
    return counts


def _calls(table: Table, row: int) -> int:
    """Return how many records a row's tensor has in the row's pass: how often it was called."""
    of_pass = table.tensor == table.tensor[row]
    for place in (table.step, table.pass_index, table.phase, table.attempt):
        of_pass &= place == place[row]
    return int(of_pass.sum())


def _calls_for_gradient(table: Table, row: int, module: str) -> int:
    """Return how many calls of a module were recorded in the first pass of a row's step.

    row: the gradient of one of the module's parameters, whose phase and attempt count.
    """
    phase = table.phase == table.phase[row]
    calls = table.of_tensor(module, "value", table.tensors[table.tensor[row]].rank)
    calls &= phase & (table.step == table.step[row]) & (table.attempt == table.attempt[row])
    passes = table.pass_index[calls]
    return int((passes == passes.min(initial=np.iinfo(passes.dtype).max)).sum())
