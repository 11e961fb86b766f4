"""The norm of all parameters' gradients as backward made them, before anything clipped them.

Records of kind `grad` are the gradients that the optimizer took, after clipping, so their norm
never exceeds the limit. Records of kind `pass_grad` are the gradients that one backward pass left,
still multiplied by the loss scale. Their norm divided by that scale is the norm that clipping saw,
provided that the step had one pass and the run has one rank.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from anchorlib.report.line_records import LineRecords
from anchorlib.report.run_view import Unclipped

__all__ = ["unclipped_norm"]

Array = np.ndarray[Any, Any]
_WHOLE = ("all", "summary")  # modes that record every gradient


def unclipped_norm(
    parts: Sequence[LineRecords], parameters: Collection[str], steps: Array, width: int
) -> Unclipped | None:
    """Return the norm of all parameters' gradients together, before clipping, for each column.

    The norms come from `pass_grad` records of `parameters` in phase "train", in modes that record
    each gradient. A column of several steps has the norm over all of them. A column is NaN without
    such records, where one of its steps had several passes, and where a gradient is not finite.
    Returns None if no column has such records and only steps of one pass, or if several ranks
    recorded.

    parts: the records of the page. parameters: names. steps: all steps of the run, ascending;
    `width` adjacent steps make a column of the page.
    """
    own = {
        part.info.name: part
        for part in reversed(parts)  # so that of several modes of a name the first stays
        if part.info.kind == "pass_grad"
        and part.info.name in parameters
        and part.info.mode in _WHOLE
        and part.phase == "train"
    }
    if not own or len({part.rank for part in parts}) > 1:
        return None
    norms = np.zeros(-(-len(steps) // width))
    seen: Array = np.zeros(len(norms), bool)
    summed: Array = np.zeros(len(norms), bool)  # has a step of several passes: norms do not add up
    finite: Array = np.ones(len(norms), bool)
    for part in own.values():
        step, passes = np.unique(part.columns["step"], return_counts=True)
        summed[np.searchsorted(steps, step[passes > 1]) // width] = True
        column = np.searchsorted(steps, part.columns["step"]) // width
        seen[column] = True
        finite[column[part.columns["nan"] + part.columns["inf"] > 0]] = False
        with np.errstate(all="ignore"):
            size = part.columns["l2"] / part.series.columns["scale"]
        np.hypot.at(norms, column, np.where(np.isfinite(size), size, 0.0))
    known = seen & ~summed
    if not known.any():
        return None
    norms[~known | ~finite] = np.nan
    return Unclipped(len(own), norms, known & ~finite)
