"""Decorators that tell dynamo, the tracer of torch.compile, how to treat functions of ours.

dynamo traces an anchor where compiled code inlines it. An anchor may also run outside compiled code
(after a graph break, or in a function that dynamo gave up on). Without `skip_frames`, dynamo would
compile such an anchor as a small graph, once for each name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from anchorlib.torch_private import CAN_SKIP, mark_constant, mark_disabled, skip_frames_of

__all__ = ["IS_TOLD", "assume_constant", "never_traced", "skip_frames"]

IS_TOLD = CAN_SKIP
"""Whether dynamo can be told to leave a function alone: if not, `skip_frames` does nothing."""

P = ParamSpec("P")
R = TypeVar("R")


def skip_frames(function: Callable[P, R]) -> Callable[P, R]:
    """Have dynamo run `function` and its callees as plain Python where it does not inline them.

    Returns `function`, to be used as a decorator.
    """
    skip_frames_of(function)
    return function


def never_traced(function: Callable[P, R]) -> Callable[P, R]:
    """Have dynamo always run `function` as plain Python, with a graph break in a compiled caller.

    Returns `function`, to be used as a decorator.
    """
    mark_disabled(function)
    return skip_frames(function)


def assume_constant(function: Callable[P, R]) -> Callable[P, R]:
    """Have dynamo run `function` while it traces a call, and put the result into the graph.

    The result is a constant there: the function does not run when the graph runs. Returns
    `function`, to be used as a decorator.
    """
    mark_constant(function)
    return function
