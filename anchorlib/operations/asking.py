"""Reads from the environment which steps to trace: ANCHOR_TRACE=0:2 traces steps 0 and 1."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from anchorlib.errors import OptionError
from anchorlib.names import quoted

__all__ = ["traced_steps"]

_TRACE: Final = "ANCHOR_TRACE"


def traced_steps(environ: Mapping[str, str]) -> range | None:
    """Return the steps that ANCHOR_TRACE names; None where the variable is not set or empty.

    Raises OptionError where ANCHOR_TRACE is not a range such as "0:2", or holds no step.

    environ: environment variables, by name.
    """
    text = environ.get(_TRACE, "").strip()
    if not text:
        return None
    ends = re.fullmatch(r"([0-9]{1,18}):([0-9]{1,18})", text)
    if ends is None or int(ends[1]) >= int(ends[2]):
        raise OptionError(
            f"{_TRACE} (--trace of anchor run) is a range of steps as '0:2', not {quoted(text)}"
        )
    return range(int(ends[1]), int(ends[2]))
