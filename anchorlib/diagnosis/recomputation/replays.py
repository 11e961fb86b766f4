"""An origin computed again from what each run stored: which formula reproduces A's bits, and B's.

An origin is a record that differs between the runs without an earlier difference that explains it.
Each run's own inputs go into every known way to compute the operation, in arithmetic in which every
rounding is explicit (`anchorlib.formulas`). Nothing is run again and no model is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from anchorlib import dtypes
from anchorlib.amounts import figure
from anchorlib.diagnosis.causes import Frontier, module_key
from anchorlib.diagnosis.judgement import Origin, Replay, computing
from anchorlib.diagnosis.recomputation.operands import Operands, operands_of
from anchorlib.diagnosis.recomputation.rules import Recipe, recipe
from anchorlib.diagnosis.recomputation.traced import partings
from anchorlib.errors import StoreError
from anchorlib.formulas import ENOUGH, Fit, fit
from anchorlib.names import escape
from anchorlib.operations import base_name

__all__ = ["replay", "replayed"]

PRECISIONS = ("float32", "float64", "bfloat16", "float16")
MOST = 8
"""The most origins that are computed again, since all operands of each are read whole."""
FAR = 0.05
"""The relative distance from a function's true value that rounding does not explain any more."""
PACKED = "in_proj_weight"
"""The parameter in which `nn.MultiheadAttention` keeps the weights of query, key and value."""
NAMED = 2
"""The most formulas that a line names; the JSON has all of them."""


def replay(origin: Origin) -> Replay | None:
    """Return which formula the operation of an origin used in A and in B, from stored inputs.

    Where several operations lie between the origin and its parents, and both runs traced them, the
    one operation is computed again at which the runs part, from values that `trace(values=...)`
    kept, or that records hold.

    None where the operation is not a known one (tanh, sigmoid, gelu, silu, softmax, layer norm, RMS
    norm, linear, mean squared error, log-softmax, cross entropy, convolution, attention; their
    gradients), or where a run did not keep the values (`mode=All()`) of all operands.
    """
    outcome = _replay_or_reason(origin)
    return outcome if isinstance(outcome, Replay) else None


def _replay_or_reason(origin: Origin) -> Replay | str:
    """Return the replay of an origin, or a text that says why there is none.

    The text is "" for an origin without evidence, and where no operation made its record.
    """
    if origin.evidence is None:
        return ""
    front, row = origin.evidence
    try:
        whole = _of_records(origin, front, row)
        if isinstance(whole, Replay) and (whole.a or whole.b):
            return whole
        return _of_operations(origin, front) or whole
    except StoreError:
        return "stored values are damaged"


def _of_records(origin: Origin, front: Frontier, row: int) -> Replay | str:
    """Return the replay of all operations between an origin and its recorded parents.

    Where there is no replay, return a text that says why; "" where there is no operation.
    front: the frontier of the comparison. row: the origin's row in A.
    """
    ops = computing(front.ancestry(row).ops) or origin.ops_a or origin.ops_b
    if not ops:
        return ""
    operands = operands_of(front, row)
    if operands is None:
        return "the runs do not both have the values of all its operands, in one shape and type"
    if operands.own.dtype not in PRECISIONS or not _is_of_one_precision(operands):
        return "its operands are not of one floating-point type"
    how = _recipe(origin, front, row, operands)
    if how is None:
        return _unknown(ops, operands)
    return (
        _replay(how, operands) or "no function that was tried comes near the values of either run"
    )


def _unknown(ops: Sequence[str], operands: Operands) -> str:
    """Return why no rule gave a recipe for these operations, as a text for people."""
    packed = [weight.name for weight in operands.weights if weight.name.endswith(PACKED)]
    if packed:
        made = f"{escape(packed[0])} makes query, key and value in one"
        return f"{made}, which are not recorded: anchor them where attention is called"
    if len(ops) == 1:
        return f"no rule computes {escape(ops[0])} from what was recorded"
    return f"{len(ops)} operations lie between it and what was recorded"


def _of_operations(origin: Origin, front: Frontier) -> Replay | None:
    """Return the replay of the one traced operation inside an origin at which the runs part.

    None where there is no such operation, or where it cannot be computed again.
    """
    for parting in partings(origin, (front.alignment.a, front.alignment.b)):
        if parting.operands.own.dtype not in PRECISIONS or not _is_of_one_precision(
            parting.operands
        ):
            continue
        texts = [op.args for op in (parting.op, *parting.also)]
        how = recipe([base_name(parting.op.op)], parting.operands, texts)
        fitted = None if how is None else _replay(how, parting.operands)
        if fitted is not None:
            place = f" in {escape(parting.op.module)}" * bool(parting.op.module)
            return replace(fitted, why=f"{base_name(parting.op.op)}{place}: {fitted.why}")
    return None


