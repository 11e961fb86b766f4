"""Modules that the runs call or use differently for equal work; their records are not compared.

    torch.cat([wide(row) for row in x.split(1)])    wide(x)            as often, or at once
    message(h)[sources]                             message(h[sources])
    critic(fake), critic(real)                      critic(real), critic(fake)
    one.backward(); other.backward()                (one + other).backward()
    expert(x[chosen])                               expert(x[chosen.flip(0)])
    probabilities / probabilities.sum()             logits.softmax(-1)
    scores.masked_fill(~keep, -inf)                 scores.masked_fill(drop, -inf)

Where the runs only split a batch differently, or order its samples differently, the alignment has
found it out, and each sample's results are compared with those of the same sample. Packed sequences
alone cannot be compared like this: how their rows are mixed depends on all samples of the batch.

The records of modules that are called differently have different shapes, or stand for different
samples. They are two quantities, so that their difference is no fault. Whether the work is equal
shows in its results: in the first step that differs, each gradient that an optimizer reads, each
update, and all values behind those calls are equal but for rounding. Where one of these results is
not, or has no record in both runs, nothing is excused. Rounding is that of the coarsest format that
both runs went through since they were equal: under autocast a float32 gradient is made of bfloat16
products. Records that are computed from excused records are judged as if one run had no record of
their parents.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from anchorlib.diagnosis.judgement.origins.encodings import encoded_otherwise, exchanged_inputs
from anchorlib.diagnosis.judgement.origins.first_step import FirstStep
    called = called_otherwise(first)
    given = encoded_otherwise(first) | exchanged_inputs(first)
    modules, idle = called | given, set[str]()
    learns = bool(modules) and same_learning(first, modules)
    if not learns or (given and not goes_on(first, modules)):
        modules, idle = called | inside_models(first), differ_where_idle(first, LIMIT)
        left_out = modules | idle
        if not left_out or not (same_learning(first, left_out) and goes_on(first, left_out)):
            return none
    names = tuple(sorted(filter(None, modules | idle)))
    return Cuts(rows[_left_out(first, rows, modules, idle)], names, first.steps[0])


def _left_out(first: FirstStep, rows: Array, modules: set[str], idle: set[str]) -> Array:
    """Return for each of A's `rows` whether it is not compared, as a boolean mask.

    modules: what the runs call, use or encode otherwise. An output of a model is left out only
    where an evaluation shows the same. idle: values that differ only in elements that no loss
    reads; these are left out of the training alone, since no gradient shows whether anything reads
    such elements in an evaluation.
    """
    a = first.alignment.a
    within = first.within(modules)[a.tensor[rows]]
    outputs = np.array(
        [
            kind == "value" and is_output(name) and join(name, kind) in modules
            for name, kind, _, _ in a.tensors
        ],
        bool,
    )[a.tensor[rows]]
    within[outputs] &= evaluated_alike(first, rows[outputs])
    trained = np.array([phase == TRAIN for phase in a.phases])[a.phase[rows]]
    within |= first.within(idle)[a.tensor[rows]] & trained
    return within


def equal_learning(alignment: Alignment, measures: Measures, step: int) -> bool:
    """Whether all values, gradients and updates of a step are equal but for rounding.

    step: the first step that differs. Several roundings in a row count as rounding here. False
    where a run has no gradients or updates in the step.
    """
    return same_learning(FirstStep(alignment, measures, step), set())
