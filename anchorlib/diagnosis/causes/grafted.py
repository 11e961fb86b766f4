"""Whether B is a rerun that was handed A's values, so that later records inherit no difference.

`anchorlib.graft` makes such reruns."""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib.diagnosis.pairing import Alignment
from anchorlib.names import join

__all__ = ["carried", "is_grafted"]

Array = np.ndarray[Any, Any]
EQUAL = 0


def is_grafted(alignment: Alignment) -> bool:
    """Return whether B is a rerun that was handed the values of A."""
    headers = alignment.b.header.values()
    return any(header.get("grafted") == alignment.a.run for header in headers)


def carried(alignment: Alignment, status: Array) -> Array:
    """Return a copy of `status` in which each row of A whose value B was handed counts as equal.

    A rerun under `anchorlib.graft` replaces its values by A's, so that later records do not inherit
    the differences before them. Tensors that B's header names as not handed over keep their status.
    For any other B `status` itself is returned.
    status: for each row of A: 0 equal, 1 differs, 2 without a partner.
    """
    if not is_grafted(alignment):
        return status
    a = alignment.a
    missing: set[str] = set()
    for header in alignment.b.header.values():
        missing |= set(header.get("grafted.not_handed_over") or {})
    handed = a.where(lambda tensor: join(tensor.name, tensor.kind) not in missing)
    received = status.copy()
    paired = alignment.a_row
    received[paired[handed[paired]]] = EQUAL
    return received
