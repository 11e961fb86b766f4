"""Whether noise runs excuse a difference: they are as far apart there, and not by their inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.judgement.envelope import SATURATED, Envelope
from anchorlib.diagnosis.judgement.severity import Severity
from anchorlib.diagnosis.sizes import Measures

__all__ = ["Covering"]

NOISY = 30.0
"""Times the usual noise of its kind at which a tensor is made of noise alone."""
HALF, TURNED = 0.5, 0.1
"""Noise of half a tensor is all that it is made of. As large an error turns it by more than this
cosine distance, unless it only scales it."""
MAGNIFIED = 2.0
"""Times its inputs' noise over which noise magnifies, as few runs tell that roughly."""
PARALLEL = 0.01
"""Of the cosine distance that so large an error in all directions makes: below, it is a factor."""
FEW = 16  # elements, of which noise may well point the same way twice
COVERED = 4.0
"""Times its noise that a difference may be."""


@dataclass(frozen=True, slots=True)
class Covering:
    """What the noise runs say of the differences of a comparison; nothing without any."""

    frontier: Frontier
    measures: Measures
    noise: Envelope | None

    def excuses(self, row: int, pair: int, told: Severity) -> bool:
        """Whether the noise runs cover the difference.

        Where they say something, by being as far apart; where the tensor is all noise, only if the
        difference is one that noise would make.
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
        """The relative error that noise excuses of a record whose inputs are equal.

        What moved its inputs is no excuse; by how much more it moved than they did is: so much does
        the operation magnify its own rounding.
        """
        assert self.noise is not None
        moved = self.noise.largest(self.frontier.parents(row, saved=True))
        if moved:
            return told.limit * told.eps * max(1.0, MAGNIFIED * own / moved)
        finer = min(1.0, told.eps / self.noise.size) if self.noise.size else 1.0
        return COVERED * own * finer

    def covers(self, pair: int) -> bool:
        """Whether noise runs are about as far apart there."""
        if self.noise is None:
            return False
        at = int(np.searchsorted(self.measures.pair, pair))
        error = self.measures["error_eps"][at] * self.measures["eps"][at]
        return bool(error <= COVERED * self.noise.relative[at])
