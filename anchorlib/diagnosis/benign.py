"""Differences of bits that are no difference of values: told by what they are, not by their size.

sign   zeros of another sign, or other bits of a NaN
scale  gradients that carry other loss scales, as each record states: divided by them they are equal
dtype  the same values in another element type, or what rounding to the coarser one leaves of them
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from anchorlib.diagnosis.alignment import Alignment
from anchorlib.diagnosis.identity import shared_codes
from anchorlib.diagnosis.measures import Measures

__all__ = ["Benign", "benign"]

Array = np.ndarray[Any, Any]
SIGN, SCALE, DTYPE = "sign", "scale", "dtype"
_WORDS = {
    SIGN: "in the sign of zero alone",
    SCALE: "by the loss scale alone that both state",
    DTYPE: "in their element type alone",
}


@dataclass(frozen=True, slots=True)
class Benign:
    """Which of the measured pairs differ in no value.

    pairs: indices into the alignment. why: "sign", "scale" or "dtype" of each.
    """

    pairs: Array
    why: Array

    def without(self, alignment: Alignment) -> Alignment:
        """The alignment in which these pairs are equal."""
        equal = alignment.equal.copy()
        equal[self.pairs] = True
        return replace(alignment, equal=equal)

    def lines(self) -> Sequence[str]:
        """For people: how many differ in what."""
        return [
            f"{count} records differ {words}" if count > 1 else f"one record differs {words}"
            for why, words in _WORDS.items()
            if (count := int((self.why == why).sum()))
        ]


def benign(alignment: Alignment, measures: Measures) -> Benign:
    """The pairs that were measured by their values and differ in none of them."""
    rows_a, rows_b = alignment.a_row[measures.pair], alignment.b_row[measures.pair]
    a, b = alignment.a, alignment.b
    code_a, code_b = shared_codes(a.dtypes, b.dtypes)
    retyped = code_a[a.dtype[rows_a]] != code_b[b.dtype[rows_b]]
    most = measures["max_abs"]
    same = (measures["measured"] == "values") & (measures["nonfinite"] == 0)
    same &= (most == 0) | np.isnan(most) | (retyped & (measures["share_differing"] == 0))
    why = np.where(retyped, DTYPE, np.where(a.scale[rows_a] != b.scale[rows_b], SCALE, SIGN))
    return Benign(measures.pair[same], why[same])
