"""Whether two runs learn the same in the first step that differs, but for rounding.

Code that is written differently has other intermediate results. Whether its work is equal shows in
what comes out: each gradient that an optimizer reads, each update, and every value that is not
known to be another quantity. Rounding is that of the coarsest format that both runs went through
since they were equal: under autocast a float32 gradient is made of bfloat16 products.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import is_grafted
from anchorlib.diagnosis.judgement.origins.cancelling import cancelling
from anchorlib.diagnosis.judgement.origins.first_step import FirstStep, module_of
from anchorlib.diagnosis.judgement.origins.left_out_rows import leaves_out_idle_rows
from anchorlib.diagnosis.judgement.origins.numbers_read import sizes_of_readers
from anchorlib.diagnosis.judgement.origins.returned import read_by_losses
from anchorlib.diagnosis.sizes import coarsest_formats, steady_elements_apart

__all__ = ["LIMIT", "LIMIT_LOW", "goes_on", "moves_alike", "same_learning"]

Array = np.ndarray[Any, Any]
EPS32 = 2.0**-23
LIMIT = 64.0
"""The error in eps that several roundings in a row may make in a value or a gradient. Faults make
larger errors. A head that refines optical flow twice, called sample by sample, made 37."""
LIMIT_LOW = 4.0
"""As LIMIT, for what went through types coarser than float32. Six programs under autocast made 1.7
eps at most by LSTMs by sample, dense experts, layers by time step; outputs of which
one third is 5 % too large made 7."""
SQUARES = 2.0
"""How many times as far apart as gradients an optimizer's state may be, which may hold squares."""
LATER = 1e-2
"""The relative error that a value of the next step may have, when parameters differ by roundings.
"""
LATER_GRADIENT, LATER_LOW = 0.05, 0.5
"""As LATER, for gradients that optimizers read in the next step: computed in float32, and in a
coarser format."""
SHARE_LATER = 0.1
"""The share of the largest gradient against which a smaller one of the next step is judged."""
SHARE = 0.01
"""The share of the largest norm of its kind against which a smaller gradient is judged: a gradient
may consist of rounding alone, as that of a bias before a norm, and is no sign of a fault then."""
TAKEN = ("grad", "updated")
"""Kinds of a parameter's records: the gradient that an optimizer reads, and what it makes."""
_ROOT = re.compile(r"(^|\.)(input|output)$")


def same_learning(first: FirstStep, modules: set[str]) -> bool:
    """Return whether all gradients, updates and values of the step are equal but for rounding.

    modules: names of modules and tensors that are not compared (see `FirstStep.within`).
    False for a rerun that was handed A's values (`anchorlib.graft`): it learns the same whatever
    its own values are, so that equal learning would show nothing.
    """
    alignment, a = first.alignment, first.alignment.a
    if is_grafted(alignment) or _lack_partners(first) or not _same_amount(first, modules):
        return False
    rows, here = first.rows[first.here], first.here
    kinds = np.array([one.kind for one in a.tensors])[a.tensor]
    judged = ~first.within(modules)[a.tensor[rows]] & (kinds[rows] != "delta")
    if (first.measures["nonfinite"][here][judged] > 0).any():
        return False
    eps = coarsest_formats(alignment, first.measures, here)[judged]
    error = _errors(first, here[judged])
    norms = np.fmin(a.figures["l2"][rows[judged]], first.measures["norm"][here][judged])
    own = norms * cancelling(first, rows[judged])
    own = np.maximum(own, sizes_of_readers(first, rows[judged]))
    limit = np.empty(len(error))
    matched = alignment.a_row[a.step[alignment.a_row] == first.steps[0]]
    for kind in np.unique(kinds[rows[judged]]).tolist():
        largest = float(a.figures["l2"][matched[kinds[matched] == kind]].max(initial=0.0))
        which = kinds[rows[judged]] == kind
        share = 0.0 if kind == "value" else SHARE * largest
        size = np.maximum(own[which], share)
        limit[which] = _times(kind, eps[which]) * eps[which] * size
        if kind == "updated":
            stored = first.measures["eps"][here][judged][which]
            limit[which] = _limits_of_updates(first, rows[judged][which], size, stored, eps[which])
    beyond = np.flatnonzero(~(error <= limit))  # so that nan, an unknown error, counts as beyond
    pairs = first.measures.pair[here][judged][beyond]
    formats = eps[beyond].tolist()
    return all(map(partial(_is_shaken, first), pairs.tolist(), limit[beyond].tolist(), formats))


def _errors(first: FirstStep, places: Array) -> Array:
    """Return ‖b − a‖₂ of pairs, given by their indices into `first.measures`; nan where unknown."""
    measures, b = first.measures, first.alignment.b
    relative = (measures["error_eps"] * measures["eps"])[places]
    norms_b = b.figures["l2"][first.alignment.b_row[measures.pair[places]]]
    with np.errstate(invalid="ignore"):  # infinity times zero, where A's record is all zero
        errors: Array = np.where(np.isinf(relative), norms_b, relative * measures["norm"][places])
    return errors


