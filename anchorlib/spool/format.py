"""The format of a spool's segments: files that only grow, entry by entry.

    length u32 | check u32 | seq u64 | payload          little-endian, one after the other

The payload is a message as it will be sent to the collector. A segment begins with the message
Hello (who writes which run) and all definitions (of series, layouts and phases), lineage and gap
statements (what was not recorded) so far, so that it can be read without the earlier segments.

`seq` is a number whose meaning depends on the message:

- A frame (message with records) has n + 1, where n is the number of the last record in it. The bit
  `OPEN` is set as well if the values of that record go on in the next frame.
- A definition has its own number, counted from 0.
- Any other message has the number of the record that comes next.

`check` is the lower half of the payload's xxh3-64, seeded with the xxh3-64 of length and seq.
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
    "CorruptBytes",
    "SegmentEntry",
    "checked",
    "entry_at",
    "header",
    "kind_of",
    "next_good",
]

MessageKind: TypeAlias = Literal["hello", "define", "frame", "gaps", "close", "lineage", ""]

_HEADER: Final = struct.Struct("<IIQ")
HEADER_BYTES: Final = _HEADER.size
OPEN: Final = 1 << 63
_MOST_BYTES: Final = 1 << 28  # of a payload; a length beyond is damage
_NUMBERS: Final = 1 << 48  # bound of record numbers, far above any that a spool holds

# The first byte of a serialised PushRequest is the number and wire type of its one field.
_KINDS: Final[dict[int, MessageKind]] = {
    0x0A: "hello",
    0x12: "define",
    0x1A: "frame",
    0x22: "gaps",
    0x32: "close",
    0x3A: "lineage",
}


class SegmentEntry(NamedTuple):
    """An intact entry (a message) of a segment file: offsets of its start and end, `seq`, message.

    seq: the number in the entry's header, whose meaning depends on the message; see the module.
    """

    start: int
    end: int
    seq: int
    message: bytes

    @property
    def last(self) -> int:
        """`seq` without the bit `OPEN`: for a frame, the number after that of its last record."""
        return self.seq & ~OPEN


@dataclass(frozen=True, slots=True)
class CorruptBytes:
    """The bytes from `start` to `end` - 1 of a segment, which hold no intact entry.

    torn: whether only the end of an entry is missing, as after a crash while it was written.
    """

    start: int
    end: int
    torn: bool


def header(seq: int, *message: Buffer) -> bytes:
    """Return the header of an entry: the bytes that precede its payload.

    message: the payload, in one or more parts.
    """
    length = sum(map(len, message))
    return _HEADER.pack(length, _checksum(length, seq, *message), seq)


def kind_of(message: bytes) -> MessageKind:
    """Return the kind of a serialised message, read from its first byte.

    The result is "" if the message is empty or of an unknown kind.
    """
    return _KINDS.get(message[0], "") if message else ""


def entry_at(data: bytes | memoryview, at: int) -> SegmentEntry | CorruptBytes:
    """Return the entry (a message) that begins at offset `at` of `data`.

    Returns `CorruptBytes` if there is no intact entry. The offsets in the result are those in
    `data`.
    """
    if at + HEADER_BYTES > len(data):
        return CorruptBytes(at, len(data), torn=True)
    length, _, _ = _HEADER.unpack_from(data, at)
    end = at + HEADER_BYTES + length
    if length > _MOST_BYTES:
        return CorruptBytes(at, len(data), torn=False)
    if end > len(data):
        return CorruptBytes(at, len(data), torn=True)
    return checked(at, data, at, bytes(data[at + HEADER_BYTES : end]))


def checked(
    start: int, data: bytes | memoryview, at: int, message: bytes
) -> SegmentEntry | CorruptBytes:
    """Return the entry of a header and a message; `CorruptBytes` if length or checksum is wrong.

    start: the entry's offset in its segment. at: the offset of the entry's header in `data`, which
    may begin elsewhere in the segment.
    """
    length, checksum, seq = _HEADER.unpack_from(data, at)
    end = start + HEADER_BYTES + length
    if len(message) != length or _checksum(length, seq, message) != checksum:
        return CorruptBytes(start, end, torn=False)
    return SegmentEntry(start, end, seq, message)


def next_good(data: bytes | memoryview, at: int) -> int:
    """Return the offset of the next intact entry at or after `at`; len(data) if there is none.

    Every offset is tried: the lengths in damaged headers cannot be trusted.
    """
    offsets = [offset for start in range(at, at + 8) for offset in _likely(data, start)]
    for place in sorted(offsets):
        if isinstance(entry_at(data, place), SegmentEntry):
            return place
    return len(data)


def _likely(data: bytes | memoryview, start: int) -> list[int]:
    """Return those offsets at which an entry's header may begin, of every eighth from `start` on.

    This is a fast filter: only length, number and kind are looked at, not the checksum.
    """
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
