"""The fingerprint of some records: 32 bytes that are equal where the records are equal.

A writer that is about to remove its own copy of some records first compares the fingerprint of that
copy with the fingerprint of the records in the store. A fingerprint is made of a row for each
record (dtype RECORD): tensor, coordinates, time, and the digest of the values. A record has equal
rows in the store and in a frame (a message with records), and the values themselves need not be
read.
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
    """Return a 64-bit hash of series, phase, dtype and shape, for the column "tensor" of RECORD.

    series: the tensor's name, kind and mode.
    """
    identity = json.dumps([*series, phase, dtype, *shape])
    return xxhash.xxh3_64_intdigest(identity.encode())


def fingerprint_of(records: np.ndarray[Any, Any]) -> bytes:
    """Return the fingerprint (32 bytes) of `records`, an array of dtype RECORD.

    The same records in another order have another fingerprint.
    """
    return hashlib.sha256(records.tobytes()).digest()
