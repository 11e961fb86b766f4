"""How the differences of each kind grow from step to step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlib.diagnosis.judgement.noise.envelope import ELEMENTS
from anchorlib.diagnosis.pairing import Alignment
from anchorlib.diagnosis.sizes import Measures

__all__ = ["Growth", "growth", "kinds_of"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Growth:
    """The differences of the records of one kind, such as "grad", at one step.

    differing, matched: how many pairs of records differ, and how many there are.
    median_error_eps: the median error in eps; None where nothing could be measured.
    score: the median, over tensors of at least 64 elements, of the error divided by the noise runs'
        error (at least half an eps); None without noise runs, or where no tensor has a score.
    """

    step: int
    kind: str
    differing: int
    matched: int
    median_error_eps: float | None
    score: float | None


def kinds_of(alignment: Alignment, rows: Array) -> tuple[list[str], Array]:
    """Return the kinds of A's tensors, and for each of `rows` its kind's index in that list."""
    codes: dict[str, int] = {}
    of = [codes.setdefault(tensor.kind, len(codes)) for tensor in alignment.a.tensors]
    return list(codes), np.array(of or [0], np.int64)[alignment.a.tensor[rows]]


def growth(alignment: Alignment, measures: Measures, scores: Array | None) -> list[Growth]:
    """Return one `Growth` for each step and kind at which records were matched, ascending.

    scores: of each measured pair, its error over that of the noise runs; None without noise runs.
    """
    if not len(alignment):
        return []
    kinds, kind = kinds_of(alignment, alignment.a_row)
    step = alignment.a.step[alignment.a_row]
    key = step * len(kinds) + kind
    groups, which = np.unique(key, return_inverse=True)
    which = which.reshape(-1)
    matched = np.bincount(which, minlength=len(groups))
    differing = np.bincount(which[~alignment.equal], minlength=len(groups))
    own = which[measures.pair]
    errors = medians(own, measures["error_eps"], len(groups))
    judged = np.full(len(groups), np.nan)
    if scores is not None:
        judged = medians(own, np.where(measures["numel"] >= ELEMENTS, scores, np.nan), len(groups))
    return [
        Growth(
            step=int(group) // len(kinds),
            kind=kinds[int(group) % len(kinds)],
            differing=int(differing[at]),
            matched=int(matched[at]),
            median_error_eps=_number(errors[at]),
            score=_number(judged[at]),
        )
        for at, group in enumerate(groups)
    ]


def medians(groups: Array, values: Array, count: int) -> Array:
    """Return the median of each group's values, without nan; nan for a group without a number.

    groups: the group of each value, from 0. count: how many groups there are.
    """
    known = ~np.isnan(values)
    groups, values = groups[known], values[known]
    order = np.lexsort((values, groups))
    groups, values = groups[order], values[order]
    first = np.searchsorted(groups, np.arange(count))
    size = np.searchsorted(groups, np.arange(count), "right") - first
    middles = np.full(count, np.nan)
    nonempty = np.flatnonzero(size)
    low, high = first[nonempty] + (size[nonempty] - 1) // 2, first[nonempty] + size[nonempty] // 2
    middles[nonempty] = np.where(low == high, values[low], (values[low] + values[high]) / 2)
    return middles


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
