"""Outputs of models that the runs return in two forms, as the losses behind them show.

    return logits           cross_entropy(logits, labels)
    return logs             nll_loss(logs, labels)

    return scores           loss(scores)
    return scores / 2       loss(2 * scores)

An output that a loss reads is an intermediate result of this loss. Where both runs recorded the
loss, it shows with all that is learned whether the work is equal. An output without a gradient may
be read by anything, and nothing shows whether that is equal. The same holds for outputs of
evaluations, unless each single number that an evaluation computes after them, as its own loss, is
equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.judgement.origins.first_step import FirstStep
from anchorlib.diagnosis.judgement.origins.other_uses import Uses, uses
from anchorlib.scope import TRAIN

__all__ = ["MULTIPLE", "evaluated_alike", "read_by_losses"]

Array = np.ndarray[Any, Any]
MULTIPLE = 0.01
"""The share of ½·error² below which the cosine distance of two records shows that the error lies
along the record: that B's record is a multiple of A's. Errors across the record make ½·error²."""
ALIKE = 1e-3
"""The relative error up to which a number of an evaluation is equal: parameters that differ by
roundings make less in the first evaluation, and a wrong output seldom so little."""


def read_by_losses(first: FirstStep) -> dict[tuple[str, int], bool]:
    """Return the values of A from which both runs compute a recorded loss, as (name, rank) -> flag.

    The flag says whether the runs state that they use this value by different operations. A loss
    is a single number of the step that has a record and a nonzero gradient in both runs. Values
    whose gradient is missing or zero in a run are left out: the loss does not depend on them.
    """
    a, b = first.alignment.a, first.alignment.b
    renamed = {renaming.b: renaming.a for renaming in first.alignment.renamed}
    moved = _with_gradients(first, 0, {}) & _with_gradients(first, 1, renamed)
    read: dict[tuple[str, int], bool] = {}
    losses = _losses(first) & moved
    for rank in {rank for _, rank in losses}:
        mine, other = uses(a.edges.get(rank, ()), {}), uses(b.edges.get(rank, ()), renamed)
        names = {name for name, of in losses if of == rank}
        both = _leading_to(names, mine) & _leading_to(names, other)
        read |= {(name, rank): mine[name] != other[name] for name in both if (name, rank) in moved}
    return read


def evaluated_alike(first: FirstStep, rows: Array) -> Array:
    """Return for each output whether evaluations show that both runs make equal results of it.

    rows: A's rows of the outputs. Those of training passes are True. All outputs of another phase
    on a rank are True or False together, by those of the earliest step. They are True where each
    of these is finite and no multiple of the other run's, and is followed by single numbers in its
    step, which all agree within ALIKE.
    """
    a = first.alignment.a
    training = np.array([phase == TRAIN for phase in a.phases] or [False], bool)[a.phase[rows]]
    ranks = a.rank
    places = np.searchsorted(first.rows, rows)
    shown: Array = training.copy()
    for rank, phase in set(zip(ranks[rows].tolist(), a.phase[rows].tolist(), strict=True)):
        own = np.flatnonzero((ranks[rows] == rank) & (a.phase[rows] == phase) & ~training)
        if len(own):
            early = own[a.step[rows[own]] == a.step[rows[own]].min()]
            shown[own] = all(_is_used_alike(first, int(rows[at]), int(places[at])) for at in early)
    return shown


def _is_used_alike(first: FirstStep, row: int, place: int) -> bool:
    """Return whether the single numbers that an evaluation computes after an output are equal.

    They are equal if they agree within ALIKE. False where there is no such number, where the output
    is NaN or infinite in other elements in A than in B, and where B's output is a multiple of A's.
    row: the output's row in A's table. place: its index into `first.measures`.
    """
    alignment, a, measures = first.alignment, first.alignment.a, first.measures
    relative = measures["error_eps"] * measures["eps"]
    if measures["nonfinite"][place] or not (
        measures["cosine_distance"][place] >= MULTIPLE * relative[place] ** 2 / 2
    ):
        return False
    rank = a.tensors[a.tensor[row]].rank
    matched = alignment.a_row
    after = matched[(a.step[matched] == a.step[row]) & (a.order[matched] > a.order[row])]
    single, own = a.figures["numel"][after] == 1, a.phase[after] == a.phase[row]
    # an anchor outside of the model, as of a loss, does not know that it belongs to an evaluation
    others = after[~single & ~own & a.where(lambda one: one.name not in first.learnt)[after]]
    until = a.order[others].min(initial=np.iinfo(a.order.dtype).max)
    after = after[single & (own | (a.order[after] < until))]
    numbers = [one for one in after.tolist() if _is_number(first, one, rank)]
    differing = np.flatnonzero(np.isin(first.rows, numbers))
    return bool(numbers) and bool((relative[differing] <= ALIKE).all())


def _is_number(first: FirstStep, row: int, rank: int) -> bool:
    """Return whether a row of A that has one element is a floating-point value computed on `rank`.

    A parameter is not computed.
    """
    a = first.alignment.a
    tensor = a.tensors[a.tensor[row]]
    computed = (tensor.kind, tensor.rank) == ("value", rank) and tensor.name not in first.learnt
    return computed and dtypes.dtype(a.dtypes[a.dtype[row]]).family == "float"


def _losses(first: FirstStep) -> set[tuple[str, int]]:
    """Return (name, rank) of the single numbers that training computes in the step in both runs."""
    a = first.alignment.a
    rows = first.alignment.a_row[a.step[first.alignment.a_row] == first.steps[0]]
    single = rows[a.figures["numel"][rows] == 1]
    return {
        (tensor.name, tensor.rank)
        for row in single.tolist()
        if a.phases[a.phase[row]] == TRAIN
        and _is_number(first, row, (tensor := a.tensors[a.tensor[row]]).rank)
    }


def _with_gradients(first: FirstStep, run: int, renamed: dict[str, str]) -> set[tuple[str, int]]:
    """Return (name, rank) of the tensors that have a gradient in the step which is not all zero.

    run: 0 for A, 1 for B. renamed: the run's names -> A's, where they differ.
    """
    table = (first.alignment.a, first.alignment.b)[run]
    return {
        (renamed.get(tensor.name, tensor.name), tensor.rank)
        for number, rows in first.rows_of[run].items()
        if (tensor := table.tensors[number]).kind == "grad"
        and (table.figures["l2"][rows] > 0).any()
    }


def _leading_to(names: set[str], of_run: Uses) -> set[str]:
    """Return the values from which any of `names` is computed, directly or by way of other values.

    of_run: what one run states to compute from each value.
    """
    makers: dict[str, set[str]] = {}
    for name, own in of_run.items():
        for made in own:
            makers.setdefault(made, set()).add(name)
    leading: set[str] = set()
    waiting = list(names)
    while waiting:
        before = makers.get(waiting.pop(), set()) - leading
        leading |= before
        waiting += before
    return leading
