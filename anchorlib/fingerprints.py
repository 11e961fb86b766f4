"""What some records are, in 32 bytes: compared at two places before one of them forgets its own.

A record's row says what it is of, where and when it was recorded, and the digest of its values. All
of it is the same in a frame and in a store, and needs no look at the values themselves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import xxhash

__all__ = ["RECORD", "fingerprint_of", "tensor_code"]

RECORD: Final = np.dtype(
    [
        ("tensor", "<u8"),
        ("step", "<i8"),
        ("pass_index", "<i8"),
        ("call", "<i8"),
        ("order", "<i8"),  # inside its attempt
        ("time_ns", "<i8"),
        ("count", "<u8"),
        ("digest_high", "<u8"),
        ("digest_low", "<u8"),
    ]
)


def tensor_code(series: Sequence[str], phase: str, dtype: str, shape: Sequence[int]) -> int:
    """What a record is of, as column "tensor" holds it; series: name, kind, mode."""
    told = json.dumps([*series, phase, dtype, *shape])
    return xxhash.xxh3_64_intdigest(told.encode())


def fingerprint_of(records: np.ndarray[Any, Any]) -> bytes:
    """Of records in their order, as an array of dtype RECORD."""
    return hashlib.sha256(records.tobytes()).digest()
