"""Gradients of the outputs of compiled code, as a hook outside that code sees them.

    @torch.compile
    def f(x): h = x.tanh(); return h, h.sum()      # the gradient of h through the sum stays inside

Outside, a hook on `h` sees only what reaches it from outside. With one output that is all there is.
What is seen is recorded, and the header names the tensor. Where nothing reaches the hook there is
no record, and that is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from anchorlib.capture.counting import At
from anchorlib.capture.dynamo_marks import never_traced
from anchorlib.capture.eager import COMPILED_NODE, Observer
from anchorlib.capture.recording import Plan
from anchorlib.names import escape
from anchorlib.torch_private import compiled_outputs, register_hook

__all__ = ["FROM_OUTSIDE", "KEPT", "Outside", "is_partial"]

KEPT = "a gradient that compiled code keeps to itself"
FROM_OUTSIDE = "grad.from_outside"
"""The entry of the header that names tensors whose gradients may be less than whole."""


class Outside:
    """Warns of gradients of which compiled code may keep a part, so that a record lacks that part.

    warn: called with the subject of a warning and its text; logs each subject once.
    """

    def __init__(self, observer: Observer, warn: Callable[[str, str], None]) -> None:
        self._observer = observer
        self._warn = warn
        self._named: set[str] = set()

    def follow(self, x: torch.Tensor, node: object, plan: Plan, at: At) -> None:
        """Hook `x`, which `node` made, so that a partial gradient of `x` is noted as partial."""
        if is_partial(node):
            register_hook(x, node, _Arrival(self, plan, at))

    def arrived(self, plan: Plan, at: At, gradient: torch.Tensor | None) -> None:
        """A hook outside was given what has reached it: None where nothing has."""
        try:
            self._arrived(plan, at, gradient)
        except Exception as fault:  # noqa: BLE001  # inside backward
            self._observer.fault(plan.name, "grad", fault)

    def _arrived(self, plan: Plan, at: At, gradient: torch.Tensor | None) -> None:
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
            f"{escape(plan.name)} is one of several outputs of compiled code: its gradient is "
            "recorded as far as it comes from outside that code; anchor it inside, and watch "
            "compiled models as torch.compile returns them",
        )


class _Arrival:
    """A tensor hook beside the one that records."""

    __slots__ = ("_at", "_outside", "_plan")

    def __init__(self, outside: Outside, plan: Plan, at: At) -> None:
        self._outside, self._plan, self._at = outside, plan, at

    @never_traced
    def __call__(self, gradient: torch.Tensor | None) -> None:
        """Pass on what has come."""
        self._outside.arrived(self._plan, self._at, gradient)


def is_partial(node: Any) -> bool:
    """Whether a hook on a tensor with the `grad_fn` `node` may see only part of its gradient."""
    if node is None or type(node).__name__ != COMPILED_NODE:
        return False
    outputs = compiled_outputs(node)
    return outputs is None or outputs > 1
