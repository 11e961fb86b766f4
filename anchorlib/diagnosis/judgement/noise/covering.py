"""Whether noise runs excuse a difference of A and B, by differing as much in the same record.

A difference must not be called a fault where runs that differ by rounding alone are as far apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.judgement.noise.envelope import SATURATED, Envelope
from anchorlib.diagnosis.judgement.rounding import RoundingBound
from anchorlib.diagnosis.sizes import Measures

__all__ = ["Covering"]

NOISY = 30.0
"""A tensor with so many times the usual noise of its kind consists of noise alone."""
HALF, TURNED = 0.5, 0.1
"""A tensor whose relative noise is HALF or more consists of noise alone. An error of this size
turns the tensor by a cosine distance of TURNED or more, unless the error only scales the tensor."""
MAGNIFIED = 2.0
"""The allowance on the factor by which an operation magnifies noise: a few runs estimate that
factor only roughly."""
PARALLEL = 0.01
"""The share of the cosine distance that an error in a random direction would make. An error that
turns the tensor by less than this share multiplies the tensor by a factor, which noise does not."""
FEW = 16  # elements: the noise of smaller tensors may well have one direction twice
COVERED = 4.0
"""How many times the noise of a record its difference may be."""


@dataclass(frozen=True, slots=True)
class Covering:
    """Says whether noise runs cover the difference of a pair: whether they are about as far apart.

    Without noise runs no pair is covered.
    """

    frontier: Frontier
    measures: Measures
    noise: Envelope | None

    def excuses(self, row: int, pair: int, error_of_operation: RoundingBound) -> bool:
        """Return whether the noise runs explain the difference of a pair of records.

        The noise must cover the pair (`covers`), and B must not be A times a factor: noise has
        another direction. Relative noise below SATURATED then explains errors up to a limit
        (`_excused`). From SATURATED on, the tensor must consist of noise alone; and where the error
        is large, or all tensors of its kind consist of noise, the difference must have a random
        direction.

        row: A's row. pair: the pair's index in the alignment. error_of_operation: how large
        rounding may make the error of the row's operation.
        """
        if self.noise is None or not self.covers(pair):
            return False
        a, at = self.frontier.alignment.a, int(np.searchsorted(self.measures.pair, pair))
        own, eps = float(self.noise.relative[at]), float(self.measures["eps"][at])
        error = self.measures["error_eps"][at] * eps
        few = bool(self.measures["numel"][at] < FEW)
        apart = float(self.measures["cosine_distance"][at])
        if apart < PARALLEL * error**2 / 2 and not few:
            return False  # B is a multiple of A: noise would have another direction
        if own < SATURATED:
            return bool(error <= self._excused(row, own, error_of_operation))
        turned = few or apart >= TURNED
        if error >= HALF and not turned:
            return False
        rows = self.frontier.alignment.a_row[self.measures.pair]
        of_kind = a.of_kind(a.tensors[a.tensor[row]].kind)
        alike = (a.step[rows] == a.step[row]) & of_kind[rows]
        usual = float(np.nanmedian(self.noise.relative[alike]))
        if usual >= HALF:
            # All tensors of this kind are noisy, so that noise alone does not excuse this tensor.
            # It is excused only if its difference has a random direction, as noise has.
            return turned
        return bool(own >= HALF or own >= NOISY * max(usual, 0.5 * eps))

    def _excused(self, row: int, own: float, error_of_operation: RoundingBound) -> float:
        """Return the relative error that noise excuses in a record whose inputs are equal.

        own: the record's relative noise. The noise of its inputs is no excuse, since the inputs are
        equal in A and B. But the ratio of the record's noise to the inputs' noise shows how much
        the operation magnifies noise, and it magnifies its own rounding as much. If no noise of the
        inputs is known, the limit is COVERED times the record's own noise, or less if the noise
        runs were perturbed by more than the operation rounds.
        row: A's row of the record. error_of_operation: how large rounding may make its operation's
        error.
        """
        assert self.noise is not None
        moved = self.noise.largest(self.frontier.parents(row, saved=True))
        if moved:
            return (
                error_of_operation.limit
                * error_of_operation.eps
                * max(1.0, MAGNIFIED * own / moved)
            )
        finer = min(1.0, error_of_operation.eps / self.noise.size) if self.noise.size else 1.0
        return COVERED * own * finer

    def covers(self, pair: int) -> bool:
        """Return whether the error of a pair is at most COVERED times that of the noise runs.

        pair: the pair's index in the alignment. False without noise runs.
        """
        if self.noise is None:
            return False
        at = int(np.searchsorted(self.measures.pair, pair))
        error = self.measures["error_eps"][at] * self.measures["eps"][at]
        return bool(error <= COVERED * self.noise.relative[at])
