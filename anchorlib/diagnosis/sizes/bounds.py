"""How large a difference is at least, by the summary rows of the two records alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["bounds"]

Array = np.ndarray[Any, Any]
Figures = Mapping[str, Array]
SLACK = 2.0**-45
"""The relative error of the summaries' figures, which are sums in float64."""
LEAST = 2.0**-1000
"""Norms below this one have lost digits at the lower end of float64: ratios of them say nothing."""


def bounds(a: Figures, b: Figures, eps: Array, elements: Array) -> dict[str, Array]:
    """Return lower bounds of the measures of pairs of records whose values were not kept.

    The dict is keyed by fields of `Measure`; each array has a number for each pair, nan where there
    is no bound. Under "norm" stands no bound, but ‖a‖₂ itself.

    ‖b − a‖₂ ≥ |‖b‖₂ − ‖a‖₂|, and ≥ |Σb − Σa| / √n (Cauchy and Schwarz); max|b − a| is at least the
    difference of the maxima, of the minima, and of the means. These bounds hold where all elements
    are finite, and there is one.
    a, b: the figures of each pair's two records. eps: the unit of each pair's errors.
    elements: how many numbers the figures sum up (a complex element is two).
    """
    finite = (elements > 0) & ((a["nan"] + a["inf"] + b["nan"] + b["inf"]) == 0)
    count = np.maximum(elements, 1)
    largest = np.maximum(np.abs(a["min"]), np.abs(a["max"]))
    total = _apart(a["sum"], b["sum"], np.sqrt(count) * (a["l2"] + b["l2"]))
    norm = _apart(a["l2"], b["l2"], a["l2"] + b["l2"])
    apart = np.maximum(norm, total / np.sqrt(count))
    ends = np.maximum(np.abs(b["max"] - a["max"]), np.abs(b["min"] - a["min"]))
    most = np.maximum(ends, apart / np.sqrt(count))
    clear = (a["l2"] == 0) | (a["l2"] >= LEAST)
    lower = {
        "error_eps": np.where(clear, _ratio(apart, a["l2"]) / eps, np.nan),
        "max_eps": _ratio(most, largest) / eps,
        "max_abs": most,
    }
    lower = {name: np.where(finite, values, np.nan) for name, values in lower.items()}
    lower["nonfinite"] = np.maximum(np.abs(b["nan"] - a["nan"]), np.abs(b["inf"] - a["inf"]))
    lower["zeros"] = np.abs(b["zero"] - a["zero"])
    lower["norm"] = a["l2"]
    return lower


def _apart(figure_a: Array, figure_b: Array, size: Array) -> Array:
    least: Array = np.abs(figure_b - figure_a) - SLACK * size
    return np.where(least >= LEAST, least, 0.0)


def _ratio(over: Array, under: Array) -> Array:
    ratio: Array = np.divide(over, under, out=np.zeros(len(over)), where=over != 0)
    return ratio
