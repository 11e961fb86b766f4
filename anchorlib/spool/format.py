"""Segments of a spool: files that are only ever added to.

    length u32 | check u32 | seq u64 | payload          little-endian, one after the other

The payload is a message of the wire, as it will be sent: a segment begins with Hello and all that
was defined, stated and left out until then, so that it means something by itself. `seq` is the
number after the last record that a frame holds a part of, with `OPEN` set while more parts follow;
of a definition it is its number; of anything else it says how far records had come. `check` is the
lower half of the payload's xxh3-64, seeded with that of length and seq.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
import xxhash

from anchorlib.wire import Buffer

__all__ = [
    "HEADER_BYTES",
    "OPEN",
    "Damaged",
    "Stored",
    "checked",
    "entry_at",
    "header",
    "kind_of",
    "next_good",
]

Kind: TypeAlias = Literal["hello", "define", "frame", "gaps", "close", "lineage", ""]

_HEADER: Final = struct.Struct("<IIQ")
HEADER_BYTES: Final = _HEADER.size
OPEN: Final = 1 << 63
_MOST_BYTES: Final = 1 << 28  # of a payload; a length beyond is damage
_NUMBERS: Final = 1 << 48  # of records, far more than a spool sees

# The first byte of a serialised PushRequest: its one field's number and wire type.
_KINDS: Final[dict[int, Kind]] = {
    0x0A: "hello",
    0x12: "define",
    0x1A: "frame",
    0x22: "gaps",
    0x32: "close",
    0x3A: "lineage",
}


class Stored(NamedTuple):
    """One entry: where it begins and ends in its segment, its number, and its message."""

    start: int
    end: int
    seq: int
    message: bytes

    @property
    def last(self) -> int:
        """`seq` without its mark."""
        return self.seq & ~OPEN


@dataclass(frozen=True, slots=True)
class Damaged:
    """Bytes that are no entry; `torn` where the file ends inside one."""

    start: int
    end: int
    torn: bool


def header(seq: int, *message: Buffer) -> bytes:
    """What stands before a message, which comes in parts."""
    length = sum(map(len, message))
    return _HEADER.pack(length, _checksum(length, seq, *message), seq)


def kind_of(message: bytes) -> Kind:
    """What a message says, by its first byte."""
    return _KINDS.get(message[0], "") if message else ""


def entry_at(data: bytes | memoryview, at: int) -> Stored | Damaged:
    """The entry that begins at `at`, or why there is none."""
    if at + HEADER_BYTES > len(data):
        return Damaged(at, len(data), torn=True)
    length, _, _ = _HEADER.unpack_from(data, at)
    end = at + HEADER_BYTES + length
    if length > _MOST_BYTES:
        return Damaged(at, len(data), torn=False)
    if end > len(data):
        return Damaged(at, len(data), torn=True)
    return checked(at, data, at, bytes(data[at + HEADER_BYTES : end]))


def checked(start: int, data: bytes | memoryview, at: int, message: bytes) -> Stored | Damaged:
    """The entry at `start` of its segment, its header at `at` of `data`, and what follows it."""
    length, checksum, seq = _HEADER.unpack_from(data, at)
    end = start + HEADER_BYTES + length
    if len(message) != length or _checksum(length, seq, message) != checksum:
        return Damaged(start, end, torn=False)
    return Stored(start, end, seq, message)


def next_good(data: bytes | memoryview, at: int) -> int:
    """Where the next good entry begins at or after `at`; the end where there is none.

    Every byte may be its beginning: the lengths between cannot be trusted.
    """
    found = [places for start in range(at, at + 8) for places in _likely(data, start)]
    for place in sorted(found):
        if isinstance(entry_at(data, place), Stored):
            return place
    return len(data)


def _likely(data: bytes | memoryview, start: int) -> list[int]:
    """Every eighth byte from `start` on that an entry may begin at, by its header's look."""
    count = (len(data) - start - HEADER_BYTES) // 8
    if count <= 0:
        return []
    words = np.frombuffer(data, "<u8", count + 1, start)
    kinds = np.frombuffer(data, np.uint8)[start + HEADER_BYTES :: 8][:count]
    lengths, numbers = words[:-1] & np.uint64(0xFFFFFFFF), words[1:] & np.uint64(OPEN - 1)
    places = start + 8 * np.arange(count, dtype=np.int64)
    ends = places + HEADER_BYTES + lengths.astype(np.int64)
    fit = (numbers < _NUMBERS) & (lengths > 1) & (ends <= len(data))
    likely: list[int] = places[fit & np.isin(kinds, list(_KINDS))].tolist()
    return likely


def _checksum(length: int, seq: int, *message: Buffer) -> int:
    check = xxhash.xxh3_64(seed=xxhash.xxh3_64_intdigest(_HEADER.pack(length, 0, seq)))
    for part in message:
        check.update(part)
    return check.intdigest() & 0xFFFFFFFF
