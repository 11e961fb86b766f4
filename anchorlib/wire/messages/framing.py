"""Writes and reads a frame as protobuf's bytes, without copying the payload.

    PushRequest:  1a <length> [ head: first, columns, fragment ] 7a <length> <payload> <check>

A frame is a message that carries records, the payload their values. Protobuf would copy a payload
twice when it is sent and twice when it is received. Here the payload is left where it is, to be
written to a file or joined once, and is read as a view. The bytes are those that protobuf writes,
so that any gRPC client can write them and any protobuf can read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import xxhash

from anchorlib.wire.messages.checksum import SEAL_BYTES, seal, sealed_bytes
from anchorlib.wire.v1.collector_pb2 import Frame, PushRequest

__all__ = ["Buffer", "join", "split"]

Buffer: TypeAlias = bytes | bytearray | memoryview

_LENGTH_DELIMITED: Final = 2
_FRAME_TAG: Final = PushRequest.FRAME_FIELD_NUMBER << 3 | _LENGTH_DELIMITED
_PAYLOAD_TAG: Final = Frame.PAYLOAD_FIELD_NUMBER << 3 | _LENGTH_DELIMITED
_MAX_VARINT_BYTES: Final = 10
_LARGE_BYTES: Final = 1 << 16  # mean size of a buffer below which copying is cheaper than parts


def join(head: bytes, payload: Sequence[Buffer]) -> tuple[Buffer, ...]:
    """Return the serialised PushRequest that carries a frame (message with records), in parts.

    The parts, joined, are the whole message with its checksum.

    head: the serialised Frame, without its payload.
    payload: the records' values, as byte buffers that follow each other. If they have on average
        64 KiB or more, each is a part of the result and is not copied; else the result is a single
        part, into which all of them are copied.
    """
    size = sum(len(part) for part in payload)
    # Protobuf leaves an empty field out.
    lead = b"" if size == 0 else bytes((_PAYLOAD_TAG,)) + _varint(size)
    length = _varint(len(head) + len(lead) + size)
    front = b"".join((bytes((_FRAME_TAG,)), length, head, lead))
    if size < _LARGE_BYTES * len(payload):
        return (sealed_bytes(b"".join((front, *payload))),)
    check = xxhash.xxh3_64(front)
    for part in payload:
        check.update(part)
    return (front, *payload, seal(check.intdigest()))


def split(message: bytes) -> tuple[bytes, memoryview] | None:
    """Split the PushRequest of a frame (message with records) into (serialised head, payload).

    The payload (the records' values) is a view of the message. Returns None for a message that is
    no frame, or whose fields are not in the order that the module's docstring shows: protobuf has
    to parse those. Raises IndexError if the message ends inside a number.

    message: the serialised PushRequest with its checksum at the end, which is not verified here.
    """
    if not message or message[0] != _FRAME_TAG:
        return None
    end = len(message) - SEAL_BYTES
    length, start = _read_varint(message, 1)
    if start + length != end:
        return None
    at = start
    while at < end and message[at] != _PAYLOAD_TAG:
        at = _skip(message, at)
    if at >= end:
        return message[start:end], memoryview(b"")
    size, payload = _read_varint(message, at + 1)
    if payload + size != end:
        return None
    return message[start:at], memoryview(message)[payload:end]


def _skip(message: bytes, at: int) -> int:
    """Return the offset at which the protobuf field that begins at offset `at` ends.

    Returns the message's length for a field whose wire type (protobuf's kind of encoding) the head
    of a frame does not have.
    """
    wire_type = message[at] & 7
    if wire_type == 0:
        return _read_varint(message, at + 1)[1]
    if wire_type == _LENGTH_DELIMITED:
        length, start = _read_varint(message, at + 1)
        return start + length
    return len(message)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    number = 0
    for index in range(_MAX_VARINT_BYTES):
        byte = message[at + index]
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return number, at + index + 1
    return number, len(message)
