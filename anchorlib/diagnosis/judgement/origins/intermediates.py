"""Values and gradients inside a model by which the runs differ on their way to equal learning.

    torch.stack([head(state) for state in states])    head(torch.stack(states))
    torch.where(mine)[0]                               torch.where(mine)[0].flip(0)
    logits.log_softmax(-1)                             logits - logits.logsumexp(-1, keepdim=True)

Code that is written otherwise has other intermediate results. A result that no loss depends on, and
a model's inputs and outputs, are no intermediate results: nothing behind them shows whether the
work is equal. Nor is a result that is a multiple of the other run's: a norm behind it hides such a
factor from all that is learned.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.pairing import Alignment, Table
from anchorlib.diagnosis.sizes import Measures
from anchorlib.names import join
from anchorlib.scope import TRAIN

__all__ = ["intermediates"]

Array = np.ndarray[Any, Any]
ROOT = re.compile(r"(^|\.)(input|output)([:.]\d+)*$")
MULTIPLE = 0.01
"""The share of ½·error² below which the cosine distance of two records shows that the error lies
along the record: that B's record is a multiple of A's. Errors across the record make ½·error²."""


def intermediates(
    alignment: Alignment, measures: Measures, here: Array, learnt: set[str], limit: float
) -> set[str]:
    """The intermediate results that differ by more than `limit` eps, as `name@kind`.

    here: the indices into `measures` of the pairs of the first step that differs.
    learnt: the names of parameters.
    A tensor counts only where both runs recorded a gradient of it, and where all its records that
    differ so much are intermediate results.
    """
    a = alignment.a
    followed = _followed(a) & {
        (name, rank) for name, rank in _followed(alignment.b, _names(alignment))
    }
    found: set[str] = set()
    barred: set[str] = set()
    relative = measures["error_eps"] * measures["eps"]
    for place in here.tolist():
        row = int(alignment.a_row[measures.pair[place]])
        tensor = a.tensors[a.tensor[row]]
        if tensor.kind not in ("value", "grad") or tensor.name in learnt:
            continue
        if measures["error_eps"][place] <= limit:
            continue
        text = join(tensor.name, tensor.kind)
        inside = (
            a.phases[a.phase[row]] == TRAIN
            and (tensor.name, tensor.rank) in followed
            and not (tensor.kind == "value" and _is_shown(a, row))
            and not measures["nonfinite"][place]
            and not measures["cosine_distance"][place] < MULTIPLE * relative[place] ** 2 / 2
        )
        (found if inside else barred).add(text)
    return found - barred


def _is_shown(table: Table, row: int) -> bool:
    """Return whether a value is a model's input or output, a single number, or integers.

    Such a value is no intermediate result of a model; a single number may be the loss.
    """
    number = int(table.figures["numel"][row]) == 1
    whole = dtypes.dtype(table.dtypes[table.dtype[row]]).family != "float"
    return number or whole or bool(ROOT.search(table.tensors[table.tensor[row]].name))


def _followed(table: Table, names: dict[str, str] | None = None) -> set[tuple[str, int]]:
    """(name, rank) of each tensor of which a run recorded gradients.

    names: B's names -> A's, where they differ; None for A's table.
    """
    names = names or {}
    return {
        (names.get(tensor.name, tensor.name), tensor.rank)
        for tensor in table.tensors
        if tensor.kind == "grad"
    }


def _names(alignment: Alignment) -> dict[str, str]:
    return {renaming.b: renaming.a for renaming in alignment.renamed}
