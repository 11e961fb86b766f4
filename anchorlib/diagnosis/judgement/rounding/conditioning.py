"""How many times a normalisation enlarges the rounding of its input.

    y = (x − mean) / √(Var[x] + eps)

x and its mean round in proportion to the size √E[x²], while y is measured in units of the spread.
Where the mean is much larger than the spread, the rounding of x and of the mean is enlarged in y,
relative to y, by

    √( Σ E[x²] / (Var[x] + eps)  /  Σ Var[x] / (Var[x] + eps) )

with a term for each group of elements that are normalised together, so that a group counts by its
share in y: one nearly constant channel among many does not excuse errors of the other channels. The
rounding of x itself counts where B computes x and y without a record in between, whereas A recorded
x. The rounding of the mean counts for every norm that computes a mean; an RMS norm and a batch norm
in eval mode do not.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import UNMATCHED, Frontier, Role
from anchorlib.diagnosis.sizes import read
from anchorlib.errors import StoreError

__all__ = ["conditioning"]

Array = np.ndarray[Any, Any]
NORM = re.compile(r"(batch|layer|group|instance)_?norm", re.IGNORECASE)
VIEW = re.compile(r"view|reshape", re.IGNORECASE)
EPS = 1e-5
"""The default eps of torch's norms, for a node that does not state its eps."""
UNSEEN = 2.0
"""The factor where x is not known: six nets with batch norms had 1.0 to 2.3 at their start."""
MOST_ELEMENTS = 1 << 22
"""The most elements of x that are read, which bounds memory: they are held in float64."""


def conditioning(frontier: Frontier, row: int) -> float:
    """Return how many times a norm layer between a row and its parents enlarges rounding.

    1 without a norm layer, and for a layer in eval mode. UNSEEN where the layer's input x was not
    recorded, or its values are not known.
    row: a row of A's table; 1 for any kind but `value`.
    """
    ops = frontier.ancestry(row).ops
    norms = [op for op in ops if NORM.search(op)]
    a = frontier.alignment.a
    if not norms or a.tensors[a.tensor[row]].kind != "value":
        return 1.0
    given = [
        parent
        for parent in frontier.parents(row)
        if a.shape[parent] == a.shape[row] and frontier.role[parent] != Role.PARAMETER
    ]
    alone = [one for one in given if frontier.status[one] == UNMATCHED]
    if not alone and len(ops) > 1:
        return UNSEEN
    text = _arguments(frontier, row, norms[0])
    if not given or "training=False" in text:
        return 1.0
    x = _values(frontier, (alone or given)[0])
    if x is None:
        return UNSEEN
    eps = re.search(r"\beps=([0-9.e+-]+)", text)
    each = _grouped(x, norms[0], text, is_viewed=any(VIEW.search(op) for op in ops))
    return _of(each, float(eps[1]) if eps else EPS)


def _arguments(frontier: Frontier, row: int, op: str) -> str:
    """Return the arguments that A states of `op`, such as "eps=1e-05, group=2"; "" for none.

    row: the record that `op`, an autograd node, helped to make.
    """
    a = frontier.alignment.a
    own = a.tensors[a.tensor[row]]
    for edges in a.edges.get(own.rank, ()):
        if edges.name == own.name and op in edges.ops and edges.arguments:
            return edges.arguments[edges.ops.index(op)]
    return ""


def _values(frontier: Frontier, row: int) -> Array | None:
    a = frontier.alignment.a
    if not a.kept[row] or a.figures["numel"][row] > MOST_ELEMENTS:
        return None
    try:
        return read(a, row).astype(np.float64).reshape(a.shapes[a.shape[row]])
    except StoreError:
        return None


def _grouped(x: Array, op: str, text: str, *, is_viewed: bool) -> Array:
    """Return x as a matrix with a row for each group of elements that `op` normalises together.

    op: the autograd node of a norm layer. text: its arguments. is_viewed: whether x is viewed in
    another shape first, as an instance norm does before it calls a batch norm.
    """
    name = op.lower()
    if "layer" in name or x.ndim < 2:
        shape = re.search(r"normalized_shape=\(([^)]*)\)", text)
        axes = len([size for size in shape[1].split(",") if size.strip()]) if shape else 1
        return x.reshape(*x.shape[: max(x.ndim - axes, 0)], -1)
    if "group" in name:
        stated_groups = re.search(r"\bgroup=(\d+)", text)
        groups = int(stated_groups[1]) if stated_groups else 1
        return x.reshape(len(x), groups if x.shape[1] % groups == 0 else 1, -1)
    if "instance" in name or (is_viewed and x.ndim > 2):
        return x.reshape(*x.shape[:2], -1)
    return np.moveaxis(x, 1, 0).reshape(x.shape[1], -1)


def _of(x: Array, eps: float) -> float:
    """Return the factor by which normalising each row of x enlarges rounding.

    It is the factor of the module's formula. UNSEEN where that is not finite. eps: what the norm
    adds to the variance.
    """
    with np.errstate(all="ignore"):
        spread = x.var(-1)
        enlarged = ((x**2).mean(-1) / (spread + eps)).sum() / (spread / (spread + eps)).sum()
    return math.sqrt(float(enlarged)) if np.isfinite(enlarged) else UNSEEN
