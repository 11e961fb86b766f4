"""Where everything of a store lies on disk.

    <store>/<run>.zarr/                              group
        rank<r>/                                     group, attributes.anchor: state, attempts
            catalog                                  uint8, JSON lines, see `catalog_lines`
            records/<column>                         one row a record; `seq` is written last
            forms/float32_8x8/value                  (record, 8, 8): one array a dtype and shape
                             /series step pass_index call
            forms/flat_float32/value                 elements of records of many shapes
                              /start shape series step pass_index call
            ops/log                              uint8, JSON lines: traced operations, if any
        rank<r>.p<k>/                            a part of rank r that another collector holds,
                                                 with the same groups and arrays as rank<r>
    <store>/.anchor/locks/<run>.rank<r>.lock         the lock of that rank's writer
    <store>/.anchor/tmp/                             files and nodes before they are put in place

A form is what records of one dtype and shape have in common; a flat form holds records of one dtype
and many shapes. The name of the run becomes a path on disk. Names of tensors and phases do not:
they stand in the catalogue and in attributes. No file or folder of a run has a name that begins
with a dot, so a key (path below the store) with such a segment is refused everywhere.
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
"""How many shapes per rank get arrays of their own as soon as their first record comes.

An array and its labels are some fifteen files, so records of further shapes go into one flat array
for each dtype.
"""

FORM_RECORDS = 256
"""Once a flat array has so many records of one shape, that shape gets an array for later records.
"""

NOT_KEPT = 1 << 15
"""A flag of a row: the writer sets it where no array holds the values of the row's record."""

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
"""The dtype of a table row as the writer packs it; its checksum covers these columns in order."""

COLUMNS: dict[str, np.dtype[Any]] = {name: ROW[name] for name in ROW.names or ()} | {
    "check": np.dtype("<u8"),  # of all columns above, see `checks`
    "seq": np.dtype("<u8"),
}
"""Every column under `records/` with one entry for each record; `seq` is written last."""

HIST_COLUMNS: dict[str, np.dtype[Any]] = {
    "hist_exponent": np.dtype("<i2"),
    "hist_count": np.dtype("<u8"),
}
"""Columns of (exponent, count) pairs; `hist_offset` and `hist_length` say which a row has."""

MOST_BINS = 4096
"""The most (exponent, count) pairs of a histogram: no dtype has as many exponents, more is damage.
"""

LABELS = ("series", "step", "pass_index", "call")
"""Columns of the table that are repeated beside the values, as coordinates for xarray."""

SEGMENT_BYTES = 120
PREFIX_BYTES = 96
PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def segment(name: str) -> str:
    """Return `name` as a path segment (one file name): percent-encoded, of at most 120 bytes.

    A longer segment is cut, with a hash. The segment does not begin with "." as hidden files do,
    nor with "__", and is no name that zarr itself uses. Different names give different segments,
    which on some file systems may still be one file: two segments may differ in case alone.
    """
    encoded = "".join(chr(b) if b in PLAIN else f"%{b:02X}" for b in name.encode())
    if encoded.startswith((".", "__")) or encoded in ("zarr.json", "c"):
        encoded = f"%{ord(encoded[0]):02X}{encoded[1:]}"
    return encoded if len(encoded) <= SEGMENT_BYTES else hashed_segment(name, encoded)


def hashed_segment(name: str, encoded: str) -> str:
    """Return a short path segment for a long `name`: the start of `encoded`, and a hash of `name`.

    The two are joined by `%-`, which percent-encoding never yields, so that no short name has the
    same segment. encoded: the percent-encoded name.
    """
    return f"{encoded[:PREFIX_BYTES]}%-{xxhash.xxh3_64_hexdigest(name.encode())}"


def kind_segment(kind: str, mode: str | None) -> str:
    """Return the path segment of a series' kind, and of its mode unless that is None.

    The segment stands below the segment of the series' name.
    """
    return segment(kind) if mode is None else segment(f"{kind}@{mode}")


def run_directory(store: Path, run: str) -> Path:
    """Return the directory of the zarr hierarchy of run `run` in the store at `store`."""
    return store / f"{run}.zarr"


