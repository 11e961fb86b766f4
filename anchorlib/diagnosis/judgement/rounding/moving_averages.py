"""Averages of gradients that fused optimizers keep: they hold 1 − β in float32.

    exp_avg_sq = β₂ · exp_avg_sq + (1 − β₂) · grad²

Python computes 1 − β₂ in float64. torch's fused kernels on CUDA subtract β₂ from 1 in float32, and
the difference of two close numbers keeps the rounding of β₂: for β₂ = 0.999 the whole average is
1.3e-5 larger or smaller, 108 eps of float32. On an H100, Adam's squares in fused and foreach form
were 109 eps apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from anchorlib.diagnosis.judgement.rounding.formats import DEVICES
from anchorlib.diagnosis.pairing import Alignment

__all__ = ["errors_of_averages"]

Array = np.ndarray[Any, Any]
SETTING = "optimizer"
FUSED = ".fused"
BETAS = ".betas"
MARGIN = 1.25
"""How many times as large as the error of 1 − β the error of an average may be."""


def errors_of_averages(alignment: Alignment, rows: Array) -> Array:
    """Return the relative error that the rounding of 1 − β makes in each of some rows of A, or 0.

    It is that of an average's own β. An update divides the first average by the root of the second:
    it has the error of the first and half that of the second. It is 0 also on ranks where not
    exactly one run has a fused optimizer, and where that run's tensors lie on the CPU.
    """
    a = alignment.a
    by_rank = {rank: _errors_of_kinds(alignment, rank) for rank in np.unique(a.rank[rows]).tolist()}
    if not any(by_rank.values()):
        return np.zeros(len(rows))
    of_tensor = [by_rank.get(one.rank, {}).get(one.kind, 0.0) for one in a.tensors]
    errors: Array = np.array(of_tensor)[a.tensor[rows]]
    return errors


def _errors_of_kinds(alignment: Alignment, rank: int) -> Mapping[str, float]:
    """Return kind of record -> the relative error that the rounding of 1 − β makes on a rank."""
    sides = [table.header.get(rank, {}) for table in (alignment.a, alignment.b)]
    fused = [header for header in sides if _is_fused(header)]
    if len(fused) != 1 or fused[0].get(DEVICES, "cpu") == "cpu":
        return {}
    betas = list(_betas(sides[0]))
    first, second = (
        MARGIN * max((_error(each[at]) for each in betas), default=0.0) for at in (0, 1)
    )
    of_update = first + second / 2
    return {
        "opt.exp_avg": first,
        "opt.exp_avg_sq": second,
        "opt.max_exp_avg_sq": second,
        "updated": of_update,
        "delta": of_update,
    }


def _is_fused(header: Mapping[str, Any]) -> bool:
    return any(
        header[name] is True for name in header if name.startswith(SETTING) and name.endswith(FUSED)
    )


def _betas(header: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
    """Yield the betas of each optimizer, and of each of its parameter groups."""
    for name, value in header.items():
        if not (name.startswith(SETTING) and name.endswith(BETAS)):
            continue
        listed = value if isinstance(value, list | tuple) else []
        for one in listed if listed and isinstance(listed[0], list | tuple) else [listed]:
            if len(one) == 2 and all(isinstance(beta, int | float) for beta in one):
                yield float(one[0]), float(one[1])


def _error(beta: float) -> float:
    """Return the relative error of 1 − β where β is rounded to float32: that of the difference."""
    exact = 1.0 - beta
    return abs((1.0 - float(np.float32(beta))) - exact) / exact if 0.0 < exact <= 1.0 else 0.0
