"""What is worth saying of an origin beyond its class, in one line."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from anchorlib.diagnosis.causes import Frontier, Role, made_otherwise, module_key
from anchorlib.diagnosis.judgement.groups import Segment
from anchorlib.diagnosis.pairing import compiled
from anchorlib.diagnosis.sizes import Measure
from anchorlib.names import escape
from anchorlib.record import Edges

__all__ = ["computing", "of_b_alone", "other_settings", "reason", "unrounding"]

PARALLEL = 1e-10  # cosine distance of a tensor and a multiple of it, roundings of float32 included
LARGE = 1000.0  # eps, which no operation of the first steps is likely to make
CLEAR = 1e-3  # from which two factors are told from one another

UNROUNDING = re.compile(
    r"^(T|View|UnsafeView|ReshapeAlias|Reshape|Slice|Select|Cat|Stack|Transpose|Permute|Expand"
    r"|Clone|Unsqueeze|Squeeze|Split\w*|UnsafeSplit|Narrow|Unbind|Alias|Detach|Relu|Neg|Abs"
    r"|MaskedFill|Where|ConstantPadNd|Flip|Roll|Unfold|AsStrided|Index|IndexSelect|Gather"
    r"|Contiguous|Flatten|MaxPool\w*|Diagonal|Repeat|Movedim|Swapdims)Backward\d*$"
)


MOVING = re.compile(
    r"^(T|View|UnsafeView|ReshapeAlias|Reshape|Slice|Select|Transpose|Permute|Expand|Clone"
    r"|Unsqueeze|Squeeze|Split\w*|UnsafeSplit|Narrow|Unbind|Alias|Detach|AsStrided|Contiguous"
    r"|Flatten|Diagonal|Movedim|Swapdims)Backward\d*$"
)


def computing(ops: Sequence[str]) -> tuple[str, ...]:
    """Those that compute; where all of them only move bits, these."""
    return tuple(op for op in ops if not MOVING.match(op)) or tuple(ops)


def unrounding(ops: tuple[str, ...], *, gradient: bool, parents: int) -> bool:
    """Whether none of these operations can make a rounding difference.

    Gradients that meet are added, and those of what was read twice too.
    """
    if not ops or (gradient and parents != 1):
        return False
    adding = re.compile(r"^(Expand|Repeat|Unfold|AsStrided|Index\w*|Gather|MaxPool\w*)Backward")
    return all(UNROUNDING.match(op) and not (gradient and adding.match(op)) for op in ops)


def reason(found: Frontier, segment: Segment, measure: Measure, note: str, *, outside: bool) -> str:
    """One line, "" where there is nothing to say.

    note: what the class itself says. outside: whether the difference came in from elsewhere, so
        that its operations say nothing.
    """
    a, row = found.alignment.a, segment.row
    parts = [note] if note else []
    if outside:
        return "; ".join(parts)
    if measure.measured == "summary":
        parts.append("judged from summaries alone, as a lower bound")
    ancestry = found.ancestry(row)
    direct = [link for link in ancestry.parents if not link.saved]
    gradient = a.tensors[a.tensor[row]].kind != "value"
    if unrounding(segment.ops, gradient=gradient, parents=len(direct)):
        parts.append(
            f"{segment.ops[0]} cannot round: the difference was made just before, by something "
            "that is not recorded"
        )
    if found.lacking[row] and not segment.ops and not note:
        parts.append("how it was made was not recorded")
    if found.role[row] == Role.OPTIMIZER and not segment.ops:
        parts.append(_after_backward(a.tensors[a.tensor[row]].kind))
    parts += _stretch(segment)
    parts += _of_b(found, row, measure) or _seen_before(found, row, measure)
    if ranks := _ranks(found, segment):
        parts.append(ranks)
    return "; ".join(parts)


def _of_b(found: Frontier, row: int, measure: Measure) -> list[str]:
    """What B does otherwise, as far as it can be told."""
    parts = []
    if made := _made_otherwise(found, row):
        parts.append(" | ".join(map(escape, made)))
    if other := _otherwise(found, row):
        parts.append(f"B computes it by {other}")
    if other := of_b_alone(found, row):
        parts.append(f"B computes it from {other}, which A does not have")
    if factor := _factor(measure):
        parts.append(f"B is {factor:.6g} times A")
    return parts


def _made_otherwise(found: Frontier, row: int) -> tuple[str, str] | None:
    """What the two modules whose output this is, or whose parameter, were made with."""
    alignment = found.alignment
    a, b = alignment.a, alignment.b
    tensor = a.tensors[a.tensor[row]]
    names = {one.a: one.b for one in alignment.renamed}
    told_a, told_b = a.header.get(tensor.rank, {}), b.header.get(tensor.rank, {})
    for name in (tensor.name, tensor.name.rpartition(".")[0]):
        key_a, key_b = module_key(name), module_key(names.get(name, name))
        if key_a in told_a:
            return made_otherwise(told_a[key_a], told_b.get(key_b))
    return None


def other_settings(found: Frontier, row: int) -> bool:
    """Whether the module that computed a record was made with other values of the same arguments.

    Then it computes another formula: eps, approximate, p, negative_slope. Of other classes, or with
    other arguments, two modules may still compute one and the same.
    """
    a = found.alignment.a
    made = _made_otherwise(found, row)
    if made is None or a.tensors[a.tensor[row]].kind not in ("value", "pass_grad"):
        return False
    names = [re.findall(r"(\w+)=", text) for text in made]
    # Of one class, the second text begins with its arguments.
    return bool(names[0]) and names[0] == names[1] and bool(re.match(r"\w+=", made[1]))


def _seen_before(found: Frontier, row: int, measure: Measure) -> list[str]:
    """That the operations are those of an earlier step, where the difference is of another kind.

    Recording looks at the graph behind a tensor in the first steps alone.
    """
    large = measure.nonfinite or measure.error_eps > LARGE
    alignment = found.alignment
    a, step = alignment.a, int(alignment.a.step[row])
    tensor = a.tensors[a.tensor[row]]
    told = [one.step for one in a.edges.get(tensor.rank, ()) if one.name == tensor.name]
    if not large or tensor.kind != "value" or not told or step - max(told) <= 1:
        return []
    return [
        f"operations are those of step {max(told)}; what B did at step {step} was not looked at"
    ]


def _after_backward(kind: str) -> str:
    if kind == "grad":
        return "after backward: clipping, scaling or reduction"
    return "the optimizer itself"


def _stretch(segment: Segment) -> list[str]:
    if compiled(segment.ops):
        return ["somewhere inside compiled code"]
    if len(segment.ops) > 3:
        return [f"somewhere in {len(segment.ops)} operations: anchors between them tell which"]
    return []


def _ranks(found: Frontier, segment: Segment) -> str:
    every = {tensor.rank for tensor in found.alignment.a.tensors}
    if len(every) < 2:
        return ""
    if len(segment.ranks) == len(every):
        return "on every rank: the operation itself"
    listed = ", ".join(map(str, segment.ranks))
    return f"on rank{'s' * (len(segment.ranks) > 1)} {listed} alone: its data, device or placement"


def _otherwise(found: Frontier, row: int) -> str:
    """The operations by which B made the same tensor, where they are others than A's."""
    alignment = found.alignment
    a = alignment.a
    tensor = a.tensors[a.tensor[row]]
    sites = [(link.name, link.call or 0) for link in found.ancestry(row).parents]
    if tensor.kind == "value":
        sites = [(tensor.name, int(a.call[row]))]
    names = {one.a: one.b for one in alignment.renamed}
    own = _ops(a.edges.get(tensor.rank, ()), sites)
    other = _ops(
        alignment.b.edges.get(tensor.rank, ()), [(names.get(n, n), call) for n, call in sites]
    )
    if not own or not other or own == other or compiled(own) or compiled(other):
        return ""
    return escape(", ".join(op for op in other if op not in own)) if set(other) - set(own) else ""


