"""Work that the two runs divide otherwise inside a pass, so that shapes differ and results do not.

A loop over time steps or samples in the place of one call, experts that are given all tokens or
only their own: the outputs of such modules have other shapes in the two runs and cannot be
compared. Where every value that was computed from them is equal but for rounding, the work was the
same.
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
"""The end of a name that tells several outputs of one module apart."""


def cut_otherwise(alignment: Alignment, measures: Measures) -> Array:
    """Which of the measured pairs belong to modules that the runs call on other shapes.

    None, unless values come behind those modules in the first step that differs, and all of them
    are equal or differ by no more than rounding.
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
    """Whether the first differing step has values behind these tensors, equal but for rounding."""
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
