"""Whether one run's optimizer stepped a second time on the gradients of one backward.

The second step counts as a step of its own, so that the run has an optimizer's step in which no
backward ran, while the other run has a whole step there. All differences follow from that. (That
the updates of one step are judged together is decided in `origins.judged_together`.)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import Frontier, Role
from anchorlib.diagnosis.judgement.changes.optimizer_steps import updated_together
from anchorlib.diagnosis.pairing import Table

__all__ = ["stepped_again"]

Array = np.ndarray[Any, Any]
EVERY_PASS = {"all", "summary"}
"""Modes that leave no backward pass without a record."""


def stepped_again(frontier: Frontier, row: int) -> str:
    """Return the run whose optimizer stepped again without a backward: "A", "B"; "" for neither.

    row: a row of A that an optimizer reads or writes; for other rows the answer is "".
    """
    if frontier.role[row] != Role.OPTIMIZER:
        return ""
    alignment = frontier.alignment
    row_b = int(alignment.b_row[np.searchsorted(alignment.a_row, row)])
    a, b = _passes(alignment.a, row), _passes(alignment.b, row_b)
    step_a, step_b = alignment.a.step[row], alignment.b.step[row_b]
    if step_a in a and _is_between(b, step_b):
        return "B"
    return "A" if step_b in b and _is_between(a, step_a) else ""


def _is_between(passes: Array, step: int) -> bool:
    """Return whether no pass belongs to this step, although earlier and later steps have passes.

    passes: the step of each recorded backward pass. After its last recorded pass, a run may have
    passes that it was not asked to record (`steps=`).
    """
    return bool((passes < step).any() and (passes > step).any() and step not in passes)


def _passes(table: Table, row: int) -> Array:
    """Return the steps in which a backward pass reached a parameter of the row's optimizer.

    Empty where a mode records only some passes, or records were lost: a step without a record may
    then have had a backward.
    """
    if table.gaps:
        return table.step[:0]
    rank = table.tensors[table.tensor[row]].rank
    names = updated_together(table, row)
    gradients = [
        tensor.kind == "pass_grad" and tensor.rank == rank and tensor.name in names
        for tensor in table.tensors
    ]
    which = np.array(gradients, bool)
    modes = {table.tensors[number].mode for number in np.flatnonzero(which).tolist()}
    if not modes <= EVERY_PASS:
        return table.step[:0]
    steps: Array = table.step[which[table.tensor]]
    return steps
