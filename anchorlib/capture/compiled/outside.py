"""Gradients of tensors that compiled code has handed out, as they look from outside.

    @torch.compile
    def f(x): h = x.tanh(); return h, h.sum()      # the gradient of h through the sum stays inside

Outside, a hook on `h` sees only what reaches it from outside. With one output that is all there is.
"""

from __future__ import annotations

from typing import Any

from anchorlib.capture.eager import COMPILED_NODE

__all__ = ["PARTIAL", "is_partial"]

PARTIAL = "a gradient that compiled code keeps a part of"


def is_partial(node: Any) -> bool:
    """Whether gradients that reach `node`, a tensor's `grad_fn`, may be less than whole."""
    if node is None or type(node).__name__ != COMPILED_NODE:
        return False
    try:
        forward = type(node)._forward_cls  # noqa: SLF001  # torch's only word on it
        if not forward.__module__.startswith("torch."):  # a Function of the user's, of that name
            return False
        outputs = forward.metadata.output_info
        return sum(bool(output.requires_grad) for output in outputs) > 1
    except AttributeError:
        return True
