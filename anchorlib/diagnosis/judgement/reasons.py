"""The reasons of an origin besides its class, as clauses of one line for people."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from anchorlib.diagnosis.causes import Frontier, Role, mode_since
from anchorlib.diagnosis.judgement.changes import (
    computing,
    detached,
    stepped_again,
    untrained,
)
from anchorlib.diagnosis.judgement.origins import OriginGroup
from anchorlib.diagnosis.pairing import compiled
from anchorlib.diagnosis.sizes import Measure, unrounding
from anchorlib.names import escape

__all__ = ["reason"]

LARGE = 1000.0  # eps, which no operation of the first steps is likely to make
STEPPING = re.compile(
    r"^zero_grad\?| has no gradient of |^\d+ backward pass"
    r"|optimizer (of .*)?(stepped|did not)|outside of that step"
    r"|^(A|B)( alone)? clips |^opt\.step | at zero$"
    r"| (averages|sums) it over the ranks|leaves each rank its own"
)
"""Finds clauses that say what an optimizer's step was given, or what else moved a parameter."""


def reason(
    frontier: Frontier,
    group: OriginGroup,
    measure: Measure,
    note: str,
    changed: Sequence[str],
    *,
    outside: bool,
) -> str:
    """Return the reasons of an origin, "; " between them; "" where there is nothing to say.

    group: the origin, with the others that have its cause. measure: how far its records differ.
    note: the reason for the class; may be "". changed: clauses on how B's computation of the record
    differs from A's. outside: whether the difference came in from outside the recorded operations,
    so that only `note` and `changed` are reasons.
    """
    a, row = frontier.alignment.a, group.row
    parts = [note] if note else []
    if outside:
        return "; ".join([*parts, *changed])
    if measure.measured == "summary":
        parts.append("judged from summaries alone, as a lower bound")
    ancestry = frontier.ancestry(row)
    direct = [link for link in ancestry.parents if not link.saved]
    gradient = a.tensors[a.tensor[row]].kind != "value"
    replaced = any(" in place of " in clause for clause in changed)
    if not replaced and unrounding(group.ops, gradient=gradient, parents=len(direct)):
        parts.append(
            f"{group.ops[0]} cannot round: the difference was made just before, by something "
            "that is not recorded"
        )
    explained = any(map(STEPPING.search, (note, *changed))) or bool(
        stepped_again(frontier, row) or untrained(frontier, row)
    )
    if frontier.ancestry_incomplete[row] and not (group.ops or note or explained):
        parts.append("how it was made was not recorded")
    parts += [] if explained else _stretch(group)
    if row in frontier.copies:
        parts.append(_copied(frontier, row))
    explanations = [*_in_eval_mode(frontier, row), *detached(frontier, row), *changed]
    parts += explanations or ([] if explained else _seen_before(frontier, row, measure))
    if frontier.role[row] == Role.OPTIMIZER and not group.ops and not explained:
        parts.append(_after_backward(frontier, a.tensors[a.tensor[row]].kind))
    if ranks := _ranks(frontier, group, known=explained or bool(changed)):
        parts.append(ranks)
    return "; ".join(parts)


def _copied(frontier: Frontier, row: int) -> str:
    """Return a clause that names the run in which a value copies an earlier record bit for bit.

    In the other run, the clause adds, the value is no copy, or is all zeros.

    row: a row of A that has an entry in `Frontier.copies`.
    """
    alignment, source = frontier.alignment, frontier.copies[row]
    a, row_b = alignment.a, int(alignment.b_row[np.searchsorted(alignment.a_row, row)])
    name = escape(a.tensors[a.tensor[source]].name)
    in_a = bool((a.digest[row] == a.digest[source]).all())
    one, other = "AB" if in_a else "BA"
    figures, at = (alignment.b.figures, row_b) if in_a else (a.figures, row)
    zeros = figures["min"][at] == figures["max"][at] == 0
    return f"in {one} it is {name} bit for bit, in {other} it is {'all zeros' if zeros else 'not'}"


