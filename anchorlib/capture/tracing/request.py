"""Which steps are traced, and with which digests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, get_args

from anchorlib.errors import OptionError

__all__ = ["TRACE", "Digests", "TraceSteps", "check_digests", "steps_of_environment", "trace_steps"]

TraceSteps: TypeAlias = int | range
"""A number of steps from the next one on, or the steps themselves."""

Digests: TypeAlias = Literal["both", "outputs", "none"]

TRACE: Final = "ANCHOR_TRACE"


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


def steps_of_environment(environ: Mapping[str, str]) -> range | None:
    """The steps in ANCHOR_TRACE, as 0:2; None where it is not set. Raises OptionError."""
    text = environ.get(TRACE, "").strip()
    if not text:
        return None
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if found is None or int(found[1]) >= int(found[2]):
        raise OptionError(f"{TRACE}={text!r} in the environment is no range of steps, as 0:2")
    return range(int(found[1]), int(found[2]))
