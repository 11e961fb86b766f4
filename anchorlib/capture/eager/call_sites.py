"""What runs around an observation without gradients, found on the Python stack and the heap.

A forward without gradients may be an evaluation, or one that activation checkpointing will repeat;
what runs around it tells which.
"""

from __future__ import annotations

import gc
import sys
from types import FrameType
from typing import Any, NamedTuple

from torch import nn
from torch.autograd.function import Function
from torch.optim.optimizer import Optimizer

from anchorlib.torch_private import NodeContext, call_code

__all__ = ["COMPILED_NODE", "Surroundings", "held_by_optimizer", "surroundings"]

COMPILED_NODE = "CompiledFunctionBackward"  # the node that AOT autograd makes for a graph
_APPLY = Function.apply.__func__.__code__  # type: ignore[attr-defined]  # a classmethod
_MODULE_CALL = call_code()


class Surroundings(NamedTuple):
    """What runs around an observation.

    awaited: whether the observation is made inside the forward of an autograd Function whose
        backward may repeat the forward with gradients, as reentrant activation checkpointing does.
    module: the outermost module that is being called; None where no module is.
    """

    awaited: bool
    module: nn.Module | None


def surroundings() -> Surroundings:
    """Return what runs around the caller of this function, read off the Python stack."""
    awaited, module = False, None
    callee: FrameType | None = None
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # no public way to the caller's frame
    while frame is not None:
        if frame.f_code is _APPLY:
            awaited = awaited or _has_backward(callee)
        elif frame.f_code is _MODULE_CALL:
            module = frame.f_locals["self"]
        callee, frame = frame, frame.f_back
    return Surroundings(awaited, module)


def _has_backward(forward: FrameType | None) -> bool:
    """Return whether the backward of an autograd Function may run for this call of its forward.

    This is read off the context argument of the forward; True where the forward has none.
    forward: the frame of the Function's forward.
    """
    if forward is None or not forward.f_code.co_varnames:
        return False
    context: Any = forward.f_locals.get(forward.f_code.co_varnames[0])
    if not issubclass(type(context), NodeContext):
        return True  # the Function has setup_context, and its forward takes no context: unknown
    if type(context).__name__ == COMPILED_NODE:  # compiled code keeps what its backward needs
        return False
    # Read through the class, since the user may have set an attribute of that name on the context.
    return bool(NodeContext.next_functions.__get__(context))


def held_by_optimizer(model: nn.Module) -> bool:
    """Return whether an optimizer of this process holds a parameter of `model` that is trained.

    A parameter is trained if it requires a gradient. The search looks at every object that the
    garbage collector knows, in about a tenth of a second. False is also returned where the search
    meets an error.
    """
    try:
        own = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
        return any(
            id(parameter) in own
            for thing in (gc.get_objects() if own else ())
            if issubclass(type(thing), Optimizer)  # isinstance would wake lazy objects
            for group in thing.param_groups
            for parameter in group["params"]
        )
    except Exception:  # noqa: BLE001  # inside a user's forward, and objects are of any kind
        return False