def hidden(store: Path) -> Path:
    """Return the folder `.anchor` of a store, which holds locks, notes and unfinished files.

    The folder lies outside every zarr hierarchy, and on the file system of the store, so that a
    rename puts a finished file or group from there into a hierarchy.
    """
    return store / ".anchor"


def rank_name(rank: int, part: int = 0) -> str:
    """Return the name of the zarr group of part `part` of a rank: "rank3", or "rank3.p1".

    Where several collectors share a rank, each holds a part of it; part 0 is the first collector's.
    A rank at a single collector has part 0 alone.
    """
    return f"rank{rank}.p{part}" if part else f"rank{rank}"


def claim_key(rank: int, part: int = 0) -> str:
    """Return the key of the object that marks a rank in an archive as still being sent.

    The object exists only until the sealed copy of the rank is complete. The key is relative to the
    folder of the run in the archive.
    """
    return f"{rank_name(rank, part)}/sealing.json"


def rank_of(name: str) -> int | None:
    """Return the rank number in the name of a zarr group: 3 for `rank3` and for `rank3.p1`.

    None where `name` is not the name of a rank or of a part of a rank.
    """
    match = _RANK.fullmatch(name)
    return int(match[1]) if match else None


def part_of(name: str) -> int:
    """Return the part number in the name of a rank's group: 1 for `rank3.p1`, 0 for `rank3`.

    0 also for the name of anything else.
    """
    match = _RANK.fullmatch(name)
    return int(match[2] or 0) if match else 0


def form_name(dtype: str, shape: tuple[int, ...]) -> str:
    """Return the group name for records of one dtype and shape: "float32_8x8", "int64_scalar"."""
    return segment(f"{dtype}_{'x'.join(map(str, shape)) or 'scalar'}")


def flat_width(ndim: int) -> int:
    """Return how many numbers a flat form stores for the shape of a tensor with `ndim` axes.

    The result is 8 for up to 8 axes, else 64, so that tensors with different numbers of axes can
    have one form. The numbers behind the end of a shape are -1.
    """
    return FLAT_DIMS if ndim <= FLAT_DIMS else 64


def flat_name(dtype: str, width: int) -> str:
    """Return the group name of a flat form, which holds records of one dtype and many shapes.

    width: how many numbers the form stores for the shape of a record.
    """
    return f"flat_{dtype}" if width == FLAT_DIMS else f"flat_{dtype}_{width}d"


def chunk_key(chunk: int, dims: int) -> str:
    """Return the file name of chunk number `chunk` of an array whose records have `dims` axes.

    Chunks are counted along the first axis, that of the records; each has all of the other axes.
    """
    return f"c.{chunk}" + ".0" * dims


def chunk_number(name: str) -> int | None:
    """Return the chunk number in the file name of a 1-d array's chunk; None for any other name."""
    match = re.fullmatch(r"c\.(0|[1-9][0-9]{0,11})", name, re.ASCII)
    return int(match[1]) if match else None


def digests_key(name: str) -> str:
    """Return the key of the object that holds the digests of all ranks of an archived run.

    Digests are hashes of the records of each range of steps, by which runs are compared. The key is
    relative to the run's folder. name: the SHA-256 of that object, in hex.
    """
    return f"digests-{name[:16]}.json.zst"


def steps_key(name: str) -> str:
    """Return the key of the object with counts, extremes and histograms of each step of a run.

    Only archived runs have such an object. The key is relative to the run's folder. name: the
    SHA-256 of the object, in hex.
    """
    return f"steps-{name[:16]}.json.zst"


def is_key_of_all_ranks(key: str) -> bool:
    """Return whether `key` has the form of the keys that `digests_key` and `steps_key` return.

    Such a file of an archived run is about all ranks.
    """
    return _OF_ALL_RANKS.fullmatch(key) is not None


def is_safe_key(key: str) -> bool:
    """Return whether the path `key` stays below its root: no empty, hidden or upward segment."""
    return "\0" not in key and all(part and not part.startswith(".") for part in key.split("/"))
