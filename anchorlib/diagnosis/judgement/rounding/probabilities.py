"""A binary cross entropy of probabilities, compared with the binary cross entropy of logits.

    −log(1 − p),  p = σ(x)

p is rounded near 1, so that 1 − p and its logarithm are off by as much as eps·eˣ, where x is the
logit. The loss of logits never computes 1 − p. Both are correct formulas of one loss, but the
formula with probabilities loses digits where the model is sure and wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.judgement.series import values
from anchorlib.errors import StoreError

__all__ = ["of_probabilities"]

PROBABILITIES = re.compile(r"^BinaryCrossEntropyBackward")
LOGITS = re.compile(r"^BinaryCrossEntropyWithLogitsBackward")
SIGMOID = re.compile(r"^SigmoidBackward")
MOST = 1e4
"""The most eps that are allowed: a loss of probabilities that is further off has no digits left."""
MOST_ELEMENTS = 1 << 22


def of_probabilities(
    frontier: Frontier, row: int, ops: Sequence[str], ops_b: Sequence[str]
) -> float:
    """Return how far, in eps, a loss may be off as one run computes it from probabilities; or 0.0.

    0.0 unless one run computes the loss of logits, and the other a sigmoid and the loss of
    probabilities; and where the logits are not known.
    ops, ops_b: A's and B's operations between the loss and its parents.
    """
    a = frontier.alignment.a
    forms = [any(map(LOGITS.match, side)) for side in (ops, ops_b)]
    if forms[0] == forms[1] or a.figures["numel"][row] != 1:
        return 0.0
    other = ops_b if forms[0] else ops
    if not (any(map(PROBABILITIES.match, other)) and any(map(SIGMOID.match, other))):
        return 0.0
    parents = frontier.parents(row)
    if len(parents) != 1 or a.figures["numel"][parents[0]] > MOST_ELEMENTS:
        return 0.0
    try:
        x, loss = values(a, parents[0]), values(a, row)
    except StoreError:
        return 0.0
    if x is None or loss is None or not loss[0]:
        return 0.0
    lost = 1 + np.exp(np.clip(x, 0, 16))  # from 16 on, p is 1 in float32
    return min(float(lost.mean()) / abs(float(loss[0])), MOST)
