"""Recognizes steps of an optimizer that run inside a step of the same optimizer.

    class Clipped(torch.optim.SGD):
        def step(self, closure=None):
            clip_grad_norm_(…)
            return super().step(closure)

torch wraps the method `step` of each class of which an optimizer was made; the wrapper calls the
hooks. If the program has made an SGD too, `super().step()` calls the hooks a second time, in the
same step.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Final

from torch.optim import Optimizer

from anchorlib.torch_private import profiled_step_code

__all__ = ["is_nested_step"]

_STEP: Final = profiled_step_code()


def is_nested_step(optimizer: Optimizer) -> bool:
    """Return whether the step whose hooks run now was called by a step of the same optimizer."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    steps = 0
    while frame is not None and steps < 2:
        if frame.f_code is _STEP and frame.f_locals.get("self") is optimizer:
            steps += 1
        frame = frame.f_back
    return steps > 1
