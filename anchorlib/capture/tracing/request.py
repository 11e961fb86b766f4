"""Checks what `trace` was asked for: which steps, and digests of which tensors."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from anchorlib.errors import OptionError

__all__ = ["Digests", "TraceSteps", "check_digests", "trace_steps"]

TraceSteps: TypeAlias = int | range
"""Which steps to trace: a number of steps, counted from the next step on, or a range of steps."""

Digests: TypeAlias = Literal["both", "outputs", "none"]


def trace_steps(steps: object, upcoming: int) -> range:
    """Return the range of steps to trace, from the option `steps`: a number of steps, or a range.

    upcoming: the next step that can be traced whole, at which a number of steps begins. Raises
    OptionError for anything but a positive number or a range of steps one after the other, for an
    empty range, for negative steps, and for a range whose steps are all over.
    """
    if isinstance(steps, int) and not isinstance(steps, bool) and steps > 0:
        return range(upcoming, upcoming + steps)
    if not isinstance(steps, range) or steps.step != 1 or not steps or steps.start < 0:
        raise OptionError(
            f"trace takes a number of steps, or a range of them as range(0, 2), not {steps!r}"
        )
    if steps.stop <= upcoming:
        raise OptionError(
            f"steps {steps.start}:{steps.stop} are over, and the next step is {upcoming}: trace "
            f"steps from {upcoming} on"
        )
    return steps


def check_digests(digests: object) -> Digests:
    """Return `digests` if it is "both", "outputs" or "none"; raise OptionError otherwise.

    The three choices are: digests of the inputs and outputs of operations, of their outputs alone,
    or of no tensor.
    """
    for choice in get_args(Digests):
        if digests == choice:
            checked: Digests = choice
            return checked
    raise OptionError(f"digests is one of {', '.join(get_args(Digests))}, not {digests!r}")
