"""Functions of ours that dynamo meets: traced where compiled code inlines them, else left alone.

Without this dynamo would compile an anchor that runs outside compiled code (after a graph break,
in a function that it gave up on) as a small graph of its own, once for each name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from anchorlib.torch_private import CAN_SKIP, mark_constant, mark_disabled, skip_frames_of

__all__ = ["IS_TOLD", "constant", "natively", "never_traced"]

IS_TOLD = CAN_SKIP
"""Whether dynamo can be told so: if not, `natively` does nothing."""

P = ParamSpec("P")
R = TypeVar("R")


def natively(function: Callable[P, R]) -> Callable[P, R]:
    """Let dynamo run `function`, and what it calls, as plain Python where it is a frame's own."""
    skip_frames_of(function)
    return function


def never_traced(function: Callable[P, R]) -> Callable[P, R]:
    """The same, and code that would inline `function` breaks its graph there."""
    mark_disabled(function)
    return natively(function)


def constant(function: Callable[P, R]) -> Callable[P, R]:
    """Run `function` while code is traced: what it returns stands in that code as a constant."""
    mark_constant(function)
    return function
