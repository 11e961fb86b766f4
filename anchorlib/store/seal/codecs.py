"""Compresses and checks the chunks of sealed arrays, with codecs that every zarr v3 reader has.

A chunk is its elements in C order, compressed by blosc (bits shuffled; lz4 for values, zstd for
tables), then the crc32c of these bytes. A shard is its chunks, then an index of 16 bytes for each
chunk (its offset and size), then the crc32c of the index.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any, Final

import google_crc32c
import numpy as np

from anchorlib.store.seal.object_target import Buffer

__all__ = [
    "INDEX_ENTRY",
    "NO_CHUNK",
    "TABLES",
    "VALUES",
    "codec_chain",
    "compressed",
    "deflated",
    "expanded",
    "inflated",
    "parsed_shard_index",
    "shard_index_bytes",
    "sharding",
]

Array = np.ndarray[Any, Any]
VALUES: Final = "lz4"
TABLES: Final = "zstd"
"""The names of blosc's compressors for values, which are read a tensor at a time, and for tables,
which are read completely."""

LEVEL: Final = 5
CHECK: Final = 4  # bytes of a crc32c, little-endian
INDEX_ENTRY: Final = 16  # offset and size of a chunk in its shard, "<u8" each
_HEADER: Final = struct.Struct("<4xI4xI")  # both sizes in blosc's header of sixteen bytes
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
NO_CHUNK: Final = (1 << 64) - 1
"""Offset and size, in a shard's index, of a chunk beyond the array's end, which is not stored."""


def codec_chain(dtype: np.dtype[Any], name: str) -> list[dict[str, Any]]:
    """Return the codecs of a chunk, as zarr.json states them: bytes, blosc, then crc32c.

    name: the compressor that blosc uses, such as "zstd".
    """
    order: dict[str, Any] = {"name": "bytes"}
    if dtype.itemsize > 1:
        order["configuration"] = {"endian": "big" if dtype.str[0] == ">" else "little"}
    blosc = {
        "typesize": dtype.itemsize,
        "cname": name,
        "clevel": LEVEL,
        "shuffle": "bitshuffle",
        "blocksize": 0,
    }
    return [order, {"name": "blosc", "configuration": blosc}, {"name": "crc32c"}]


def sharding(chunk: tuple[int, ...], codecs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the sharding codec, as zarr.json states it, for chunks of shape `chunk`.

    codecs: those of each chunk, from `codec_chain`.
    """
    index = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
    configuration = {
        "chunk_shape": chunk,
        "codecs": codecs,
        "index_codecs": index,
        "index_location": "end",
    }
    return {"name": "sharding_indexed", "configuration": configuration}


def compressed(data: Array, name: str) -> list[Buffer]:
    """Return the bytes to store for one full chunk of contiguous elements, in two pieces.

    The first piece is the compressed elements, the second their checksum. name: the compressor that
    blosc uses, such as "zstd".
    """
    # A view of bytes: blosc does not take arrays of all dtypes, and its output is the same.
    raw = data.reshape(-1).view(np.uint8)
    made: bytes = _blosc().compress(raw, name.encode(), LEVEL, 2, 0, data.dtype.itemsize)
    return [made, _check(made)]


def expanded(stored: Buffer, out: Array) -> None:
    """Decompress a stored chunk into `out`, a contiguous array of bytes (uint8).

    Raises ValueError where the chunk is damaged, or is not as large as `out` when decompressed.
    """
    body, check = memoryview(stored)[:-CHECK], bytes(memoryview(stored)[-CHECK:])
    if len(check) < CHECK or _check(body) != check:
        raise ValueError("does not fit its checksum")
    # The header names both sizes, and blosc trusts it: a false size could lead it out of bounds.
    if len(body) < _HEADER.size or _HEADER.unpack_from(body) != (len(out), len(body)):
        raise ValueError("is not a chunk of this array")
    try:
        _blosc().decompress(body, out)
    except RuntimeError as error:
        raise ValueError(f"cannot be decompressed: {error}") from error


def shard_index_bytes(entries: Array) -> bytes:
    """Return the bytes of a shard's index, with their checksum.

    entries: offset and size of each chunk, (chunks, 2).
    """
    index = entries.astype("<u8").tobytes()
    return index + _check(index)


def parsed_shard_index(stored: Buffer) -> Array:
    """Parse a shard's index to offsets and sizes, (chunks, 2); raise ValueError if damaged."""
    index, check = memoryview(stored)[:-CHECK], bytes(memoryview(stored)[-CHECK:])
    if _check(index) != check:
        raise ValueError("does not fit its checksum")
    return np.frombuffer(index, "<u8").reshape(-1, 2)


def deflated(data: bytes) -> bytes:
    """Return `data` compressed as a zstd frame with a checksum, as the command `zstd` does it."""
    from numcodecs import Zstd

    made: bytes = Zstd(level=LEVEL, checksum=True).encode(data)
    return made


def inflated(frame: bytes, most: int) -> bytes:
    """Return the content of a zstd frame, which must state its size.

    Raises ValueError where the frame is damaged, states no size, or states more than `most` bytes.
    """
    from numcodecs import Zstd

    size = _frame_size(frame)  # checked first: a few bytes may expand to any size
    if size > most:
        raise ValueError(f"it is larger than {most} bytes")
    if not size:
        return b""  # which numcodecs writes, and does not read
    try:
        content: bytes = Zstd().decode(frame)
    except (RuntimeError, MemoryError) as error:
        raise ValueError(f"it cannot be decompressed: {error}") from error
    if len(content) != size:
        raise ValueError("it is not of the size it says")
    return content


def _frame_size(frame: bytes) -> int:
    """Return the content size that a zstd frame states (RFC 8878, 3.1.1.1).

    Raises ValueError for a frame that states none, or no frame.
    """
    if not frame.startswith(_ZSTD):
        raise ValueError("it is no frame of zstd")
    flags = frame[len(_ZSTD)] if len(frame) > len(_ZSTD) else 0
    is_single = bool(flags & 0x20)  # a single segment has no window descriptor byte
    width = (int(is_single), 2, 4, 8)[flags >> 6]
    start = len(_ZSTD) + 1 + (not is_single) + (0, 1, 2, 4)[flags & 3]
    size = frame[start : start + width]
    if not width or len(size) < width:
        raise ValueError("it does not say how large it is")
    return int.from_bytes(size, "little") + (256 if width == 2 else 0)


def _check(data: Buffer) -> bytes:
    # google_crc32c takes bytes and arrays, but no memoryview.
    value: int = google_crc32c.value(np.frombuffer(data, np.uint8))
    return value.to_bytes(CHECK, "little")


@cache
def _blosc() -> Any:
    from numcodecs import blosc

    # Blosc's threads write blocks in the order in which they finish, so bytes would differ from one
    # sealing to the next. zarr switches them off too when it is imported.
    blosc.use_threads = False
    return blosc
