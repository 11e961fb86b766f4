"""Differences of bits that are no difference of values: told by what they are, not by their size.

sign   zeros of another sign, or other bits of a NaN
scale  gradients that carry other loss scales, as each record states: divided by them they are equal
dtype  the same values in another element type, or what rounding to the coarser one leaves of them
name   a part of a gradient that is recorded whole under another name of its tensor
cut    of other shapes in either run, as the work is cut otherwise, and with the same behind it

A dead end is a scalar, mostly the loss, from which nothing follows: gradients do not depend on what
it comes to, and those of its step are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from anchorlib.diagnosis.judgement.aliases import second_names
from anchorlib.diagnosis.judgement.cuts import cut_otherwise
from anchorlib.diagnosis.judgement.severity import TOLERANCE
from anchorlib.diagnosis.pairing import Alignment, shared_codes
from anchorlib.diagnosis.sizes import Measures

__all__ = ["Benign", "benign", "only_dead_ends"]

Array = np.ndarray[Any, Any]
SIGN, SCALE, DTYPE, NAME, CUT = "sign", "scale", "dtype", "name", "cut"
_WORDS = {
    SIGN: "in the sign of zero alone",
    SCALE: "by the loss scale alone that both state",
    DTYPE: "in their element type alone",
    CUT: "as the runs cut their work otherwise, which ends in the same",
    NAME: "as one run parts two names of a tensor, whose first one has the whole gradient",
}


@dataclass(frozen=True, slots=True)
class Benign:
    """Which of the measured pairs differ in no value, or in none that is not compared elsewhere.

    pairs: indices into the alignment. why: "sign", "scale", "dtype", "name" or "cut" of each.
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
    """The pairs that were measured and are no difference of values."""
    rows_a, rows_b = alignment.a_row[measures.pair], alignment.b_row[measures.pair]
    a, b = alignment.a, alignment.b
    code_a, code_b = shared_codes(a.dtypes, b.dtypes)
    retyped = code_a[a.dtype[rows_a]] != code_b[b.dtype[rows_b]]
    most = measures["max_abs"]
    same = (measures["measured"] == "values") & (measures["nonfinite"] == 0)
    same &= (most == 0) | np.isnan(most) | (retyped & (measures["share_differing"] == 0))
    why = np.where(retyped, DTYPE, np.where(a.scale[rows_a] != b.scale[rows_b], SCALE, SIGN))
    named = second_names(alignment, measures.pair)
    cut = cut_otherwise(alignment, measures)
    why = np.where(same, why, np.where(cut, CUT, NAME))
    some = same | named | cut
    return Benign(measures.pair[some], why[some])


def only_dead_ends(alignment: Alignment, measures: Measures) -> bool:
    """Whether nothing differs but scalars that a forward computes, in steps of equal gradients.

    By rounding: 8 eps, as far as two correct forms of one operation are apart.
    """
    a, rows = alignment.a, alignment.a_row[measures.pair]
    kinds = np.array([tensor.kind for tensor in a.tensors])[a.tensor]
    if not len(rows) or not (measures["error_eps"] <= TOLERANCE).all():
        return False
    scalars = (kinds[rows] == "value") & (a.figures["numel"][rows] == 1)
    follows = np.isin(kinds, ("grad", "pass_grad", "updated", "delta"))
    matched = alignment.a_row[follows[alignment.a_row]]
    return bool(scalars.all() and np.isin(a.step[rows], a.step[matched]).all())
