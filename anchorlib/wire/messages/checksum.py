"""The checksum that ends each message, in both directions of all three services.

    <message> 79 <xxh3-64 of the message, eight bytes>

The checksum is the message's field `check`, which protobuf writes last. A message that ends in its
checksum is called sealed. The checksum of an answer may be seeded with the checksum of its
question, so that an answer to another question does not fit.
"""

from __future__ import annotations

from typing import Final

import xxhash
from google.protobuf.message import Message

from anchorlib.errors import AnchorError
from anchorlib.wire.v1.collector_pb2 import PushRequest

__all__ = [
    "SEAL_BYTES",
    "GarbledError",
    "check_of",
    "check_seal",
    "seal",
    "sealed",
    "sealed_bytes",
]

_TAG: Final = PushRequest.CHECK_FIELD_NUMBER << 3 | 1  # 64 bits
_BYTES: Final = 8
SEAL_BYTES: Final = 1 + _BYTES


class GarbledError(AnchorError, ValueError):
    """Raised for bytes that do not fit their checksum or digest: they were changed on the way."""


def sealed(message: Message, seed: int = 0) -> bytes:
    """Serialise `message` and append its checksum.

    seed: for an answer of the services Reader and Keeper the checksum of its question, which
        `check_of` returns; else 0.
    """
    return sealed_bytes(message.SerializeToString(), seed)


def sealed_bytes(body: bytes, seed: int = 0) -> bytes:
    """Return the serialised message `body` with its checksum appended; `seed` as in `sealed`."""
    return body + seal(xxhash.xxh3_64_intdigest(body, seed))


def seal(check: int) -> bytes:
    """Return the last bytes of a message whose checksum is `check`: the field with the checksum."""
    return bytes((_TAG,)) + check.to_bytes(_BYTES, "little")


def check_seal(message: bytes, seed: int = 0) -> None:
    """Raise GarbledError if the message does not fit the checksum at its end.

    seed: what the sender passed to `sealed` as seed.
    """
    at = len(message) - SEAL_BYTES
    body = memoryview(message)[: max(at, 0)]
    if at < 0 or message[at:] != seal(xxhash.xxh3_64_intdigest(body, seed)):
        raise GarbledError("a message was damaged on the way: it does not fit its checksum")


def check_of(message: bytes) -> int:
    """Return the checksum at the end of a message, which seeds the checksum of its answer."""
    return int.from_bytes(message[-_BYTES:], "little")
