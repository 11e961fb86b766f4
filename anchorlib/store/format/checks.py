"""Checksums of table rows and catalogue lines, so that a flipped bit in them is found.

A row's checksum is in column `check`: xxh3-64 of the packed row, then its histogram's exponents and
counts (all little-endian, the row as `layout.ROW`). The seed of that checksum is the exclusive or
of two seeds, each made by `seed_of`: one of the row's series, and one of its form (its dtype and
shape). So a row that is moved to another series does not fit its checksum. In a flat form, where
records of many shapes lie end to end, a row's seed also depends on where the record's elements
begin, and on its shape (`flat_seed`).

A catalogue line's checksum is its last entry: xxh3-64 of all bytes before it, in hex.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any, Final

import xxhash

__all__ = ["flat_seed", "is_sound", "row_check", "seal_line", "seed_of"]

_SEAL: Final = b',"check":"'
_HEX: Final = 16
_SEALED: Final = len(_SEAL) + _HEX + 2

row_check = xxhash.xxh3_64_intdigest
"""The checksum of a packed row and its histogram pairs, given its seed."""


def seed_of(*values: Any) -> int:
    """Return a 64-bit seed for checksums, hashed from values that JSON can hold."""
    return xxhash.xxh3_64_intdigest(json.dumps(values).encode())


def flat_seed(seed: int, offset: int, shape: Sequence[int]) -> int:
    """Return the checksum seed of one row of a flat form, whose records have many shapes.

    seed: the XOR of the series' and the form's seed. offset: the index, in the form's array, of the
        record's first element. shape: the record's shape as stored, padded with -1.
    """
    return xxhash.xxh3_64_intdigest(struct.pack(f"<{len(shape) + 1}q", offset, *shape), seed)


def seal_line(line: bytes) -> bytes:
    """Return `line`, which is one JSON object, with its checksum added as the last entry."""
    body = line[:-1]
    return b'%b%b%b"}' % (body, _SEAL, xxhash.xxh3_64_hexdigest(body).encode())


def is_sound(line: bytes) -> bool | None:
    """Return whether a catalogue line fits the checksum at its end; None for a line without one."""
    body, tail = line[:-_SEALED], line[-_SEALED:]
    if not tail.startswith(_SEAL):
        return None
    return tail[len(_SEAL) : -2] == xxhash.xxh3_64_hexdigest(body).encode()
