"""An origin computed again from what each run stored: which formula reproduces A's bits, and B's.

Both runs' own inputs go into every known way to compute the operation, each rounding explicit
(`anchorlib.formulas`). Nothing is run again and no model is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from anchorlib import dtypes
from anchorlib.amounts import figure
from anchorlib.diagnosis.causes import Frontier, module_key
from anchorlib.diagnosis.judgement import Origin, Replay, computing
from anchorlib.diagnosis.recomputation.operands import Operands, operands
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
"""From this relative distance on an output is no rounding of a function's true value."""
PACKED = "in_proj_weight"
"""The weight in which `nn.MultiheadAttention` keeps those of query, key and value."""
NAMED = 2
"""The most formulas that a line names; the JSON has all."""


def replay(origin: Origin) -> Replay | None:
    """Which formula the operation of an origin used in A and in B, from each run's stored inputs.

    Where several operations lie between the origin and its parents, and both runs traced them, the
    one operation is computed again at which the runs part, from values that `trace(values=...)`
    kept, or that were recorded otherwise.

    None where the operation is not a known one (tanh, sigmoid, gelu, silu, softmax, layer norm, RMS
    norm, linear, mean squared error, log-softmax, cross entropy, convolution, attention; their
    gradients), or where a run did not keep the values (`mode=All()`) of all operands.
    """
    told = _replay_or_reason(origin)
    return told if isinstance(told, Replay) else None


def _replay_or_reason(origin: Origin) -> Replay | str:
    """The replay of an origin, or why there is none; "" where nothing was computed there."""
    if origin.evidence is None:
        return ""
    found, row = origin.evidence
    try:
        whole = _of_records(origin, found, row)
        if isinstance(whole, Replay) and (whole.a or whole.b):
            return whole
        return _of_operations(origin, found) or whole
    except StoreError:
        return "stored values are damaged"


def _of_records(origin: Origin, found: Frontier, row: int) -> Replay | str:
    """The replay of all that lies between an origin and its recorded parents, or why none is."""
    ops = computing(found.ancestry(row).ops) or origin.ops_a or origin.ops_b
    if not ops:
        return ""
    told = operands(found, row)
    if told is None:
        return "the runs do not both have the values of all its operands, in one shape and type"
    if told.own.dtype not in PRECISIONS or not _is_of_one_precision(told):
        return "its operands are not of one floating-point type"
    how = _recipe(origin, found, row, told)
    if how is None:
        return _unknown(ops, told)
    return _replay(how, told) or "no function that was tried comes near the values of either run"


def _unknown(ops: Sequence[str], told: Operands) -> str:
    """Why no rule gave a recipe for these operations."""
    packed = [one.name for one in told.weights if one.name.endswith(PACKED)]
    if packed:
        made = f"{escape(packed[0])} makes query, key and value in one"
        return f"{made}, which are not recorded: anchor them where attention is called"
    if len(ops) == 1:
        return f"no rule computes {escape(ops[0])} from what was recorded"
    return f"{len(ops)} operations lie between it and what was recorded"


def _of_operations(origin: Origin, found: Frontier) -> Replay | None:
    """The replay of the one traced operation inside an origin at which the runs part."""
    for one in partings(origin, (found.alignment.a, found.alignment.b)):
        if one.told.own.dtype not in PRECISIONS or not _is_of_one_precision(one.told):
            continue
        texts = [op.args for op in (one.op, *one.also)]
        how = recipe([base_name(one.op.op)], one.told, texts)
        fitted = None if how is None else _replay(how, one.told)
        if fitted is not None:
            place = f" in {escape(one.op.module)}" * bool(one.op.module)
            return replace(fitted, why=f"{base_name(one.op.op)}{place}: {fitted.why}")
    return None


def _replay(how: Recipe, told: Operands) -> Replay | None:
    """Which formulas fit; None where none comes near: an operand was not recorded, as a mask."""
    one, two = (_fit(how, told, side) for side in "ab")
    if all(_is_far(side, told.own.dtype) for side in (one, two)):
        return None
    return Replay(
        a=one.formulas,
        b=two.formulas,
        error_a=one.error,
        error_b=two.error,
        nearer=_nearer(one, two),
        why=_line(one, two),
    )


