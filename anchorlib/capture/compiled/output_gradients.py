"""Gradients of the outputs of compiled code, as a hook outside the compiled code gets them.

    @torch.compile
    def f(x): h = x.tanh(); return h, h.sum()      # the gradient of h through the sum stays inside

A hook on `h` outside of the compiled code is given only the part of the gradient that comes from
outside; code with a single output has no other part. This part is recorded, and the run's header
names the tensor. A hook that is given no gradient makes no record; the missing record is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from anchorlib.capture.counting import CallCoordinates
from anchorlib.capture.dynamo_marks import never_traced
from anchorlib.capture.eager import COMPILED_NODE, Observer
from anchorlib.capture.recording import NameStreams
from anchorlib.names import escape
from anchorlib.torch_private import compiled_outputs, register_hook

__all__ = ["KEPT", "OutsideGradients", "is_partial"]

KEPT = "a gradient that compiled code keeps to itself"
FROM_OUTSIDE = "grad.from_outside"
"""The header entry that names tensors whose recorded gradients may lack a part."""


class OutsideGradients:
    """Warns of gradients whose records may lack the part that stays inside compiled code.

    warn: called with the subject of a warning and its text; logs each subject once.
    """

    def __init__(self, observer: Observer, warn: Callable[[str, str], None]) -> None:
        self._observer = observer
        self._warn = warn
        self._named: set[str] = set()

    def follow(self, x: torch.Tensor, node: object, plan: NameStreams, at: CallCoordinates) -> None:
        """Hook `x`, so that the arrival of its gradient is noted if the gradient may be partial.

        Partial means without the part that stays inside compiled code.

        node: the autograd node that made `x`. plan: what is recorded of `x`. at: the coordinates of
            the forward call in which `x` was observed.
        """
        if is_partial(node):
            register_hook(x, node, _Arrival(self, plan, at))

    def arrived(
        self, plan: NameStreams, at: CallCoordinates, gradient: torch.Tensor | None
    ) -> None:
        """Warn that a tensor's recorded gradient may lack a part; name the tensor in the header.

        plan, at: what is recorded of the tensor, and the coordinates of its forward call. gradient:
            what a hook outside of compiled code was given; None is counted as a skipped gradient,
            and the header then does not name the tensor.

        Does nothing where the gradient is not recorded in this step. Raises nothing.
        """
        try:
            self._arrived(plan, at, gradient)
        except Exception as fault:  # noqa: BLE001  # inside backward
            self._observer.fault(plan.name, "grad", fault)

    def _arrived(
        self, plan: NameStreams, at: CallCoordinates, gradient: torch.Tensor | None
    ) -> None:
        recorder = self._observer.recorder
        streams = plan.streams("grad", at.phase)
        if self._observer.closed or all(stream.idle(at.step) for stream in streams):
            return
        if gradient is None:
            recorder.skip(plan.name, "grad", KEPT, at.step)
        elif plan.name not in self._named:
            self._named.add(plan.name)
            recorder.header(FROM_OUTSIDE, sorted(self._named))
        self._warn(
            FROM_OUTSIDE,
            f"{escape(plan.name)} is one of several outputs of compiled code: only the part of its "
            "gradient that comes from outside that code is recorded; anchor it inside that code, "
            "and watch a compiled model as torch.compile returns it",
        )


class _Arrival:
    """A tensor hook that notes a gradient as partial; another hook on the tensor records it."""

    __slots__ = ("_at", "_outside", "_plan")

    def __init__(self, outside: OutsideGradients, plan: NameStreams, at: CallCoordinates) -> None:
        self._outside, self._plan, self._at = outside, plan, at

    @never_traced
    def __call__(self, gradient: torch.Tensor | None) -> None:
        """Note that the tensor's recorded gradient may lack a part; count None as skipped.

        gradient: what autograd gives the hook; None where no gradient reached the tensor from
            outside of compiled code.
        """
        self._outside.arrived(self._plan, self._at, gradient)


def is_partial(node: Any) -> bool:
    """Return whether a hook on a tensor may be given only a part of the tensor's gradient.

    That is so for an output of compiled code, unless it is known to be the code's only output.
    node: the autograd node that made the tensor; None for a leaf.
    """
    if node is None or type(node).__name__ != COMPILED_NODE:
        return False
    outputs = compiled_outputs(node)
    return outputs is None or outputs > 1