def _in_eval_mode(frontier: Frontier, row: int) -> list[str]:
    """Return, in a list, a clause that one run alone has a row's layer in eval mode; else [].

    What counts is the mode at the row's step. The clause names the run, and the step since when.
    row: a row of A.
    """
    alignment = frontier.alignment
    tensor, step = alignment.a.tensors[alignment.a.tensor[row]], int(alignment.a.step[row])
    names = {renaming.a: renaming.b for renaming in alignment.renamed}
    sides = (
        (alignment.a, tensor.name, step),
        (alignment.b, names.get(tensor.name, tensor.name), step + alignment.step_offset),
    )
    since = [mode_since(t.header.get(tensor.rank, {}), name) for t, name, _ in sides]
    there = [
        first is not None and first <= at for first, (_, _, at) in zip(since, sides, strict=True)
    ]
    if there[0] == there[1]:
        return []
    run, at = ("A", since[0]) if there[0] else ("B", since[1])
    return [f"{run} has it in eval mode from step {at} on"]


def _seen_before(frontier: Frontier, row: int, measure: Measure) -> list[str]:
    """Return, in a list, a clause that the operations shown are those of an earlier step; or [].

    The graph behind a tensor is recorded in the first steps alone, so that a later step may have
    run other operations. The clause is given at a large difference, two steps or more after the
    last recorded graph.
    row: a row of A. [] for any kind but `value`.
    """
    large = measure.nonfinite or measure.error_eps > LARGE
    alignment = frontier.alignment
    a, step = alignment.a, int(alignment.a.step[row])
    tensor = a.tensors[a.tensor[row]]
    stated = [edges.step for edges in a.edges.get(tensor.rank, ()) if edges.name == tensor.name]
    if not large or tensor.kind != "value" or not stated or step - max(stated) <= 1:
        return []
    return [
        f"operations are those of step {max(stated)}; what B did at step {step} was not looked at"
    ]


def _after_backward(frontier: Frontier, kind: str) -> str:
    """Return words on what may have changed a record that an optimizer reads or makes.

    kind: the record's kind. A gradient may have been changed by clipping, scaling or reduction;
        records of other kinds are made by the optimizer itself.
    """
    if kind != "grad":
        return "the optimizer itself"
    # Where ranks or passes were merged for the comparison, only their merging can be the cause.
    words = (
        "reduction" if merging.ranks > 1 else "accumulation"
        for merging in frontier.alignment.merged
    )
    stages = " or ".join(dict.fromkeys(words)) or "clipping, scaling or reduction"
    return f"after backward: {stages}"


def _stretch(group: OriginGroup) -> list[str]:
    """Return, in a list, a clause that says in which stretch of operations the cause is; else [].

    Only a long stretch has a clause: compiled code, or more than three operations that do not only
    move bits.
    group: an origin with the operations between it and its recorded parents.
    """
    if compiled(group.ops):
        return ["somewhere inside compiled code"]
    ops = computing(group.ops)
    if len(ops) > 3:
        return [f"somewhere in {len(ops)} operations: anchors between them tell which"]
    return []


def _ranks(frontier: Frontier, group: OriginGroup, *, known: bool) -> str:
    """Return a clause that names the ranks on which an origin differs; "" in a run of one rank.

    known: whether a change in B is stated already; if not, the clause adds the likely cause: the
    operation itself where every rank differs, else a rank's data, device or placement.
    """
    every = {tensor.rank for tensor in frontier.alignment.a.tensors}
    if len(every) < 2:
        return ""
    if len(group.ranks) == len(every):
        return "on every rank" + ": the operation itself" * (not known)
    listed = ", ".join(map(str, group.ranks))
    where = f"on rank{'s' * (len(group.ranks) > 1)} {listed} alone"
    return where + ": its data, device or placement" * (not known)