def replayed(origins: Sequence[Origin]) -> Iterator[Origin]:
    """The origins, the first few of them with their replays, which are added to their reasons."""
    for number, origin in enumerate(origins):
        told = _replay_or_reason(origin) if number < MOST else ""
        if isinstance(told, Replay):
            yield replace(origin, replay=told, why=_joined(origin.why, told.why))
        else:
            yield replace(origin, why=_joined(origin.why, told and f"not computed again: {told}"))


def _joined(*words: str) -> str:
    return "; ".join(filter(None, words))


def _recipe(origin: Origin, frontier: Frontier, row: int, told: Operands) -> Recipe | None:
    """The recipe for A's operation, else for B's: one run may have written it by hand."""
    texts = _texts(frontier, told)
    for ops in (computing(frontier.ancestry(row).ops), origin.ops_a, origin.ops_b):
        how = recipe(ops, told, texts)
        if how is not None:
            return how
    return None


def _is_of_one_precision(told: Operands) -> bool:
    precisions = [told.own, *told.inputs, *told.weights, told.child, told.output]
    floating = {one.dtype for one in precisions if one is not None and one.dtype != "int64"}
    return len(floating) == 1


def _texts(frontier: Frontier, told: Operands) -> list[str]:
    """The modules that made the record, in A and in B, and the arguments of their operations."""
    name = told.child.name if told.child is not None else told.own.name
    alignment = frontier.alignment
    names = {one.a: one.b for one in alignment.renamed}
    keys = (alignment.a, module_key(name)), (alignment.b, module_key(names.get(name, name)))
    found_texts = []
    for table, key in keys:
        found_texts += [str(header[key]) for header in table.header.values() if key in header]
    for table, wanted in (alignment.a, name), (alignment.b, names.get(name, name)):
        edges = [one for some in table.edges.values() for one in some if one.name == wanted]
        found_texts += dict.fromkeys(text for one in edges for text in one.arguments or ())
    return found_texts


def _fit(how: Recipe, told: Operands, side: str) -> Fit:
    output = how.output(told.own.read(side))
    return fit(how.functions, how.inputs(side), output, told.own.dtype, part=how.part)


def _is_far(told: Fit, precision: str) -> bool:
    """Whether a run computed something else than any function that was tried."""
    eps = dtypes.dtype(precision).eps or 1
    return not told.formulas and told.error > max(8, FAR / eps)


def _nearer(one: Fit, two: Fit) -> str | None:
    """Which run is nearer to the truth of the one function that both compute."""
    if one.function != two.function or math.isnan(one.error) or math.isnan(two.error):
        return None
    if one.error == two.error:
        return None
    return "a" if one.error < two.error else "b"


def _line(one: Fit, two: Fit) -> str:
    """One line for people: what each run computed, and which is nearer to the truth."""
    if one.function != two.function:
        return f"A computes {one.function}, B {two.function}"
    parts = [f"A computes {_formulas(one)}, B {_formulas(two)}"]
    nearer = _nearer(one, two)
    if nearer is not None:
        low, high = map(figure, sorted((one.error, two.error)))
        told = f"{nearer.upper()} is nearer to the truth: {low} against {high} eps"
        parts.append(told if low != high else f"both are as near to the truth, {low} eps")
    if one.elements < ENOUGH:
        parts.append(f"{one.elements} elements are few: formulas may agree by chance")
    return "; ".join(parts)


def _formulas(told: Fit) -> str:
    if not told.formulas:
        share = math.floor(told.share * 1000) / 10  # rounded up to 100, it would seem to fit
        return f"nothing known here (nearest: {told.nearest}, {share:g}% of the elements)"
    # A formula that is written out tells more than the words "torch's kernel".
    explicit = [one for one in told.formulas if one != "torch's kernel"] or list(told.formulas)
    named = " or ".join(explicit[:NAMED])
    more = len(explicit) - NAMED
    return f"{named} or {more} more that agree here" if more > 0 else named