def goes_on(first: FirstStep, modules: set[str]) -> bool:
    """Return whether values and gradients are near in the step after the first that differs.

    A state that is carried on from step to step, and a buffer, are read in the next step alone, so
    that no gradient of the first step shows whether they are equal. Nor does a gradient behind a
    weight that begins as zero. The relative error of each value may be LATER at most, and that of
    each gradient that an optimizer reads LATER_GRADIENT, or LATER_LOW under low precision. Values
    of parameters do not count, nor do those of `modules`.
    modules: names of modules and tensors that are not compared (see `FirstStep.within`).
    """
    a = first.alignment.a
    then = np.flatnonzero(a.step[first.rows] == first.steps[0] + 1)
    rows = first.rows[then]
    computed = a.where(lambda one: one.kind == "value" and one.name not in first.learnt)
    judged = computed[rows] & ~first.within(modules)[a.tensor[rows]]
    relative = (first.measures["error_eps"] * first.measures["eps"])[then]
    if not (relative[judged] <= LATER).all():
        return False
    taken = a.where(lambda one: one.kind == "grad" and one.name in first.learnt)
    own = taken[rows] & ~(first.measures["nonfinite"][then] > 0)
    if not own.any():
        return True
    coarse = coarsest_formats(first.alignment, first.measures, then)[own] > EPS32
    limit = np.where(coarse, LATER_LOW, LATER_GRADIENT) * _sizes_later(first, rows[own], taken)
    return bool((_errors(first, then[own]) <= limit).all())


def _sizes_later(first: FirstStep, rows: Array, taken: Array) -> Array:
    """Return by which norms the errors of gradients in the next step are judged.

    A gradient may consist of rounding alone. So it is judged beside SHARE_LATER of the largest one:
    of those that were zero in the first step, if it was zero, and else of all others.
    rows: A's rows of the gradients. taken: whether each row of A is such a gradient.
    """
    a, matched = first.alignment.a, first.alignment.a_row
    norms = a.figures["l2"]
    begun = matched[(a.step[matched] == first.steps[0]) & taken[matched]]
    asleep = np.isin(a.tensor, a.tensor[begun[norms[begun] == 0]])
    then = matched[(a.step[matched] == first.steps[0] + 1) & taken[matched]]
    largest = [
        float(np.nanmax(norms[then[asleep[then] == zero]], initial=0.0)) for zero in (False, True)
    ]
    sizes: Array = np.maximum(norms[rows], SHARE_LATER * np.where(asleep[rows], *largest[::-1]))
    return sizes


def moves_alike(first: FirstStep) -> bool:
    """Return whether parameters that no optimizer updates are near enough in the next step.

    The next step is that after the first that differs. Code itself moves such parameters, as a
    running average of other parameters. Their relative error may be larger than that of the updated
    parameters in the first step that differs by a few roundings in float32.
    """
    a = first.alignment.a
    relative = first.measures["error_eps"] * first.measures["eps"]
    updated = relative[first.here][a.of_kind("updated")[first.rows[first.here]]]
    stepped = {(one.name, one.rank) for one in a.tensors if one.kind == "updated"}
    parameters = a.where(lambda one: one.kind == "value" and one.name in first.learnt)
    moved = parameters & a.where(lambda one: (one.name, one.rank) not in stepped)
    then = (a.step[first.rows] == first.steps[0] + 1) & moved[first.rows]
    most = LIMIT * EPS32 + float(updated.max(initial=0.0))  # the copy rounds by itself
    return bool((relative[then] <= most).all())


def _limits_of_updates(
    first: FirstStep, rows: Array, size: Array, stored: Array, eps: Array
) -> Array:
    """Return by what norm A's and B's updated parameter may differ in each row, through rounding.

    The rounding of the parameter is relative to the parameter's norm. The rounding of a coarse
    format in which the gradient was computed is relative to the norm of the update alone. That norm
    is much smaller. Relative to the parameter, the rounding would excuse even an update of twice
    the size.
    rows: A's `updated` rows. size: the norm of each row. stored: the eps of the row's own dtype.
    eps: the eps of the coarsest format that each row's computation went through.
    """
    a = first.alignment.a
    deltas = {
        (tensor.name, tensor.rank): max(a.figures["l2"][own], default=0.0)
        for number, own in first.rows_of[0].items()
        if (tensor := a.tensors[number]).kind == "delta"
    }
    tensors = [a.tensors[number] for number in a.tensor[rows].tolist()]
    moved = np.array([deltas.get((one.name, one.rank), 0.0) for one in tensors])
    added = np.where(eps > EPS32, _times("delta", eps) * eps * moved, 0.0)
    limits: Array = _times("updated", stored) * stored * size + added
    return limits


