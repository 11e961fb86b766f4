"""Differences that rounding explains: how large one operation's own error may be.

bounds           the error of one operation in eps of its dtype, and how large it may be
formats          the dtypes in which operations computed, coarser ones than their records may show
conditioning     how many times a normalisation enlarges the rounding of its input
logarithms       how far a logarithm rounds where it is near zero
probabilities    how far a binary cross entropy of probabilities may be from that of logits
grids            the rest of terms that cancel, known by its bits
row_factors      rows that are multiples of each other: what is divided by a spread that rounds
resummation      a record computed once more in float64 from its recorded inputs
benign           differences of bits that are no difference of values
idle_buffers     buffers that an evaluation reads without calling their module
unused           values that differ only in elements on which no loss depends
sparse           sparse gradients that hold equal numbers, stored differently
shaken           elements whose gradient is rounding alone
moving_averages  averages that fused optimizers keep, whose 1 − β is rounded
decay            gradients to which the program adds the weight decay that the other optimizer adds
by_hand          gradients that one run alters after backward, as the other's backward makes them
passes           gradients that one run sums over more backward passes than the other
jumps            where an error leaps: a fault that was hidden below rounding at first
moments          where a batch norm hides a fault, and its running moments show it
"""

from anchorlib.diagnosis.judgement.rounding.benign import Benign, benign, only_dead_ends
from anchorlib.diagnosis.judgement.rounding.bounds import (
    RECURRENT,
    TOLERANCE,
    RoundingBound,
    rounding_bound,
    size_of_error,
)
from anchorlib.diagnosis.judgement.rounding.formats import LEARNT
from anchorlib.diagnosis.judgement.rounding.grids import is_rest_of_terms
from anchorlib.diagnosis.judgement.rounding.jumps import Jump, jump
from anchorlib.diagnosis.judgement.rounding.moments import hidden_by_a_norm
from anchorlib.diagnosis.judgement.rounding.moving_averages import errors_of_averages
from anchorlib.diagnosis.judgement.rounding.resummation import Resummations
from anchorlib.diagnosis.judgement.rounding.row_factors import differs_by_row_factors

__all__ = [
    "LEARNT",
    "RECURRENT",
    "TOLERANCE",
    "Benign",
    "Jump",
    "Resummations",
    "RoundingBound",
    "benign",
    "differs_by_row_factors",
    "errors_of_averages",
    "hidden_by_a_norm",
    "is_rest_of_terms",
    "jump",
    "only_dead_ends",
    "rounding_bound",
    "size_of_error",
]
