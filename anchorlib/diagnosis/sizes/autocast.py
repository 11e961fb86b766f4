"""The precision that autocast gives a record, by the run's header and the record's operations.

Autocast rounds the operands of matrix products and convolutions to a low precision. The casts stand
among the autograd operations of the record; the dtype stands in the run's header.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from anchorlib import dtypes

__all__ = ["AUTOCAST", "CAST", "CONVOLUTION", "MATMUL", "autocast_eps", "multiplies"]

AUTOCAST, CAST = "amp.autocast", "ToCopyBackward"
MATMUL = re.compile(r"mm|linear|matmul|dotproduct|einsum|bilinear", re.IGNORECASE)
CONVOLUTION = re.compile(r"conv", re.IGNORECASE)


def autocast_eps(header: Mapping[str, Any], ops: Sequence[str]) -> float:
    """Return the eps of autocast's dtype if a record was made by a cast and a product, else 0.

    Any cast counts, and any matrix product (also in attention) or convolution, in whatever order.
    Elementwise products do not count. If the header names several autocast dtypes, their largest
    eps is returned; if it names none, 0.
    header: the run's header. ops: names of the operations that made the record.
    """
    names = str(header.get(AUTOCAST) or "").split("|")
    low = [dtypes.DTYPES[name].eps or 0.0 for name in names if name in dtypes.DTYPES]
    casts = any(op.startswith(CAST) for op in ops)
    return max(low, default=0.0) if casts and any(multiplies(op) for op in ops) else 0.0


def multiplies(op: str) -> bool:
    """Return whether an operation is a matrix product or a convolution, by its name alone."""
    return bool(MATMUL.search(op) or CONVOLUTION.search(op))