def of_b_alone(found: Frontier, row: int) -> str:
    """What B made the same value of that has no partner in A."""
    alignment = found.alignment
    tensor = alignment.a.tensors[alignment.a.tensor[row]]
    if tensor.kind != "value" or not len(alignment.only_b):
        return ""
    names = {one.a: one.b for one in alignment.renamed}
    site = (names.get(tensor.name, tensor.name), int(alignment.a.call[row]))
    b = alignment.b
    paired = {b.tensors[one].name for one in np.unique(b.tensor[alignment.b_row]).tolist()}
    alone = {b.tensors[one].name for one in np.unique(b.tensor[alignment.only_b]).tolist()} - paired
    told = [one for one in b.edges.get(tensor.rank, ()) if (one.name, one.call) == site]
    parents = dict.fromkeys(parent.name for one in told[:1] for parent in one.parents)
    return ", ".join(escape(name) for name in parents if name in alone)


def _factor(measure: Measure) -> float:
    """B as a multiple of A, 0.0 where it is none: one factor is easily found in a program.

    Any number is a multiple of any other: of a scalar that says nothing.
    """
    if measure.numel < 2 or not (measure.cosine_distance <= PARALLEL and measure.value_a):
        return 0.0
    factor = measure.value_b / measure.value_a
    apart = measure.error_eps * measure.eps
    return factor if apart > CLEAR and abs(abs(factor - 1) / apart - 1) < CLEAR else 0.0


def _ops(told: object, sites: list[tuple[str, int]]) -> tuple[str, ...]:
    found: list[str] = []
    for edges in told if isinstance(told, list | tuple) else ():
        if isinstance(edges, Edges) and (edges.name, edges.call) in sites:
            found += [op for op in edges.ops if op not in found]
    return tuple(found)