def _is_shaken(first: FirstStep, pair: int, limit: float, eps: float) -> bool:
    """Return whether an update differs only in elements whose gradient is rounding in both runs.

    pair: the index of the `updated` record's pair in the alignment; False for other kinds. limit:
    the norm by which the updated parameters may differ. eps: the eps of the coarsest format that
    the gradient went through.
    """
    a = first.alignment.a
    row, row_b = int(first.alignment.a_row[pair]), int(first.alignment.b_row[pair])
    tensor = a.tensors[a.tensor[row]]
    if tensor.kind != "updated":
        return False
    gradients = [
        other
        for number, of in enumerate(a.tensors)
        if (of.name, of.rank, of.kind) == (tensor.name, tensor.rank, "grad")
        for other in first.rows_of[0].get(number, ())
    ]
    if len(gradients) != 1:
        return False
    alike = (LIMIT_LOW if eps > EPS32 else LIMIT) * eps
    steady = steady_elements_apart(first.alignment, gradients[0], row, row_b, alike)
    return steady * float(a.figures["l2"][row]) <= limit


def _lack_partners(first: FirstStep) -> bool:
    """Return whether some gradient or update of the step has no partner in the other run.

    True also where a run has no gradient and no update in the step at all.
    """
    alignment = first.alignment
    for table, only, step in (
        (alignment.a, alignment.only_a, first.steps[0]),
        (alignment.b, alignment.only_b, first.steps[1]),
    ):
        taken = table.where(lambda one: one.kind in TAKEN and one.name in first.learnt)
        if (taken[only] & (table.step[only] == step)).any():
            return True
        if not (taken & (table.step == step)).any():
            return True
    return False


def _same_amount(first: FirstStep, modules: set[str]) -> bool:
    """Return whether each model in `modules` returns as many elements in A as in B.

    The elements of all calls of the step are added up. It suffices that the first recorded module
    inside the model returns as many: code that calls a model's modules by itself calls the model
    less often. It also suffices that all outputs of the model together have as many, if both runs
    compute a recorded loss from this output: one run may stack two outputs, or put them side by
    side. And it suffices that one run leaves out rows of the output on which no loss depends.
    """
    firsts: dict[tuple[str, int], int] = {}
    read: dict[tuple[str, int], bool] | None = None
    a = first.alignment.a
    in_order = sorted(first.rows_of[0], key=lambda one: int(a.order[first.rows_of[0][one][0]]))
    for number in in_order:
        name, kind, _, rank = a.tensors[number]
        if kind == "value" and name not in first.learnt and not _ROOT.search(module_of(name)):
            firsts.setdefault((name.partition(".")[0], rank), number)
    for number, tensor in enumerate(a.tensors):
        root = _ROOT.search(module_of(tensor.name)) and tensor.kind == "value"
        if not root or module_of(tensor.name) not in modules or number not in first.partner:
            continue
        entry = firsts.get((tensor.name.partition(".")[0], tensor.rank), number)
        if _as_much(first, number) or _as_much(first, entry):
            continue
        if leaves_out_idle_rows(first, number, LIMIT):
            continue
        read = read_by_losses(first) if read is None else read
        if (tensor.name, tensor.rank) not in read or not _same_sum(first, tensor.name, tensor.rank):
            return False
    return True


def _as_much(first: FirstStep, number: int) -> bool:
    """Return whether a tensor's records in the step together have as many elements in A as in B.

    number: the tensor's index in A's table. False where B has no such tensor.
    """
    if number not in first.partner:
        return False
    sides = zip((first.alignment.a, first.alignment.b), first.rows_of, strict=True)
    own = (number, first.partner[number])
    totals = [
        int(table.figures["numel"][rows.get(of_run, [])].sum())
        for (table, rows), of_run in zip(sides, own, strict=True)
    ]
    return totals[0] == totals[1]


def _same_sum(first: FirstStep, output: str, rank: int) -> bool:
    """Return whether all outputs of a model have equally many elements in both runs, in the step.

    output: the name of one of A's outputs of the model.
    """
    alignment = first.alignment
    renamed = {renaming.b: renaming.a for renaming in alignment.renamed}
    totals = [
        sum(
            int(table.figures["numel"][rows].sum())
            for number, rows in rows_of.items()
            if (tensor := table.tensors[number]).kind == "value"
            and tensor.rank == rank
            and module_of(names.get(tensor.name, tensor.name)) == module_of(output)
        )
        for table, rows_of, names in zip(
            (alignment.a, alignment.b), first.rows_of, ({}, renamed), strict=True
        )
    ]
    return totals[0] == totals[1]


def _times(kind: str, eps: Array) -> Array:
    """Return, for each record, how many eps several roundings in a row may make in it.

    kind: the records' kind, such as "grad". eps: the eps of each record's format.
    """
    low = LIMIT_LOW * (SQUARES if kind.startswith("opt.") else 1.0)
    times: Array = np.where(eps > EPS32, low, LIMIT)
    return times
