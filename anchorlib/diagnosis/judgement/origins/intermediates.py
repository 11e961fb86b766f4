"""Values and gradients inside a model by which the runs differ on their way to equal learning.

    torch.stack([head(state) for state in states])    head(torch.stack(states))
    torch.where(mine)[0]                               torch.where(mine)[0].flip(0)
    logits.log_softmax(-1)                             logits - logits.logsumexp(-1, keepdim=True)

Code that is written differently has other intermediate results. A result that no loss depends on,
and a model's inputs, are no intermediate results: nothing behind them shows whether the work is
equal. A model's output is an intermediate result only where both runs recorded a loss that they
compute from it (`returned`). A result that is a multiple of the other run's does not count: a norm
behind it hides such a factor from all that is learned. There are two exceptions. A multiple counts
for an output, where the runs state that they compute the loss from it by different operations: one
run's model may divide the output, and its loss multiply it again. And it counts for a gradient that
was made inside a forward, since the loss that is computed from that gradient shows the factor.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.causes import module_key, other_values
from anchorlib.diagnosis.judgement.origins.first_step import FirstStep
from anchorlib.diagnosis.judgement.origins.returned import MULTIPLE, read_by_losses
from anchorlib.diagnosis.pairing import Alignment, Table, inner_gradients
from anchorlib.names import join
from anchorlib.scope import TRAIN

__all__ = ["intermediates", "is_output"]

Array = np.ndarray[Any, Any]
ROOT = re.compile(r"(^|\.)(input|output)([:.]\d+)*$")


def intermediates(first: FirstStep, limit: float) -> set[str]:
    """Return the intermediate results that differ by more than `limit` eps, as `name@kind`.

    A tensor counts only where both runs recorded a gradient of it, and where all its records in the
    step that differ so much are intermediate results.
    """
    alignment, measures, a = first.alignment, first.measures, first.alignment.a
    read = read_by_losses(first)
    followed = _followed(a) & {
        (name, rank) for name, rank in _followed(alignment.b, _names(alignment))
    }
    names: set[str] = set()
    barred: set[str] = set()
    relative = measures["error_eps"] * measures["eps"]
    inner = inner_gradients(a)
    for place in first.here.tolist():
        row = int(alignment.a_row[measures.pair[place]])
        tensor = a.tensors[a.tensor[row]]
        own = tensor.name, tensor.rank
        if tensor.kind not in ("value", "grad") or tensor.name in first.learnt:
            continue
        if measures["error_eps"][place] <= limit:
            continue
        training = a.phases[a.phase[row]] == TRAIN
        if not training and tensor.kind == "value" and is_output(tensor.name) and own in read:
            continue  # its evaluations show for themselves whether they are equal
        text = join(tensor.name, tensor.kind)
        inside = (
            training
            and own in followed
            and not (tensor.kind == "value" and _is_shown(a, row, read=own in read))
            and not measures["nonfinite"][place]
            and not (
                tensor.kind == "value"
                and _made_with_other_values(alignment, tensor.name, tensor.rank)
            )
            and (
                not measures["cosine_distance"][place] < MULTIPLE * relative[place] ** 2 / 2
                or (is_output(tensor.name) and read.get(own, False))
                or inner[row]
            )
        )
        (names if inside else barred).add(text)
    return names - barred


def _made_with_other_values(alignment: Alignment, name: str, rank: int) -> bool:
    """Return whether a value's module was made with other values of its arguments: another formula.

    A weight behind it that begins as zero hides that from all that is learnt in the first step.
    """
    renamed = {renaming.a: renaming.b for renaming in alignment.renamed}
    headers = (table.header.get(rank, {}) for table in (alignment.a, alignment.b))
    keys = module_key(name), module_key(renamed.get(name, name))
    return other_values(*(header.get(key) for header, key in zip(headers, keys, strict=True)))


def is_output(name: str) -> bool:
    """Return whether a tensor of this name is what a whole model returns (`critic.output:1`)."""
    root = ROOT.search(name)
    return root is not None and root[2] == "output"


def _is_shown(table: Table, row: int, *, read: bool) -> bool:
    """Return whether a value is a model's input or output, a single number, or integers.

    Such a value is no intermediate result of a model; a single number may be the loss.
    read: whether both runs compute a recorded loss from the value. A model's output is then an
    intermediate result of that loss, and the answer for it is False.
    """
    number = int(table.figures["numel"][row]) == 1
    whole = dtypes.dtype(table.dtypes[table.dtype[row]]).family != "float"
    name = table.tensors[table.tensor[row]].name
    return number or whole or (bool(ROOT.search(name)) and not (read and is_output(name)))


def _followed(table: Table, names: dict[str, str] | None = None) -> set[tuple[str, int]]:
    """Return (name, rank) of each tensor of which a run recorded gradients.

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
