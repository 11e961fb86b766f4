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
        rank<r>.p<k>/                            a part of rank r that another collector holds,
                                                 with the same groups and arrays as rank<r>
    <store>/.anchor/locks/<run>.rank<r>.lock         the lock of that rank's writer
    <store>/.anchor/tmp/                             files and nodes before they are put in place

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
    "VERSION",
    "chunk_key",
    "chunk_number",
    "digests_key",
    "flat_name",
    "flat_width",
    "form_name",
    "hidden",
    "is_key_of_all_ranks",
    "is_safe_key",
    "kind_segment",
    "part_of",
    "rank_name",
    "run_directory",
    "segment",
    "steps_key",
]

_RANK = re.compile(r"rank(0|[1-9][0-9]{0,9})(?:\.p([1-9][0-9]{0,3}))?", re.ASCII)
_OF_ALL_RANKS = re.compile(r"(?:digests|steps)-[0-9a-f]{16}\.json\.zst", re.ASCII)

FORMAT = "anchor-zarr"
INDEX = "index.json.zst"  # the index of an archived run, see `run_index`
VERSION = 2
FLAT_DIMS = 8  # numbers stored for each shape of a flat array; a wider one is rarely needed

FORMS_AT_ONCE = 8
"""How many forms get an array of their own with their first record.

An array and its labels are some fifteen files, so records of later shapes share the flat array of
their dtype.
"""

FORM_RECORDS = 256
"""With so many records in a flat array a shape gets an array of its own for later records."""

NOT_KEPT = 1 << 15
"""Flag that the writer sets where the form's array holds no values of the record."""

ROW = np.dtype(
    [
        ("series", "<u4"),
        ("form", "<u4"),
        ("row", "<i8"),  # row in the form's arrays; -1 for a record without a row
        ("step", "<i8"),
        ("pass_index", "<i8"),
        ("call", "<i8"),
        ("order", "<i8"),
        ("time_ns", "<i8"),
        ("count", "<u8"),
        ("attempt", "<u4"),
        ("phase", "<u4"),
        ("scale", "<f8"),
        ("digest_high", ">u8"),  # big-endian as xxhash writes digests: both in hex are the digest
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
        ("hist_length", "<i4"),  # -1 where no histogram is stored: it is computed from the values
    ]
)
"""One row as the writer packs it; its checksum covers these columns in this order."""

COLUMNS: dict[str, np.dtype[Any]] = {name: ROW[name] for name in ROW.names or ()} | {
    "check": np.dtype("<u8"),  # of all columns above, see `checks`
    "seq": np.dtype("<u8"),
}
"""Every column under `records/` with one entry a record; `seq` is written last."""

HIST_COLUMNS: dict[str, np.dtype[Any]] = {
    "hist_exponent": np.dtype("<i2"),
    "hist_count": np.dtype("<u8"),
}
"""The columns of (exponent, count) pairs; `hist_offset` and `hist_length` name a row's pairs."""

MOST_BINS = 4096
"""More than any dtype has exponents: a histogram with more (exponent, count) pairs is damage."""

LABELS = ("series", "step", "pass_index", "call")
"""Columns that are repeated beside the values, where xarray finds them as coordinates."""

SEGMENT_BYTES = 120
PREFIX_BYTES = 96
PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def segment(name: str) -> str:
    """`name` as one path segment: percent-encoded, never hidden or reserved, at most 120 bytes.

    Different names give different segments; names that differ in case alone give segments that
    differ in case alone.
    """
    encoded = "".join(chr(b) if b in PLAIN else f"%{b:02X}" for b in name.encode())
    if encoded.startswith((".", "__")) or encoded in ("zarr.json", "c"):
        encoded = f"%{ord(encoded[0]):02X}{encoded[1:]}"
    return encoded if len(encoded) <= SEGMENT_BYTES else hashed_segment(name, encoded)


def hashed_segment(name: str, encoded: str) -> str:
    """A short segment for `name` alone, by its hash; percent-encoding never yields `%-`."""
    return f"{encoded[:PREFIX_BYTES]}%-{xxhash.xxh3_64_hexdigest(name.encode())}"


def kind_segment(kind: str, mode: str | None) -> str:
    """The segment of a series below its name: the kind, with the mode unless that is None."""
    return segment(kind) if mode is None else segment(f"{kind}@{mode}")


def run_directory(store: Path, run: str) -> Path:
    """The zarr hierarchy of one run."""
    return store / f"{run}.zarr"


def hidden(store: Path) -> Path:
    """The folder of locks and unfinished files.

    It lies outside every zarr hierarchy, and on the same file system, so that a rename from it
    puts a node in place.
    """
    return store / ".anchor"


def rank_name(rank: int, part: int = 0) -> str:
    """The group of one rank, or of a part of it that another collector than the first holds."""
    return f"rank{rank}.p{part}" if part else f"rank{rank}"


def claim_key(rank: int, part: int = 0) -> str:
    """The key, below the run, of the note that a sealed rank is being put there, not whole yet."""
    return f"{rank_name(rank, part)}/sealing.json"


def rank_of(name: str) -> int | None:
    """The rank whose group, or a part's group, bears this name; None for any other node."""
    match = _RANK.fullmatch(name)
    return int(match[1]) if match else None


def part_of(name: str) -> int:
    """The number of the part whose group bears this name; 0 for a whole rank's group."""
    match = _RANK.fullmatch(name)
    return int(match[2] or 0) if match else 0


def form_name(dtype: str, shape: tuple[int, ...]) -> str:
    """The group of the records of one dtype and shape: "float32_8x8", "int64_scalar"."""
    return segment(f"{dtype}_{'x'.join(map(str, shape)) or 'scalar'}")


def flat_width(ndim: int) -> int:
    """How many numbers a flat array stores for each shape, to hold tensors of `ndim` dimensions."""
    return FLAT_DIMS if ndim <= FLAT_DIMS else 64


def flat_name(dtype: str, width: int) -> str:
    """The group of a flat form: records of one dtype whose shapes have few records each."""
    return f"flat_{dtype}" if width == FLAT_DIMS else f"flat_{dtype}_{width}d"


def chunk_key(chunk: int, dims: int) -> str:
    """The file name of chunk number `chunk` of an array whose records have `dims` dimensions."""
    return f"c.{chunk}" + ".0" * dims


def chunk_number(name: str) -> int | None:
    """The number of the chunk whose file bears this name, in an array with one dimension."""
    match = re.fullmatch(r"c\.(0|[1-9][0-9]{0,11})", name, re.ASCII)
    return int(match[1]) if match else None


def digests_key(name: str) -> str:
    """The key of the digests of an archived run's ranks; name: the SHA-256 of the object."""
    return f"digests-{name[:16]}.json.zst"


def steps_key(name: str) -> str:
    """The key of the figures of an archived run's steps; name: the SHA-256 of the object."""
    return f"steps-{name[:16]}.json.zst"


def is_key_of_all_ranks(key: str) -> bool:
    """Whether a name in a run's folder is that of an object that its index names.

    Such objects tell of all ranks; see `digests_key` and `steps_key`.
    """
    return _OF_ALL_RANKS.fullmatch(key) is not None


def is_safe_key(key: str) -> bool:
    """Whether a key stays inside its root: no empty, hidden or upward segment."""
    return "\0" not in key and all(part and not part.startswith(".") for part in key.split("/"))
