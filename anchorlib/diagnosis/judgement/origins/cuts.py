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
from anchorlib.diagnosis.judgement.origins.idle_elements import differ_where_idle
from anchorlib.diagnosis.judgement.origins.intermediates import is_output
from anchorlib.diagnosis.judgement.origins.learning import (
    LIMIT,
    goes_on,
    moves_alike,
    same_learning,
)
from anchorlib.diagnosis.judgement.origins.other_calls import called_otherwise, inside_models
from anchorlib.diagnosis.judgement.origins.returned import evaluated_alike
from anchorlib.diagnosis.pairing import Alignment
from anchorlib.diagnosis.sizes import Measures
from anchorlib.names import escape, join

__all__ = ["Cuts", "cuts", "equal_learning"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Cuts:
    """The pairs that differ because the two runs call modules differently for equal work.

    rows: A's rows of these pairs. modules: the names of the modules.
    step: the first step that differs, in which all other records were found equal but for rounding;
        None without such pairs.
    """

    rows: Array
    modules: tuple[str, ...] = ()
    step: int | None = None

    def without(self, alignment: Alignment) -> Alignment:
        """Return the alignment with the pairs of this object marked as equal."""
        return replace(alignment, equal=alignment.equal | np.isin(alignment.a_row, self.rows))

    def lines(self) -> list[str]:
        """Return a sentence, in a list, that names the modules that were not compared; or []."""
        if not len(self.rows):
            return []
        shown = ", ".join(map(escape, self.modules[:3])) + ", …" * (len(self.modules) > 3)
        return [
            f"the runs call or use {shown} otherwise for the same work: {len(self.rows):,} records "
            "of that are not compared, and what is learned from them is the same but for rounding"
        ]


def cuts(alignment: Alignment, measures: Measures) -> Cuts:
    """Return the pairs that are not compared, since the runs call or use modules differently.

    They are all records of these modules, constants in another encoding, and inputs that were
    exchanged. There are no such pairs where gradients and updates of the first step that differs
    show that the work is not equal. Modules whose calls differ are tried first, together with these
    constants and inputs. Where that fails, the modules are tried with all results inside the
    models, but without the constants and inputs: results that are left out may hide a wrong one.
    """
    none = Cuts(np.empty(0, np.int64))
    rows = alignment.a_row[measures.pair]
    if not len(rows):
        return none
    step = alignment.a.step[rows].min()
    first = FirstStep(alignment, measures, int(step))
    called = called_otherwise(first)
    given = encoded_otherwise(first) | exchanged_inputs(first)
    modules, idle = called | given, set[str]()
    learns = bool(modules) and same_learning(first, modules)
    if not learns or (given and not goes_on(first, modules)):
        modules, idle = called | inside_models(first), differ_where_idle(first, LIMIT)
        left_out = modules | idle
        if not left_out or not (same_learning(first, left_out) and goes_on(first, left_out)):
            return none
    if not moves_alike(first):
        return none
    names = tuple(sorted(filter(None, modules | idle)))
    return Cuts(rows[_left_out(first, rows, modules, idle)], names, first.steps[0])


def _left_out(first: FirstStep, rows: Array, modules: set[str], idle: set[str]) -> Array:
    """Return for each of A's `rows` whether it is not compared, as a boolean mask.

    modules: what the runs call, use or encode differently. An output of a model is left out of an
    evaluation only where the evaluation shows that the results are equal. idle: values that differ
    only in elements that no loss reads; the same holds for these, since no gradient shows whether
    anything reads such elements in an evaluation.
    """
    a = first.alignment.a
    within = first.within(modules)[a.tensor[rows]]
    named = a.where(lambda one: is_output(one.name) and join(one.name, one.kind) in modules)
    outputs = a.of_kind("value")[rows] & named[rows]
    within[outputs] &= evaluated_alike(first, rows[outputs])
    unread = first.within(idle)[a.tensor[rows]] & ~within
    within[unread] = evaluated_alike(first, rows[unread])
    return within


def equal_learning(alignment: Alignment, measures: Measures, step: int) -> bool:
    """Return whether all values, gradients and updates of a step are equal but for rounding.

    step: the first step that differs. Several roundings in a row count as rounding here. False
    where a run has no gradients or updates in the step.
    """
    return same_learning(FirstStep(alignment, measures, step), set())
