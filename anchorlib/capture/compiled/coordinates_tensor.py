"""The coordinates of an observation as five numbers, which travel through a graph as a tensor.

A value's operator returns them as the tensor `where`. The operator of the gradient, which runs in
backward and perhaps in another thread, is handed the tensor and thereby knows its forward.
"""

from __future__ import annotations

from itertools import count
from typing import Final

import torch

from anchorlib.capture.counting import At

__all__ = ["NOWHERE", "WHERE", "Coordinates"]

_serials = count()

WHERE: Final = (5,)  # the shape of `where`: session, step, pass, call, phase
NOWHERE: Final = (-1, 0, 0, 0, 0)


class Coordinates:
    """Turns coordinates of one session into `where`, and `where` into coordinates."""

    def __init__(self) -> None:
        self._serial = next(_serials)
        self._phases: list[str] = []

    def encode(self, at: At) -> tuple[int, ...]:
        """The numbers of `where`; a phase is numbered as it is first seen."""
        if at.phase not in self._phases:
            self._phases.append(at.phase)
        return (self._serial, at.step, at.pass_index, at.call, self._phases.index(at.phase))

    def decode(self, where: torch.Tensor) -> At | None:
        """The coordinates in `where`; None where another session, or nobody, wrote them."""
        serial, step, pass_index, call, phase = where.tolist()
        if serial != self._serial:
            return None
        return At(step, pass_index, call, self._phases[phase])
