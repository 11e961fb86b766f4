"""Samples that one run has in another order within a batch.

order         where one run has each of the other run's samples
drifted       finds the other order from nearly equal rows, where rounding has changed the bits
permutations  finds the other order by the bits of the samples
arrangement   puts the samples of one run into the order of the other run
"""

from anchorlib.diagnosis.pairing.orders.arrangement import arranged
from anchorlib.diagnosis.pairing.orders.drifted import near_order

__all__ = [
    "arranged",
    "near_order",
]
