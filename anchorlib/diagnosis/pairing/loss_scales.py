"""A loss scale that a program applies by itself, and that no record states.

    (loss * 1024).backward()
    for p in model.parameters(): p.grad /= 1024

A power of two changes exponents alone. So a loss scale that is a power of two shows to the bit in
the first step that differs: every gradient inside the model is that power of two times the other
run's gradient, nothing else differs, and the gradients that the optimizer takes are equal. If these
are unequal, the factor was no loss scale, but reached the optimizer. Most factors that clipping
removes leave unequal bits, too, since clipping adds a small constant to the norm by which it
divides; but where gradients are large, they do not. Then the factor counts as a loss scale if
nothing else differs in any step, as it changes nothing that is learned. A scale that was found is
treated as if the records stated it.

    loss.sum().backward()
    for p in model.parameters(): p.grad /= count

Any other number rounds, and so does a power of two in a run that was also rewritten elsewhere. Such
a scale is recognised by norms: the norms of all gradients inside the model are that number times
the other run's, and the norms of the gradients that the optimizer takes are equal. Clipping to a
norm makes these norms equal too, whatever the factor is. So the records must also show that no
clipping removed the factor (`taken_gradients`), and the next step must show an equal scale.
Differences by rounding that are left after scaling are judged like any other difference.

    loss = F.cross_entropy(logits, target, reduction="sum")

A loss may be recorded after it was multiplied: as the sum of losses, for instance, which is their
mean times their number. Then the recorded number itself differs by the factor, and its gradient
does not.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.pairing.alignment import Alignment
from anchorlib.diagnosis.pairing.inner_gradients import inner_gradients
from anchorlib.diagnosis.pairing.tables import Table
from anchorlib.diagnosis.pairing.taken_gradients import (
    EPS32,
    FLOATS,
    ROUNDINGS,
    is_taken,
    rules_out_clipping,
    takes_the_same,
)
from anchorlib.scope import TRAIN

__all__ = ["with_loss_scale"]

Array = np.ndarray[Any, Any]
LOW = 2.0**-7
"""By how much a norm may differ, relatively, in a run that holds types coarser than float32."""
SHARE = 1e-4
"""By how much shares of a gradient that optimizers take may differ, relatively, that are one."""
LEAST = 0.1
"""By how much a scale is larger or smaller than 1 at least. Nobody scales a loss by less."""


def with_loss_scale(alignment: Alignment) -> Alignment:
    """Return the alignment with B's `scale` set to a loss scale that B's program applied by itself.

    The scale is B's relative to A's. It is found from the gradients of the first step that differs,
    and written to the rows of B in this and all later steps whose records it multiplies; a loss
    that was recorded after it had been multiplied gets the scale too. The alignment itself is
    returned where nothing differs, where no scale is found, and where records of either run state a
    loss scale already.
    """
    a, b = alignment.a, alignment.b
    pairs = alignment.differing
    if not len(pairs) or not ((a.scale == 1).all() and (b.scale == 1).all()):
        return alignment
    step = a.step[alignment.a_row[pairs]].min()
    first = pairs[a.step[alignment.a_row[pairs]] == step]
    scaled = _is_scaled(a) & ~_is_of_forward(alignment, int(step))
    factor = None if alignment.merged else _factor(alignment, first)
    exact = scaled[alignment.a_row[first]].all() and takes_the_same(alignment, int(step))
    perhaps_clipped = factor is not None and _may_be_clipped(alignment, int(step))
    shown = not perhaps_clipped or _only_scaled(alignment, scaled, factor)
    if factor is not None and exact and shown:
        scales = np.where(scaled[alignment.a_row], factor, 1.0)
    elif (rounded := _rounded_scales(alignment, first, scaled)) is not None:
        scales, perhaps_clipped = rounded, False
    elif (own := _scales_of_parameters(alignment, int(step))) is not None:
        scales, perhaps_clipped = own, False
    else:
        return alignment
    later = a.step[alignment.a_row] >= step
    scale = b.scale.copy()
    scale[alignment.b_row[later]] = scales[later]
    return replace(alignment, b=replace(b, scale=scale), perhaps_clipped=perhaps_clipped)


def _is_scaled(table: Table) -> Array:
    """Return for each row whether it is a gradient that a loss scale would multiply.

    These are all gradients but those that an optimizer takes.
    """
    scaled: Array = table.of_kind("grad", "pass_grad") & ~is_taken(table)
    return scaled


def _is_of_forward(alignment: Alignment, step: int) -> Array:
    """Return for each row of A whether it is a gradient that was made inside a forward.

    No loss scale multiplies such a gradient. To find these, single numbers with a gradient are
    taken for losses. But a single number whose gradient is equal in the step is the loss of an
    inner loop, which is not scaled. False for all rows where a gradient that was made inside a
    forward differs in the step.
    step: the first step that differs.
    """
    a, rows = alignment.a, alignment.a_row
    here = a.step[rows] == step
    differing = rows[here & ~alignment.equal]
    numbers = a.of_kind("grad") & (a.figures["numel"] == 1)
    equal = np.setdiff1d(a.tensor[rows[here & alignment.equal]], a.tensor[differing])
    scaled = numbers & ~np.isin(a.tensor, equal)
    inner = inner_gradients(a, scaled)
    return inner if not inner[differing].any() else np.zeros(len(inner), bool)


def _factor(alignment: Alignment, pairs: Array) -> float | None:
    """Return the power of two that is B's norm divided by A's norm in every one of these pairs.

    None where pairs have different ratios, and for a ratio of 1 or of no power of two.
    """
    norm_a = alignment.a.figures["l2"][alignment.a_row[pairs]]
    norm_b = alignment.b.figures["l2"][alignment.b_row[pairs]]
    with np.errstate(all="ignore"):
        factors = np.unique(norm_b / norm_a)
    if len(factors) != 1 or not np.isfinite(factors[0]) or factors[0] <= 0:
        return None
    factor = float(factors[0])
    return factor if math.frexp(factor)[0] == 0.5 and factor != 1 else None


def _rounded_scales(alignment: Alignment, pairs: Array, scaled: Array) -> Array | None:
    """Return B's loss scale for each pair, where gradients differ by it only up to rounding.

    The scale is 1 for a pair that no loss scale multiplies. None instead of the array where there
    is no loss scale.
    pairs: the differing pairs of the first step that differs.
    scaled: for each row of A, whether it is a gradient that a loss scale multiplies.
    """
    a, rows = alignment.a, alignment.a_row
    step = int(a.step[rows[pairs[0]]])
    here = a.step[rows] == step
    norm_a, norm_b = a.figures["l2"][rows], alignment.b.figures["l2"][alignment.b_row]
    inside, read = here & scaled[rows], here & is_taken(a)[rows]
    if not (
        (inside & ~alignment.equal).any()
        and read.any()
        and _are_near(alignment, norm_a[read], norm_b[read])
    ):
        return None
    at = _first_or_largest(alignment, inside & ~alignment.equal)
    numbers = _ratios_of_numbers(alignment, here, "value")
    factor = _snapped(norm_a[at], norm_b[at] * numbers[at])
    if factor is None:
        return None
    scales = _scales(alignment, here, scaled, factor)
    if alignment.merged:  # the loss of each part has a gradient of its own, which is not added up
        inside &= a.figures["numel"][rows] > 1
    if not _are_near(alignment, norm_a[inside], norm_b[inside] / scales[inside]):
        return None
    then = (a.step[rows] == step + 1) & (a.figures["numel"][rows] > 1) & scaled[rows]
    then |= (a.step[rows] == step + 1) & ~scaled[rows] & (scales != 1)
    with np.errstate(all="ignore"):
        apart = np.abs(norm_b / scales / norm_a - 1)[then]
    apart = apart[np.isfinite(apart)]  # a gradient may vanish; most show whether the scale goes on
    goes_on = not len(apart) or np.median(apart) <= LEAST
    return scales if goes_on and rules_out_clipping(alignment, step) else None


def _scales(alignment: Alignment, here: Array, scaled: Array, factor: float) -> Array:
    """Return for each pair the number by which a loss scale multiplies B's record, else 1.

    A loss may be recorded before it is multiplied, so that its gradient differs by the factor, or
    after it, so that its value does. If it is multiplied before and after it is recorded, its
    gradient and its value each differ by a part of the factor.
    here: which pairs are of the first step that differs. scaled: as in `_rounded_scales`. factor:
    the loss scale.
    """
    a, rows = alignment.a, alignment.a_row
    gradient = scaled[rows]
    of_number = gradient & (a.figures["numel"][rows] == 1)
    numbers = _ratios_of_numbers(alignment, here, "value")
    scales = np.where(gradient, factor, 1.0)
    if alignment.merged:
        scales[of_number] = _ratios_of_numbers(alignment, here, "grad")[of_number]
    else:
        scales[of_number] /= numbers[of_number]
    followed = {a.tensors[a.tensor[row]].name for row in rows[here & of_number].tolist()}
    losses = a.where(lambda tensor: tensor.name in followed)[rows]
    losses = ~gradient & (losses | (np.abs(numbers / factor - 1) < LEAST))
    scales[losses] = numbers[losses]
    return scales


def _scales_of_parameters(alignment: Alignment, step: int) -> Array | None:
    """Return B's scale for each pair, where gradients of single parameters alone have one.

        centres.grad *= 1 / weight        a program takes off what the loss multiplied by

    The scale is 1 for pairs of all other records. None where no parameter has such a scale.
    step: the first step that differs.
    """
    a, rows = alignment.a, alignment.a_row
    made = np.flatnonzero(a.of_kind("pass_grad")[rows] & ~alignment.equal & (a.step[rows] == step))
    with np.errstate(all="ignore"):
        ratios = alignment.b.figures["l2"][alignment.b_row[made]] / a.figures["l2"][rows[made]]
        made = made[np.abs(np.log(ratios)) >= LEAST]  # most gradients differ by rounding alone
    scales = np.ones(len(rows))
    for number in np.unique(a.tensor[rows[made]]).tolist():
        scales[a.tensor[rows] == number] = _scale_of_parameter(alignment, number, step)
    return scales if (scales != 1).any() else None


def _scale_of_parameter(alignment: Alignment, number: int, step: int) -> float:
    """Return the factor by which B scales one parameter's gradient until its optimizer takes it.

    In this step and the next the gradients that backward makes must be that factor times A's, and
    those that the optimizer takes equal but for rounding. A must take the same share of what
    backward made in both steps: clipping to a norm, which would hide a factor, takes no constant
    share. Where the factor is not found, or a step has several passes, the result is 1.
    number: the index of the parameter's `pass_grad` in A's `Table.tensors`. step: the first step
    that differs.
    """
    a, rows = alignment.a, alignment.a_row
    name, _, _, rank = a.tensors[number]
    norm_a, norm_b = a.figures["l2"][rows], alignment.b.figures["l2"][alignment.b_row]
    taken = a.of_tensor(name, "grad", rank)[rows]
    factors, shares = [], []
    for at in (step, step + 1):
        made = np.flatnonzero((a.tensor[rows] == number) & (a.step[rows] == at))
        reads = np.flatnonzero(taken & (a.step[rows] == at))
        if len(made) != 1 or len(reads) != 1 or not (norm_a[made[0]] and norm_a[reads[0]]):
            return 1.0
        factors.append(float(norm_b[made[0]] / norm_a[made[0]]))
        shares += [float(side[reads[0]] / norm_a[made[0]]) for side in (norm_a, norm_b)]
    factor = _snapped(1.0, factors[0])
    constant = max(shares) - min(shares) <= SHARE * max(shares)
    goes_on = factor is not None and abs(factors[1] / factor - 1) <= LEAST
    return factor if factor is not None and constant and goes_on else 1.0


def _may_be_clipped(alignment: Alignment, step: int) -> bool:
    """Return whether clipping may have changed the gradients that an optimizer takes in a step.

    True where gradients of single passes are recorded in the step and no record rules clipping out.
    Where gradients are large, clipping can remove a power of two and leave equal bits.
    """
    a = alignment.a
    recorded = bool((a.of_kind("pass_grad") & (a.step == step)).any())
    return recorded and not rules_out_clipping(alignment, step)


def _only_scaled(alignment: Alignment, scaled: Array, factor: float | None) -> bool:
    """Return whether in all steps nothing differs but gradients inside the model, by one factor.

    Then the factor reaches no optimizer, and no parameter, in any step. Whether the program took it
    off or clipping did makes no difference to what is learned.
    scaled: for each row of A, whether it is a gradient that a loss scale multiplies.
    """
    pairs = alignment.differing
    rows = alignment.a_row[pairs]
    norm_a = alignment.a.figures["l2"][rows]
    norm_b = alignment.b.figures["l2"][alignment.b_row[pairs]]
    return factor is not None and bool((scaled[rows] & (norm_b == factor * norm_a)).all())


def _first_or_largest(alignment: Alignment, inside: Array) -> int:
    """Return the index of the pair of gradients from which a loss scale is best read.

    The first gradient of a single number is that of the loss, which low precision does not round.
    Where no such gradient was recorded, or passes are merged, the largest other gradient is taken.
    inside: a mask of the pairs of gradients to choose from.
    """
    a, pairs = alignment.a, np.flatnonzero(inside)
    rows = alignment.a_row[pairs]
    single = np.flatnonzero((a.figures["numel"][rows] == 1) & (a.figures["l2"][rows] > 0))
    if len(single) and not alignment.merged:
        return int(pairs[single[np.argmin(a.order[rows[single]])]])
    norm = np.where(a.figures["numel"][rows] == 1, -1.0, a.figures["l2"][rows])
    return int(pairs[np.argmax(np.where(np.isfinite(norm), norm, -1.0))])


def _ratios_of_numbers(alignment: Alignment, here: Array, kind: str) -> Array:
    """Return for each pair of single numbers B's over A's, as in the first step that differs.

    The ratio of a tensor's single number in that step holds for all single numbers of the tensor's
    name and rank that were recorded in training. It is 1 for all other pairs, and where the passes
    of that step have different ratios.
    here: which pairs are of that step. kind: "value" or "grad": which records of that step give the
    ratios.
    """
    a, rows = alignment.a, alignment.a_row
    train = np.array([phase == TRAIN for phase in a.phases] or [False], bool)[a.phase[rows]]
    real = np.array([name in FLOATS for name in a.dtypes] or [False], bool)[a.dtype[rows]]
    which = train & real & (a.figures["numel"][rows] == 1)
    known: dict[tuple[str, int], float] = {}
    for pair in np.flatnonzero(which & here).tolist():
        tensor = a.tensors[a.tensor[rows[pair]]]
        if tensor.kind != kind:
            continue
        row, row_b = rows[pair], alignment.b_row[pair]
        norms = float(a.figures["l2"][row]), float(alignment.b.figures["l2"][row_b])
        ratio = _snapped(*norms) or 1.0
        same = abs(known.setdefault((tensor.name, tensor.rank), ratio) / ratio - 1) <= LOW
        known[tensor.name, tensor.rank] = ratio if same else 1.0
    ratios = [known.get((tensor.name, tensor.rank), 1.0) for tensor in a.tensors] or [1.0]
    factors: Array = np.where(which, np.array(ratios)[a.tensor[rows]], 1.0)
    return factors


def _snapped(norm_a: float, norm_b: float) -> float | None:
    """Return norm_b / norm_a, rounded to n or 1/n where it is near a whole number n or near 1/n.

    Near means within rounding. None for a ratio that is not finite and positive, or that is too
    near to 1 for a loss scale.
    """
    with np.errstate(all="ignore"):
        factor = float(np.float64(norm_b) / np.float64(norm_a))
    if not math.isfinite(factor) or factor <= 0 or abs(math.log(factor)) < LEAST:
        return None
    whole = factor if factor > 1 else 1 / factor
    if abs(whole - round(whole)) <= ROUNDINGS * EPS32 * whole:
        whole = float(round(whole))
    return whole if factor > 1 else 1 / whole


def _are_near(alignment: Alignment, norm_a: Array, norm_b: Array) -> bool:
    """Return whether norms of A and B agree, pair by pair, but for rounding.

    The rounding is relative to the largest norm of A, since a small gradient may consist of
    rounding alone, as that of a bias before a batch norm.
    """
    names = {*alignment.a.dtypes, *alignment.b.dtypes}
    low = any((dtypes.dtype(name).eps or 0.0) > EPS32 for name in names)
    limit = (LOW if low else ROUNDINGS * EPS32) * float(norm_a.max())
    return bool((np.abs(norm_a - norm_b) <= limit).all())
