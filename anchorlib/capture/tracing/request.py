"""Which steps are traced, and with which digests."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from anchorlib.errors import OptionError

__all__ = ["Digests", "TraceSteps", "check_digests", "trace_steps"]

TraceSteps: TypeAlias = int | range
"""A number of steps from the next one on, or the steps themselves."""

Digests: TypeAlias = Literal["both", "outputs", "none"]


def trace_steps(steps: object, upcoming: int) -> range:
    """The steps that are meant, where `upcoming` is the next that can be traced whole.

    Raises OptionError for what means none, and for steps that are over.
    """
    if isinstance(steps, int) and not isinstance(steps, bool) and steps > 0:
        return range(upcoming, upcoming + steps)
    if not isinstance(steps, range) or steps.step != 1 or not steps or steps.start < 0:
        raise OptionError(
            f"trace takes a number of steps, or a range of them as range(0, 2), not {steps!r}"
        )
    if steps.stop <= upcoming:
        raise OptionError(f"steps {steps.start}:{steps.stop} are over; the next is {upcoming}")
    return steps


def check_digests(digests: object) -> Digests:
    """`digests` itself. Raises OptionError."""
    for choice in get_args(Digests):
        if digests == choice:
            found: Digests = choice
            return found
    raise OptionError(f"digests is one of {', '.join(get_args(Digests))}, not {digests!r}")
