"""Differences that no later record inherits, since B was handed A's values (`anchorlib.graft`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib.diagnosis.pairing import Alignment
from anchorlib.names import join

__all__ = ["carried", "is_grafted"]

Array = np.ndarray[Any, Any]
EQUAL = 0


def is_grafted(alignment: Alignment) -> bool:
    """Whether B is a rerun that was handed the values of A."""
    headers = alignment.b.header.values()
    return any(header.get("grafted") == alignment.a.run for header in headers)


def carried(alignment: Alignment, status: Array) -> Array:
    """The status of A's rows as later records received it: equal where B was handed A's values.

    Tensors that could not be handed over, as B's header says, keep their status.
    """
    if not is_grafted(alignment):
        return status
    a = alignment.a
    missing: set[str] = set()
    for header in alignment.b.header.values():
        missing |= set(header.get("grafted.not_handed_over") or {})
    handed = np.array([join(tensor.name, tensor.kind) not in missing for tensor in a.tensors], bool)
    received = status.copy()
    paired = alignment.a_row
    received[paired[handed[a.tensor[paired]]]] = EQUAL
    return received
