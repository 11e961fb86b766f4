"""The dtype in which autocast computes products, read off a run's header and its operations.

Autocast rounds the operands of products to a low precision. The casts stand among the operations of
what was computed; the dtype stands in the run's header.
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
    """Return the eps of autocast's dtype if the operations cast and multiply, else 0.

    header: the run's header. ops: the operations by which a record was made.
    """
    names = str(header.get(AUTOCAST) or "").split("|")
    low = [dtypes.DTYPES[name].eps or 0.0 for name in names if name in dtypes.DTYPES]
    casts = any(op.startswith(CAST) for op in ops)
    return max(low, default=0.0) if casts and any(multiplies(op) for op in ops) else 0.0


def multiplies(op: str) -> bool:
    """Return whether an operation is a product of matrices or a convolution, by its name."""
    return bool(MATMUL.search(op) or CONVOLUTION.search(op))
