"""Gradients of tensors that compiled code has handed out, as they look from outside.

    @torch.compile
    def f(x): h = x.tanh(); return h, h.sum()      # the gradient of h through the sum stays inside

Outside, a hook on `h` sees only what reaches it from outside. With one output that is all there is.
"""

from __future__ import annotations

from typing import Any

from anchorlib.capture.eager import COMPILED_NODE
from anchorlib.torch_private import compiled_outputs

__all__ = ["PARTIAL", "is_partial"]

PARTIAL = "a gradient that compiled code keeps a part of"


def is_partial(node: Any) -> bool:
    """Whether gradients that reach `node`, a tensor's `grad_fn`, may be less than whole."""
    if node is None or type(node).__name__ != COMPILED_NODE:
        return False
    outputs = compiled_outputs(node)
    return outputs is None or outputs > 1
