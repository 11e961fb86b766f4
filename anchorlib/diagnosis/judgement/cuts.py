"""Work that the two runs cut otherwise inside a pass: records of other shapes that end in the same.

A loop over time or over samples in the place of one call, experts that are given all tokens or only
their own: what those modules give has another shape in either run, and none of it can be compared.
Where whatever was computed behind it is the same but for rounding, it was the same work.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from anchorlib.diagnosis.judgement.severity import LEARNT, TOLERANCE
from anchorlib.diagnosis.pairing import Alignment
from anchorlib.diagnosis.sizes import Measures

__all__ = ["cut_otherwise"]

Array = np.ndarray[Any, Any]
_OUTPUT = re.compile(r":\d+(\.\d+)*$")
"""What tells several outputs of one module apart."""


def cut_otherwise(alignment: Alignment, measures: Measures) -> Array:
    """Which of the measured pairs are of modules that the first step that differs cut otherwise.

    None, unless a value was computed behind them in that step, and every such value is the same,
    or differs by no more than rounding.
    """
    a, rows = alignment.a, alignment.a_row[measures.pair]
    learnt = {(one.name, one.rank) for one in a.tensors if one.kind in LEARNT}
    own = np.array([(one.name, one.rank) not in learnt for one in a.tensors] or [False], bool)
    cut = (measures["measured"] == "shape") & own[a.tensor[rows]]
    if not cut.any() or a.step[rows].min() != a.step[rows[cut]].min():
        return np.zeros(len(rows), bool)
    modules = {_module(a.tensors[one].name) for one in np.unique(a.tensor[rows[cut]]).tolist()}
    within = np.array([_module(one.name) in modules for one in a.tensors], bool) & own
    found: Array = within[a.tensor[rows]]
    return found if _ends_alike(alignment, measures, within) else np.zeros(len(rows), bool)


def _module(name: str) -> str:
    return _OUTPUT.sub("", name)


def _ends_alike(alignment: Alignment, measures: Measures, within: Array) -> bool:
    """Whether what the step computed behind these tensors is the same but for rounding."""
    a, rows = alignment.a, alignment.a_row[measures.pair]
    step = a.step[rows].min()
    first = a.order[rows[(measures["measured"] == "shape") & (a.step[rows] == step)]].min()
    values = np.array([one.kind == "value" for one in a.tensors], bool) & ~within
    every = alignment.a_row[(a.step == step)[alignment.a_row]]
    behind = every[values[a.tensor[every]] & (a.order[every] > first)]
    if not len(behind):
        return False
    apart = np.isin(rows, behind)
    return bool((measures["error_eps"][apart] <= TOLERANCE).all())
