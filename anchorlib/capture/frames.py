"""Functions of ours that dynamo meets: traced where compiled code inlines them, else left alone.

Without this dynamo would compile an anchor that runs outside compiled code (after a graph break,
in a function that it gave up on) as a small graph of its own, once for each name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

try:
    from torch._C._dynamo.eval_frame import (
        _FrameAction,
        _FrameExecStrategy,
        set_code_exec_strategy,
    )
except ImportError:  # torch before 2.8
    set_code_exec_strategy = None  # type: ignore[assignment]

__all__ = ["IS_TOLD", "constant", "natively", "never_traced"]

IS_TOLD = set_code_exec_strategy is not None
"""Whether dynamo can be told so: if not, `natively` does nothing."""

P = ParamSpec("P")
R = TypeVar("R")


def natively(function: Callable[P, R]) -> Callable[P, R]:
    """Let dynamo run `function`, and what it calls, as plain Python where it is a frame's own."""
    if set_code_exec_strategy is not None:
        skip = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
        set_code_exec_strategy(function.__code__, skip)
    return function


def never_traced(function: Callable[P, R]) -> Callable[P, R]:
    """The same, and code that would inline `function` breaks its graph there."""
    vars(function)["_torchdynamo_disable"] = True  # as torch.compiler.disable does
    return natively(function)


def constant(function: Callable[P, R]) -> Callable[P, R]:
    """Run `function` while code is traced: what it returns stands in that code as a constant.

    `torch.compiler.assume_constant_result` does the same, and imports dynamo for a second.
    """
    vars(function)["_dynamo_marked_constant"] = True
    return function
