"""Gradients of the outputs of compiled code, as a hook outside that code sees them.

    @torch.compile
    def f(x): h = x.tanh(); return h, h.sum()      # the gradient of h through the sum stays inside

A hook on `h` outside the code sees only the part of its gradient that comes from outside. Where the
code has a single output, that part is the whole gradient.
"""

from __future__ import annotations

from typing import Any

from anchorlib.capture.eager import COMPILED_NODE
from anchorlib.torch_private import compiled_outputs

__all__ = ["PARTIAL", "is_partial"]

PARTIAL = "a gradient that compiled code keeps a part of"


def is_partial(node: Any) -> bool:
    """Whether a hook on a tensor with the `grad_fn` `node` may see only part of its gradient."""
    if node is None or type(node).__name__ != COMPILED_NODE:
        return False
    outputs = compiled_outputs(node)
    return outputs is None or outputs > 1
