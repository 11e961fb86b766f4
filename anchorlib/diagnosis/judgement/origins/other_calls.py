"""Modules that the runs call or use differently, recognised by what their records look like.

A module is recognised where its records have other shapes in B than in A, where its calls come in
another order, or where the rows of its records do.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np

from anchorlib.diagnosis.judgement.origins.first_step import FirstStep, module_of
from anchorlib.diagnosis.judgement.origins.intermediates import intermediates
from anchorlib.diagnosis.judgement.origins.learning import LIMIT
from anchorlib.diagnosis.judgement.origins.other_uses import used_otherwise
from anchorlib.diagnosis.judgement.origins.packed import packed_sequences
from anchorlib.diagnosis.judgement.origins.row_order import in_another_order
from anchorlib.diagnosis.judgement.origins.turns import in_turn
from anchorlib.diagnosis.pairing import Table
from anchorlib.names import join

__all__ = ["called_otherwise", "inside_models"]

Array = np.ndarray[Any, Any]


def called_otherwise(first: FirstStep) -> set[str]:
    """Return the names of modules that the runs call differently in the first step that differs.

    Their calls differ in shape, number or order, or the rows of their records come in another
    order. The set also holds, as `name@kind`, tensors of packed sequences, and gradients of values
    that the runs use differently. Where the backward passes of the runs differ in number or in what
    each contributes, the set also holds, as `name@kind`, the differing gradients and single
    numbers, and "", which stands for all gradients of single passes.
    """
    a, rows = first.alignment.a, first.rows[first.here]
    shapes = first.measures["measured"][first.here] == "shape"
    modules: set[str] = set()
    passes = _passes(a, first.steps[0]) != _passes(first.alignment.b, first.steps[1])
    passes |= in_turn(first)
    for number in np.unique(a.tensor[rows]).tolist():
        tensor, own = a.tensors[number], a.tensor[rows] == number
        if tensor.kind not in ("value", "grad") or tensor.name in first.learnt:
            continue
        phases = {a.phases[one] for one in a.phase[rows[own]].tolist()}
        calls_a, calls_b = _calls(first, number, phases)
        if calls_a == calls_b or calls_a.total() != calls_b.total() or shapes[own].any():
            modules.add(module_of(tensor.name))
        elif passes and (tensor.kind == "grad" or a.figures["numel"][rows[own]].max() == 1):
            modules.add(join(tensor.name, tensor.kind))
        elif _is_read(first, number) and _in_another_order(first, own):
            modules.add(module_of(tensor.name))
    modules |= _packed(first)
    modules |= {join(name, "grad") for name in _used_otherwise(first, modules)}
    return modules | ({""} if passes else set())


def inside_models(first: FirstStep) -> set[str]:
    """Return the intermediate results inside the models that differ by more than LIMIT.

    They are given as `name@kind`.
    """
    return intermediates(first, LIMIT)


def _packed(first: FirstStep) -> set[str]:
    """Return the tensors of packed sequences, as `name@kind`, whose rows cannot be compared.

    All packed sequences of the step are returned where the runs split or order the batch
    differently, or record other parts of the sequences; else the set is empty.
    """
    a, b = first.alignment.a, first.alignment.b
    known = packed_sequences(a, first.steps[0]) | packed_sequences(b, first.steps[1])
    dealt = bool(first.alignment.merged) or first.alignment.reordered is not None
    return known if dealt or _parts(first, a, known, 0) != _parts(first, b, known, 1) else set()


def _parts(first: FirstStep, table: Table, known: set[str], run: int) -> set[str]:
    """Return those of the tensors in `known` that a run recorded in the step, as `name@kind`.

    The runs may have different parts of a packed sequence: a program that sorts its sequences by
    itself packs them without indices. table: the run's. known: as `name@kind`. run: 0 for A, 1 for
    B.
    """
    tensors = (table.tensors[number] for number in first.rows_of[run])
    return {join(tensor.name, tensor.kind) for tensor in tensors} & known


def _is_read(first: FirstStep, number: int) -> bool:
    """Return whether a record shows that what is computed from a tensor is equal, or is not.

    Gradients show it. So does, for a tensor without a gradient, as of a forward under no_grad, the
    result of a module that holds the tensor's own module.
    number: the tensor's index in A's table.
    """
    a = first.alignment.a
    tensor = a.tensors[number]
    if (tensor.name, tensor.rank) in first.followed:
        return True
    parts = module_of(tensor.name).split(".")[:-1]
    around = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    around |= {f"{name}.output" for name in around} | {"output"}
    return any(
        (own.kind, own.rank) == ("value", tensor.rank)
        and (name := module_of(own.name)) in around
        and name != module_of(tensor.name)
        for own in (a.tensors[one] for one in first.rows_of[0])
    )


def _in_another_order(first: FirstStep, own: Array) -> bool:
    """Return whether B's records of a tensor hold the rows of A's in another order.

    own: a mask of the step's differing pairs, true for those of the tensor.
    """
    return all(
        in_another_order(first.alignment, int(first.measures.pair[place]), first.measures.at(place))
        for place in first.here[own].tolist()
    )


def _used_otherwise(first: FirstStep, modules: set[str]) -> set[str]:
    """Return names of values that the runs use differently, so that their gradients are far apart.

    Only gradients that differ beyond LIMIT are looked at.
    modules: the modules and tensors that are left out, as `FirstStep.within` takes them.
    """
    a, here = first.alignment.a, first.here
    within = first.within(modules)
    far: defaultdict[int, set[str]] = defaultdict(set)
    for number, error in zip(
        a.tensor[first.rows[here]].tolist(),
        first.measures["error_eps"][here].tolist(),
        strict=True,
    ):
        tensor = a.tensors[number]
        gradient = tensor.kind == "grad" and tensor.name not in first.learnt
        if gradient and not within[number] and not error <= LIMIT:
            far[tensor.rank].add(tensor.name)
    return {
        name for rank, names in far.items() for name in used_otherwise(first.alignment, rank, names)
    }


def _calls(
    first: FirstStep, number: int, phases: set[str]
) -> tuple[Counter[bytes], Counter[bytes]]:
    """Return digest -> how many of a tensor's calls in the step have it, for A and for B.

    number: the tensor's index in A's table. Calls in other phases than `phases` are left out.
    """
    sides = (first.alignment.a, first.alignment.b)
    bits_of_calls = []
    numbers = (number, first.partner[number])
    for table, own, rows in zip(sides, numbers, first.rows_of, strict=True):
        known = [row for row in rows[own] if table.phases[table.phase[row]] in phases]
        bits_of_calls.append(Counter(bits.tobytes() for bits in table.digest[known]))
    return bits_of_calls[0], bits_of_calls[1]


def _passes(table: Table, step: int) -> int:
    """Return how many backward passes reach parameters in a step.

    step: as the table's run counts steps.
    """
    rows = np.flatnonzero(table.of_kind("pass_grad") & (table.step == step))
    return len(set(zip(table.pass_index[rows].tolist(), table.call[rows].tolist(), strict=True)))
