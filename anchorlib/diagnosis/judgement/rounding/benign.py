"""Differences of bits that are no difference of values, recognised by their nature, not their size.

sign   zeros with different signs, or NaNs with different bits
scale  gradients that are equal once each is divided by its loss scale: the scale that its record
       states, or the one that the alignment has found (`pairing.loss_scales`)
factor the same, where clipping may have removed the factor, and nothing else differs in any step
dtype  equal values in two element types, after both are rounded to the coarser type
sparse a sparse gradient that is stored differently, with equal sums at all indices
unused values of elements on which no loss depends (`unused`)
decay  gradients that hold the weight decay which the other run's optimizer adds itself (`decay`)
idle   buffers that an evaluation reads without calling their module (`idle_buffers`)
hand   gradients that one run alters after backward, as the other's backward makes them (`by_hand`)

A dead end is a scalar, mostly the loss, from which nothing else is computed: the gradients of its
step are equal, since gradients do not depend on the number that the scalar is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from anchorlib.diagnosis.judgement.rounding.bounds import TOLERANCE
from anchorlib.diagnosis.judgement.rounding.by_hand import altered_by_hand
from anchorlib.diagnosis.judgement.rounding.decay import decayed_elsewhere
from anchorlib.diagnosis.judgement.rounding.idle_buffers import idle_buffers
from anchorlib.diagnosis.judgement.rounding.sparse import stored_otherwise
from anchorlib.diagnosis.judgement.rounding.unused import unused
from anchorlib.diagnosis.pairing import Alignment, shared_codes
from anchorlib.diagnosis.sizes import Measures

__all__ = ["Benign", "benign", "only_dead_ends"]

Array = np.ndarray[Any, Any]
SIGN, SCALE, DTYPE, SPARSE = "sign", "scale", "dtype", "sparse"
FACTOR = "factor"
UNUSED, DECAY, BY_HAND, IDLE = "unused", "decay", "hand", "idle"
_WORDS = {
    SIGN: "in the sign of zero alone",
    SCALE: "by the loss scale alone",
    FACTOR: "by a factor alone that no optimizer takes: of a loss scale, or one that clipping "
    "removes",
    DTYPE: "in their element type alone",
    SPARSE: "in how a sparse gradient is stored alone",
    UNUSED: "in elements alone on which no loss depends: their gradient is zero in both runs",
    BY_HAND: "in gradients of backward alone, which one run's program makes equal before the "
    "optimizer reads them",
    IDLE: "as buffers alone that an evaluation reads without calling their module",
    DECAY: "by the weight decay alone that the other run's optimizer adds itself",
}


@dataclass(frozen=True, slots=True)
class Benign:
    """The measured pairs that differ in no value.

    pairs: indices of the alignment's pairs.
    why: the reason of each of these, by the module's words: "sign", "scale", "factor", "dtype",
    "sparse", "unused", "decay", "hand" or "idle".
    """

    pairs: Array
    why: Array

    @property
    def unused(self) -> bool:
        """Whether there are pairs whose values differ only where no loss depends on them."""
        return bool(np.isin(self.why, (UNUSED, IDLE)).any())

    def without(self, alignment: Alignment) -> Alignment:
        """Return the alignment with the pairs of this object marked as equal."""
        equal = alignment.equal.copy()
        equal[self.pairs] = True
        return replace(alignment, equal=equal)

    def lines(self) -> Sequence[str]:
        """Return a sentence for each reason that occurs, with the number of its records."""
        return [
            f"{count} records differ {words}" if count > 1 else f"one record differs {words}"
            for why, words in _WORDS.items()
            if (count := int((self.why == why).sum()))
        ]


def benign(alignment: Alignment, measures: Measures) -> Benign:
    """Return the measured pairs whose difference is no difference of values, with the reasons."""
    rows_a, rows_b = alignment.a_row[measures.pair], alignment.b_row[measures.pair]
    a, b = alignment.a, alignment.b
    code_a, code_b = shared_codes(a.dtypes, b.dtypes)
    retyped = code_a[a.dtype[rows_a]] != code_b[b.dtype[rows_b]]
    most = measures["max_abs"]
    of_equal_values = (measures["measured"] == "values") & (measures["nonfinite"] == 0)
    of_equal_values &= (most == 0) | np.isnan(most) | (retyped & (measures["share_differing"] == 0))
    scaled = FACTOR if alignment.perhaps_clipped else SCALE
    why = np.where(retyped, DTYPE, np.where(a.scale[rows_a] != b.scale[rows_b], scaled, SIGN))
    stored = stored_otherwise(alignment, measures.pair)
    of_equal_values |= stored
    rest = measures.without(measures.pair[of_equal_values])
    dead = ~of_equal_values & unused(alignment, rest)
    decayed = ~of_equal_values & decayed_elsewhere(alignment, measures)
    altered = ~(of_equal_values | decayed) & altered_by_hand(alignment, measures)
    why = np.where(stored, SPARSE, np.where(dead, UNUSED, np.where(decayed, DECAY, why)))
    idle = ~of_equal_values & idle_buffers(alignment, measures)
    why = np.where(idle, IDLE, np.where(altered, BY_HAND, why))
    known = of_equal_values | dead | decayed | altered | idle
    return Benign(measures.pair[known], why[known])


def only_dead_ends(alignment: Alignment, measures: Measures) -> bool:
    """Return whether all measured pairs are scalars of a forward from which nothing follows.

    Nothing follows from them where their steps have gradients or updates of which none differs. The
    scalars must differ by rounding alone: by 8 eps at most, as two correct forms of one operation
    do.
    """
    a, rows = alignment.a, alignment.a_row[measures.pair]
    if not len(rows) or not (measures["error_eps"] <= TOLERANCE).all():
        return False
    scalars = a.of_kind("value")[rows] & (a.figures["numel"][rows] == 1)
    follows = a.of_kind("grad", "pass_grad", "updated", "delta")
    matched = alignment.a_row[follows[alignment.a_row]]
    return bool(scalars.all() and np.isin(a.step[rows], a.step[matched]).all())