def _replay(how: Recipe, operands: Operands) -> Replay | None:
    """Return which formulas fit each run's result; None if no formula comes near either result.

    If no formula comes near, the runs computed something else, or read an operand that was not
    recorded, such as a mask.
    how: the formulas to try.
    """
    fit_a, fit_b = (_fit(how, operands, side) for side in "ab")
    if all(_is_far(side, operands.own.dtype) for side in (fit_a, fit_b)):
        return None
    return Replay(
        a=fit_a.formulas,
        b=fit_b.formulas,
        error_a=fit_a.error,
        error_b=fit_b.error,
        nearer=_nearer(fit_a, fit_b),
        why=_line(fit_a, fit_b),
    )


def replayed(origins: Sequence[Origin]) -> Iterator[Origin]:
    """Yield all origins in order, the first MOST of them with their replays.

    The `why` of an origin with a replay also says what the replay shows, and that of an origin
    without a replay why it was not computed again, where that is known.
    """
    for number, origin in enumerate(origins):
        outcome = _replay_or_reason(origin) if number < MOST else ""
        if isinstance(outcome, Replay):
            yield replace(origin, replay=outcome, why=_joined(origin.why, outcome.why))
        else:
            yield replace(
                origin, why=_joined(origin.why, outcome and f"not computed again: {outcome}")
            )


def _joined(*words: str) -> str:
    return "; ".join(filter(None, words))


def _recipe(origin: Origin, frontier: Frontier, row: int, operands: Operands) -> Recipe | None:
    """Return the recipe for A's operation, else for B's; None where neither has a recipe.

    The runs may compute the record by different operations, of which a rule knows only one run's.
    row: the origin's row in A.
    """
    texts = _texts(frontier, operands)
    for ops in (computing(frontier.ancestry(row).ops), origin.ops_a, origin.ops_b):
        how = recipe(ops, operands, texts)
        if how is not None:
            return how
    return None


def _is_of_one_precision(operands: Operands) -> bool:
    precisions = [
        operands.own,
        *operands.inputs,
        *operands.weights,
        operands.child,
        operands.output,
    ]
    floating = {
        operand.dtype for operand in precisions if operand is not None and operand.dtype != "int64"
    }
    return len(floating) == 1


def _texts(frontier: Frontier, operands: Operands) -> list[str]:
    """Return the texts that state the settings with which both runs made the record.

    These are, of each run, the description of the module and the arguments of its operations.
    """
    name = operands.child.name if operands.child is not None else operands.own.name
    alignment = frontier.alignment
    names = {renaming.a: renaming.b for renaming in alignment.renamed}
    keys = (alignment.a, module_key(name)), (alignment.b, module_key(names.get(name, name)))
    found_texts = []
    for table, key in keys:
        found_texts += [str(header[key]) for header in table.header.values() if key in header]
    for table, wanted in (alignment.a, name), (alignment.b, names.get(name, name)):
        edges = [one for some in table.edges.values() for one in some if one.name == wanted]
        found_texts += dict.fromkeys(text for one in edges for text in one.arguments or ())
    return found_texts


def _fit(how: Recipe, operands: Operands, side: str) -> Fit:
    output = how.output(operands.own.read(side))
    return fit(how.functions, how.inputs(side), output, operands.own.dtype, part=how.part)


def _is_far(outcome: Fit, precision: str) -> bool:
    """Return whether a run's result is farther from every function's than rounding explains.

    outcome: how the nearest function fits. precision: the dtype of the result.
    """
    eps = dtypes.dtype(precision).eps or 1
    return not outcome.formulas and outcome.error > max(8, FAR / eps)


def _nearer(fit_a: Fit, fit_b: Fit) -> str | None:
    """Return which run ("a", "b") is nearer to the true value of the function that both compute.

    None where they compute two functions, are equally near, or the error is unknown.
    """
    if fit_a.function != fit_b.function or math.isnan(fit_a.error) or math.isnan(fit_b.error):
        return None
    if fit_a.error == fit_b.error:
        return None
    return "a" if fit_a.error < fit_b.error else "b"


def _line(fit_a: Fit, fit_b: Fit) -> str:
    """Return a line for people: what each run computed, and which is nearer to the truth."""
    if fit_a.function != fit_b.function:
        return f"A computes {fit_a.function}, B {fit_b.function}"
    parts = [f"A computes {_formulas(fit_a)}, B {_formulas(fit_b)}"]
    nearer = _nearer(fit_a, fit_b)
    if nearer is not None:
        low, high = map(figure, sorted((fit_a.error, fit_b.error)))
        verdict = f"{nearer.upper()} is nearer to the truth: {low} against {high} eps"
        parts.append(verdict if low != high else f"both are as near to the truth, {low} eps")
    if fit_a.elements < ENOUGH:
        parts.append(f"{fit_a.elements} elements are few: formulas may agree by chance")
    return "; ".join(parts)


def _formulas(outcome: Fit) -> str:
    if not outcome.formulas:
        share = math.floor(outcome.share * 1000) / 10  # rounded up to 100, it would seem to fit
        return f"nothing known here (nearest: {outcome.nearest}, {share:g}% of the elements)"
    # A formula that is written out explains more than the words "torch's kernel".
    explicit = [formula for formula in outcome.formulas if formula != "torch's kernel"] or list(
        outcome.formulas
    )
    named = " or ".join(explicit[:NAMED])
    more = len(explicit) - NAMED
    return f"{named} or {more} more that agree here" if more > 0 else named
