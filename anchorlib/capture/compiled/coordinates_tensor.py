"""The coordinates of an observation as five numbers, which travel through a graph as a tensor.

The operator that observes a value returns its coordinates as the tensor `where`. The operator that
observes the gradient, which runs in backward and perhaps in another thread, is given this tensor
and so knows to which forward the gradient belongs.
"""

from __future__ import annotations

from itertools import count
from typing import Final

import torch

from anchorlib.capture.counting import CallCoordinates

__all__ = ["NOWHERE", "WHERE", "PackedCoordinates"]

_serials = count()

WHERE: Final = (5,)  # the shape of `where`: session, step, pass, call, phase
NOWHERE: Final = (-1, 0, 0, 0, 0)


class PackedCoordinates:
    """Encodes coordinates of one session as the numbers of `where`, and decodes the tensor."""

    def __init__(self) -> None:
        self._serial = next(_serials)
        self._phases: list[str] = []

    def encode(self, at: CallCoordinates) -> tuple[int, ...]:
        """Return five numbers for `at`: session, step, pass, call and phase.

        Step, pass and call are those of `at`. Sessions are numbered in this process, and phases in
        the session, in the order in which they are first seen.
        """
        if at.phase not in self._phases:
            self._phases.append(at.phase)
        return (self._serial, at.step, at.pass_index, at.call, self._phases.index(at.phase))

    def decode(self, where: torch.Tensor) -> CallCoordinates | None:
        """Return the coordinates in the tensor `where`; None if another session wrote it."""
        serial, step, pass_index, call, phase = where.tolist()
        if serial != self._serial:
            return None
        return CallCoordinates(step, pass_index, call, self._phases[phase])
