"""Where everything of a store lies on disk.

    <store>/<run>.zarr/                              group
        rank<r>/                                     group, attributes.anchor: state, attempts
            catalog                                  uint8, JSON lines: series, variants, gaps, …
            records/<column>                         one row a record; `seq` last
            tensors/<name>/<kind>/value              (record, *shape); value_1 …, flat_8 …
                                 /step pass_index call
    <store>/.anchor/locks/<run>.rank<r>.lock         who writes that rank
    <store>/.anchor/tmp/                             what is not in the tree yet, or no more

A user's name becomes a path only through `segment`. Nothing in the tree begins with a dot, so a
key with such a segment is refused everywhere.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

__all__ = [
    "COLUMNS",
    "COORDINATES",
    "COORDINATE_ROWS",
    "FORMAT",
    "HIST_COLUMNS",
    "MOST_BINS",
    "NOT_KEPT",
    "ROW",
    "ROWS_PER_CHUNK",
    "VERSION",
    "array_name",
    "array_suffix",
    "chunk_key",
    "chunk_number",
    "hidden",
    "is_safe_key",
    "kind_segment",
    "rank_name",
    "rows_per_chunk",
    "run_directory",
    "segment",
    "shape_rows",
]

FORMAT = "anchor-zarr"
VERSION = 1
ROWS_PER_CHUNK = 65536
CATALOG_CHUNK = 1 << 16  # bytes; readers of a live run read its last chunk again and again
FLAT_CHUNK = 1 << 20  # bytes of one chunk of a flat array
MAX_SHAPES = 8  # shapes of one series that get an array of their own; later ones share a flat one

NOT_KEPT = 1 << 15
"""Set in `flags` by the writer where the array holds no values of that record."""

ROW = np.dtype(
    [
        ("variant", "<u4"),
        ("attempt", "<u4"),
        ("row", "<i8"),  # row of the variant's array; -1 where there is none
        ("step", "<i8"),
        ("pass_index", "<i8"),
        ("call", "<i8"),
        ("order", "<i8"),
        ("time_ns", "<i8"),
        ("count", "<u8"),
        ("phase", "<u4"),
        ("flags", "<u4"),
        ("scale", "<f8"),
        ("digest_high", ">u8"),  # as xxhash writes its sixteen bytes: the hex of both is the digest
        ("digest_low", ">u8"),
        ("zero", "<u8"),
        ("nan", "<u8"),
        ("inf", "<u8"),
        ("subnormal", "<u8"),
        ("min", "<f8"),
        ("max", "<f8"),
        ("sum", "<f8"),
        ("l2", "<f8"),
        ("hist_offset", "<i8"),
        ("hist_length", "<i4"),  # -1 where the histogram is not stored: compute it from the values
    ]
)
"""One row as the writer packs it, column by column in the order they are written."""

ROW_FORMAT = "<IIqqqqqqQIId16sQQQQddddqi"
"""The same row for `struct`: the digest's sixteen bytes are the two u8 columns."""

COLUMNS: dict[str, np.dtype[Any]] = {name: ROW[name] for name in ROW.names or ()} | {
    "check": np.dtype("<u8"),  # of all columns above, see `checks`
    "seq": np.dtype("<u8"),
}
"""Every column under `records/` with one row per record."""

HIST_COLUMNS: dict[str, np.dtype[Any]] = {
    "hist_exponent": np.dtype("<i2"),
    "hist_count": np.dtype("<u8"),
}
"""The (exponent, count) pairs that `hist_offset` and `hist_length` point into."""

MOST_BINS = 4096
"""More than any dtype has exponents: a histogram with more (exponent, count) pairs is damage."""

COORDINATES = ("step", "pass_index", "call")
"""Columns that stand beside the values too, where xarray finds them."""

COORDINATE_ROWS = 8192  # a chunk of those

SEGMENT_BYTES = 120
PREFIX_BYTES = 96
PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def segment(name: str) -> str:
    """`name` as one path segment: percent-encoded, never hidden or reserved, at most 120 bytes.

    Different names give different segments, on case-insensitive file systems but for their case.
    """
    encoded = "".join(chr(b) if b in PLAIN else f"%{b:02X}" for b in name.encode())
    if encoded.startswith((".", "__")) or encoded in ("zarr.json", "c"):
        encoded = f"%{ord(encoded[0]):02X}{encoded[1:]}"
    return encoded if len(encoded) <= SEGMENT_BYTES else hashed_segment(name, encoded)


def hashed_segment(name: str, encoded: str) -> str:
    """A short segment that only `name` has; `%-` never comes out of percent-encoding."""
    return f"{encoded[:PREFIX_BYTES]}%-{xxhash.xxh3_64_hexdigest(name.encode())}"


def kind_segment(kind: str, mode: str | None) -> str:
    """The segment of a series below its name: the kind, and the mode where it is not the first."""
    return segment(kind) if mode is None else segment(f"{kind}@{mode}")


def run_directory(store: Path, run: str) -> Path:
    """The zarr hierarchy of one run."""
    return store / f"{run}.zarr"


def hidden(store: Path) -> Path:
    """Locks and unfinished files, outside every zarr hierarchy but on the same file system."""
    return store / ".anchor"


def rank_name(rank: int) -> str:
    """The group of one rank."""
    return f"rank{rank}"


def rank_of(name: str) -> int | None:
    """The rank whose group bears this name, None where it is another node."""
    found = re.fullmatch(r"rank(0|[1-9][0-9]{0,9})", name)
    return int(found[1]) if found else None


def array_name(index: int, *, flat: bool = False) -> str:
    """The array of a series' variant: value, value_1, …, flat_8."""
    stem = "flat" if flat else "value"
    return stem if index == 0 else f"{stem}_{index}"


def array_suffix(index: int) -> str:
    """Behind the names of the dimensions and coordinates of a series' variant `index`."""
    return f"_{index}" if index else ""


def rows_per_chunk(nbytes: int) -> int:
    """Records of `nbytes` in one chunk file.

    From 1 MiB a record has a file of its own, written once. Smaller ones share: making a file
    costs more than filling it, and readers pay for each one they open. But a file has its full
    size from the start, so it holds no more than 128 KiB, or 16 records up to 1 MiB.
    """
    nbytes = max(nbytes, 1)
    return min(max((128 << 10) // nbytes, min(16, (1 << 20) // nbytes), 1), 4096)


def shape_rows(ndim: int) -> int:
    """Records a chunk of a `flat_shape` array holds."""
    return max(ROWS_PER_CHUNK // ndim, 1)


def chunk_key(chunk: int, dims: int) -> str:
    """The file of chunk `chunk` along records, of an array with `dims` further dimensions."""
    return f"c.{chunk}" + ".0" * dims


def chunk_number(name: str) -> int | None:
    """The chunk whose file in an array without further dimensions bears this name."""
    found = re.fullmatch(r"c\.(0|[1-9][0-9]{0,11})", name, re.ASCII)
    return int(found[1]) if found else None


def is_safe_key(key: str) -> bool:
    """Whether a key stays inside its root: no empty, hidden or upward segment."""
    return "\0" not in key and all(part and not part.startswith(".") for part in key.split("/"))
