"""Where everything of a store lies on disk.

    <store>/<run>.zarr/                              group
        rank<r>/                                     group, attributes.anchor: state, attempts
            catalog                                  uint8, JSON lines: series, forms, gaps, …
            records/<column>                         one row a record; `seq` last
            forms/float32_8x8/value                  (record, 8, 8): one array a dtype and shape
                             /series step pass_index call
            forms/flat_float32/value                 elements of records of many shapes
                              /start shape series step pass_index call
            ops/log                              uint8, JSON lines: traced operations, if any
        rank<r>.p<k>/                            the same: what another collector has of rank r
    <store>/.anchor/locks/<run>.rank<r>.lock         who writes that rank
    <store>/.anchor/tmp/                             what is not in the tree yet, or no more

No user's name becomes a path on disk: the catalogue and attributes hold names. Nothing in the tree
begins with a dot, so a key with such a segment is refused everywhere.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

__all__ = [
    "COLUMNS",
    "FORMAT",
    "HIST_COLUMNS",
    "INDEX",
    "LABELS",
    "MOST_BINS",
    "NOT_KEPT",
    "ROW",
    "ROWS_PER_CHUNK",
    "VERSION",
    "chunk_key",
    "chunk_number",
    "flat_name",
    "flat_width",
    "form_name",
    "hidden",
    "is_safe_key",
    "kind_segment",
    "part_of",
    "rank_name",
    "rows_per_chunk",
    "run_directory",
    "segment",
    "shape_rows",
]

_RANK = re.compile(r"rank(0|[1-9][0-9]{0,9})(?:\.p([1-9][0-9]{0,3}))?", re.ASCII)

FORMAT = "anchor-zarr"
INDEX = "index.json.zst"  # of an archived run: what all of its ranks hold, see `run_index`
VERSION = 2
ROWS_PER_CHUNK = 65536
CATALOG_CHUNK = 1 << 16  # bytes; readers of a live run read its last chunk again and again
CHUNK_BYTES = 2 << 20  # of the values of several records
OWN_CHUNK_BYTES = 1 << 20  # of a record that is not put together with others
FLAT_DIMS = 8  # dimensions that the shapes of a flat array have; rarely more

FORMS_AT_ONCE = 8
"""Shapes that get an array of their own with their first record.

An array and its labels are some fifteen files: later shapes share the flat array of their dtype.
"""

FORM_RECORDS = 256
"""A shape that has so many records in a flat array gets an array of its own after all."""

NOT_KEPT = 1 << 15
"""Set in `flags` by the writer where the array holds no values of that record."""

ROW = np.dtype(
    [
        ("series", "<u4"),
        ("form", "<u4"),
        ("row", "<i8"),  # row of the form's arrays; -1 where there is none
        ("step", "<i8"),
        ("pass_index", "<i8"),
        ("call", "<i8"),
        ("order", "<i8"),
        ("time_ns", "<i8"),
        ("count", "<u8"),
        ("attempt", "<u4"),
        ("phase", "<u4"),
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
        ("flags", "<u4"),
        ("hist_length", "<i4"),  # -1 where the histogram is not stored: compute it from the values
    ]
)
"""One row as the writer packs it, column by column in the order they are written."""

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

LABELS = ("series", "step", "pass_index", "call")
"""Columns that stand beside the values too, where xarray finds them."""

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


def rank_name(rank: int, part: int = 0) -> str:
    """The group of one rank, or of the part of it that another collector than the first has."""
    return f"rank{rank}.p{part}" if part else f"rank{rank}"


def claim_key(rank: int, part: int = 0) -> str:
    """What says, from the run on, that a sealed rank is being put there and not whole yet."""
    return f"{rank_name(rank, part)}/sealing.json"


def rank_of(name: str) -> int | None:
    """The rank whose group, or that of a part of it, bears this name; None for another node."""
    found = _RANK.fullmatch(name)
    return int(found[1]) if found else None


def part_of(name: str) -> int:
    """Which part of its rank the group of this name is."""
    found = _RANK.fullmatch(name)
    return int(found[2] or 0) if found else 0


def form_name(dtype: str, shape: tuple[int, ...]) -> str:
    """The group of the records of one dtype and shape: "float32_8x8", "int64_scalar"."""
    return segment(f"{dtype}_{'x'.join(map(str, shape)) or 'scalar'}")


def flat_width(ndim: int) -> int:
    """Dimensions that a flat array has room for in each shape, if it takes tensors of `ndim`."""
    return FLAT_DIMS if ndim <= FLAT_DIMS else 64


def flat_name(dtype: str, width: int) -> str:
    """The group of records of one dtype whose shapes have few records each."""
    return f"flat_{dtype}" if width == FLAT_DIMS else f"flat_{dtype}_{width}d"


def rows_per_chunk(nbytes: int) -> int:
    """Records of `nbytes` in one chunk file: two mebibytes of them.

    From 1 MiB a record has a file of its own, written once. Smaller ones share: making a file
    costs more than filling it, and readers pay for each one they open.
    """
    if nbytes >= OWN_CHUNK_BYTES:
        return 1
    return min(CHUNK_BYTES // max(nbytes, 1), ROWS_PER_CHUNK)


def shape_rows(ndim: int) -> int:
    """Records that a chunk of an array of shapes of `ndim` dimensions holds."""
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
