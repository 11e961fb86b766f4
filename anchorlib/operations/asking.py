"""Which steps are traced, as the environment says it: ANCHOR_TRACE=0:2."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from anchorlib.errors import OptionError
from anchorlib.names import quoted

__all__ = ["TRACE", "traced_steps"]

TRACE: Final = "ANCHOR_TRACE"


def traced_steps(environ: Mapping[str, str]) -> range | None:
    """The steps in ANCHOR_TRACE; None where it is not set.

    Raises OptionError for what is no range with steps in it.
    """
    text = environ.get(TRACE, "").strip()
    if not text:
        return None
    found = re.fullmatch(r"([0-9]{1,18}):([0-9]{1,18})", text)
    if found is None or int(found[1]) >= int(found[2]):
        raise OptionError(
            f"{TRACE} (--trace of anchor run) is a range of steps as '0:2', not {quoted(text)}"
        )
    return range(int(found[1]), int(found[2]))
