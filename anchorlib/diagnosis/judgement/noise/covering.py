"""Whether noise runs excuse a difference: they are as far apart there, though inputs are equal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.judgement.noise.envelope import SATURATED, Envelope
from anchorlib.diagnosis.judgement.rounding import Severity
from anchorlib.diagnosis.sizes import Measures

__all__ = ["Covering"]

NOISY = 30.0
"""A tensor whose noise is so many times the usual noise of its kind is made of noise alone."""
HALF, TURNED = 0.5, 0.1
"""A tensor whose relative noise is HALF or more is made of noise alone. An error as large turns the
tensor by a cosine distance of TURNED or more, unless the error only scales it."""
MAGNIFIED = 2.0
"""Allowance for the factor by which an operation magnifies noise, which few runs tell roughly."""
PARALLEL = 0.01
"""A share of the cosine distance that an error of this size in a random direction would make; an
error that turns the tensor by less is a factor."""
FEW = 16  # elements: of fewer, noise may well point the same way twice
COVERED = 4.0
"""How many times its noise a difference may be."""


@dataclass(frozen=True, slots=True)
class Covering:
    """Whether noise runs cover the differences of a comparison; never without noise runs."""

    frontier: Frontier
    measures: Measures
    noise: Envelope | None

    def excuses(self, row: int, pair: int, told: Severity) -> bool:
        """Whether the noise runs explain the difference of a row.

        Where their noise is small, they do by being as far apart. Where the tensor is nothing but
        noise, the difference must look like noise as well: it must not be a mere factor.
        """
        if self.noise is None or not self.covers(pair):
            return False
        a, at = self.frontier.alignment.a, int(np.searchsorted(self.measures.pair, pair))
        own, eps = float(self.noise.relative[at]), float(self.measures["eps"][at])
        error = self.measures["error_eps"][at] * eps
        few = bool(self.measures["numel"][at] < FEW)
        apart = float(self.measures["cosine_distance"][at])
        if apart < PARALLEL * error**2 / 2 and not few:
            return False  # a multiple of it: noise would point elsewhere
        if own < SATURATED:
            return bool(error <= self._excused(row, own, told))
        turned = few or apart >= TURNED
        if error >= HALF and not turned:
            return False
        rows = self.frontier.alignment.a_row[self.measures.pair]
        kinds = np.array([tensor.kind for tensor in a.tensors])[a.tensor[rows]]
        alike = (a.step[rows] == a.step[row]) & (kinds == a.tensors[a.tensor[row]].kind)
        usual = float(np.nanmedian(self.noise.relative[alike]))
        if usual >= HALF:
            # All are noisy: that says nothing of this one, but that it came out otherwise does.
            return turned
        return bool(own >= HALF or own >= NOISY * max(usual, 0.5 * eps))

    def _excused(self, row: int, own: float, told: Severity) -> float:
        """The relative error that noise excuses in a record whose inputs are equal.

        own: the record's relative noise. The noise of its inputs is no excuse, since they are equal
        here. The ratio of its noise to theirs is one: the operation magnifies its own rounding as
        much.
        """
        assert self.noise is not None
        moved = self.noise.largest(self.frontier.parents(row, saved=True))
        if moved:
            return told.limit * told.eps * max(1.0, MAGNIFIED * own / moved)
        finer = min(1.0, told.eps / self.noise.size) if self.noise.size else 1.0
        return COVERED * own * finer

    def covers(self, pair: int) -> bool:
        """Whether noise runs are about as far apart in this record as A and B are."""
        if self.noise is None:
            return False
        at = int(np.searchsorted(self.measures.pair, pair))
        error = self.measures["error_eps"][at] * self.measures["eps"][at]
        return bool(error <= COVERED * self.noise.relative[at])
