"""How large a spool may grow.

The limit is ANCHOR_SPOOL_LIMIT if this is set, else 10 GiB or a fifth of the free disk, whichever
is smaller.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import Final

from anchorlib.errors import OptionError
from anchorlib.names import escape

__all__ = ["limit_of", "parse_bytes"]

DEFAULT_LIMIT: Final = 10 << 30
_FREE_SHARE: Final = 5  # of what is free a spool takes a fifth at most
_UNITS: Final = {"": 1, "B": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("KMGT", start=1)
    for suffix, base in (("", 1000), ("B", 1000), ("I", 1024), ("IB", 1024))
}
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def limit_of(free: int, environ: Mapping[str, str] = os.environ) -> int:
    """Return how many bytes a spool may take on a disk that has `free` bytes left.

    This is ANCHOR_SPOOL_LIMIT of `environ`, else the smaller of 10 GiB and a fifth of `free`.
    Raises OptionError if the variable holds no size.
    """
    variable = environ.get("ANCHOR_SPOOL_LIMIT")
    if not variable:
        return min(DEFAULT_LIMIT, free // _FREE_SHARE)
    return parse_bytes(variable, "ANCHOR_SPOOL_LIMIT")


def parse_bytes(text: str, what: str) -> int:
    """Return the number of bytes that a text such as `10GiB`, `500 MB` or `1048576` says.

    what: the name of the option or variable that `text` comes from. Raises OptionError, which names
    the option or variable, if `text` is no size.
    """
    match = _SIZE.fullmatch(text)
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None or not math.isfinite(float(match[1]) * unit):
        raise OptionError(f"{what}='{escape(text[:80])}' is no size; write 10GiB, 500MB or 1048576")
    return int(float(match[1]) * unit)
