"""The checksum that ends each message, in both directions of both services.

    <message> 79 <xxh3-64 of it, eight bytes>

It is the field `check`, the last that protobuf writes. An answer's may be seeded with its
question's, so that an answer to another question does not fit.
"""

from __future__ import annotations

from typing import Final

import xxhash
from google.protobuf.message import Message

from anchorlib.errors import AnchorError
from anchorlib.wire.v1.collector_pb2 import PushRequest

__all__ = [
    "SEAL_BYTES",
    "DamagedError",
    "check_of",
    "check_seal",
    "seal",
    "sealed",
    "sealed_bytes",
]

_TAG: Final = PushRequest.CHECK_FIELD_NUMBER << 3 | 1  # 64 bits
_BYTES: Final = 8
SEAL_BYTES: Final = 1 + _BYTES


class DamagedError(AnchorError, ValueError):
    """Bytes that are not those that their checksum was made of."""


def sealed(message: Message, seed: int = 0) -> bytes:
    """A message as it is sent."""
    return sealed_bytes(message.SerializeToString(), seed)


def sealed_bytes(body: bytes, seed: int = 0) -> bytes:
    """A serialised message as it is sent."""
    return body + seal(xxhash.xxh3_64_intdigest(body, seed))


def seal(check: int) -> bytes:
    """What is sent behind a message whose checksum is `check`."""
    return bytes((_TAG,)) + check.to_bytes(_BYTES, "little")


def check_seal(message: bytes, seed: int = 0) -> None:
    """Raises DamagedError where the message is not the one that was sent."""
    at = len(message) - SEAL_BYTES
    body = memoryview(message)[: max(at, 0)]
    if at < 0 or message[at:] != seal(xxhash.xxh3_64_intdigest(body, seed)):
        raise DamagedError("a message was damaged on the way: it does not fit its checksum")


def check_of(message: bytes) -> int:
    """The checksum of a sealed message: the seed of its answer's."""
    return int.from_bytes(message[-_BYTES:], "little")
