"""Parameters of which one run alone has no gradient: frozen there, or behind a graph that is cut.

    B has no gradient of h.1.* from step 8 on: requires_grad?

Such a parameter has no pair of gradients that could differ. What differs first is something else:
all other gradients, where their common norm is clipped, or what is computed from the parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import Frontier, Role, plain
from anchorlib.diagnosis.judgement.changes.optimizer_steps import parameters_of
from anchorlib.diagnosis.judgement.changes.prefixes import folded
from anchorlib.diagnosis.pairing import Table
from anchorlib.names import escape

__all__ = ["without_gradient"]

Array = np.ndarray[Any, Any]
GRADIENTS = ("grad", "pass_grad")
SHOWN = 3  # how many parameters, or modules of which all parameters lack one, are named


def without_gradient(frontier: Frontier, row: int, names: Mapping[str, str]) -> str:
    """Say of which parameters one run alone has no gradient in the row's step; "" without any.

    For a `value` row, the step before counts instead, and the value must be one of these parameters
    or be computed from one of them whose values have no record. The run without these gradients
    must have some record of each parameter, and have gradients of other parameters in that step. ""
    too where each run lacks gradients that the other has, and where records were lost or merged.
    names: A's names -> B's, where they differ. row: a row of A.
    """
    alignment = frontier.alignment
    a, b = alignment.a, alignment.b
    tensor = a.tensors[a.tensor[row]]
    if a.gaps or b.gaps or alignment.merged:
        return ""
    value = tensor.kind == "value"
    step = int(a.step[row]) - value
    own = {names[name]: name for name in names}
    of_b = {own.get(name, name) for name in parameters_of(b, tensor.rank)}
    parameters = parameters_of(a, tensor.rank) | of_b
    graded = (
        _graded(a, tensor.rank, parameters, {}, 0),
        _graded(b, tensor.rank, parameters, names, alignment.step_offset),
    )
    here = [own.get(step, set()) for own in graded]
    if not all(here) or bool(here[0] - here[1]) == bool(here[1] - here[0]):
        return ""
    run = int(bool(here[0] - here[1]))  # the run that has no such gradient
    lone = here[1 - run] - here[run]
    known = _named(b if run else a, tensor.rank, names if run else {})
    read = {tensor.name} if frontier.role[row] == Role.PARAMETER else set()
    read |= set(frontier.ancestry(row).unrecorded) if value else set()
    if not lone <= known or (value and not lone & read):
        return ""
    named = folded(lone, set().union(*graded[1 - run].values()))
    more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    shown = f"{', '.join(map(escape, named[:SHOWN]))}{more}"
    return f"{'AB'[run]} has no gradient of {shown} {_when(graded[run], step, lone)}"


def _when(graded: Mapping[int, set[str]], step: int, lone: set[str]) -> str:
    """Return since when a run has no gradient of the parameters `lone`: "from step 8 on".

    "in step 8" where any of these gradients comes back later. graded: step → the parameters of
    which the run has a gradient in that step. step: a step without these gradients.
    """
    if any(lone & reached for at, reached in graded.items() if at > step):
        return f"in step {step}"
    while (earlier := graded.get(step - 1)) is not None and not lone & earlier:
        step -= 1
    return f"from step {step} on"


def _named(table: Table, rank: int, names: Mapping[str, str]) -> set[str]:
    """Return the names, as A has them, of all tensors of which a run has any record on a rank.

    names: A's names -> B's for B's table, else {}.
    """
    own = {names[name]: name for name in names}
    return {own.get(tensor.name, tensor.name) for tensor in table.tensors if tensor.rank == rank}


def _graded(
    table: Table, rank: int, parameters: set[str], names: Mapping[str, str], offset: int
) -> dict[int, set[str]]:
    """Return the parameters that have a gradient in each step, by A's step, with A's names.

    parameters: their names in A. names: A's names -> B's for B's table, else {}. offset: what to
    subtract from the table's steps. Empty where a mode records only some of the gradients.
    """
    own = {names[name]: name for name in names}
    called = [own.get(tensor.name, tensor.name) for tensor in table.tensors]
    which = np.array(
        [
            tensor.rank == rank and tensor.kind in GRADIENTS and name in parameters
            for tensor, name in zip(table.tensors, called, strict=True)
        ],
        bool,
    )
    if not all(plain(table.tensors[number].mode) for number in np.flatnonzero(which).tolist()):
        return {}
    rows = np.flatnonzero(which[table.tensor])
    pairs = np.unique(np.stack([table.step[rows] - offset, table.tensor[rows]]), axis=1)
    graded: dict[int, set[str]] = {}
    for step, number in pairs.T.tolist():
        graded.setdefault(step, set()).add(called[number])
    return graded
