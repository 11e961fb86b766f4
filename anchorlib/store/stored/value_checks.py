"""Compares values, as they are read, with the digests that were made when they were captured."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np
import xxhash

from anchorlib.errors import AnchorError, DamagedError, RunNotFoundError
from anchorlib.names import escape, join
from anchorlib.store.stored.rank_rows import RankRows

__all__ = ["UNFIT", "damage", "removed_meanwhile", "unfit"]

Array = np.ndarray[Any, Any]
DIGEST_BYTES = 16
SMALL_BYTES = 1 << 10  # up to here a copy costs less than a view
UNFIT = "they do not fit their digest"


def unfit(values: Array, digests: bytes) -> list[int]:
    """Return the indices along the first axis of `values` whose entries do not fit their digest.

    An entry is the values of one record. digests: the stored digests (xxh3-128) of all entries, 16
    bytes each, end to end.
    """
    width = DIGEST_BYTES
    made = [*map(xxhash.xxh3_128_digest, _parts(values))]
    if b"".join(made) == digests:
        return []
    return [at for at, one in enumerate(made) if one != digests[at * width : (at + 1) * width]]


def _parts(values: Array) -> Iterable[bytes | memoryview]:
    """Return an iterator over the bytes of each entry along the first axis of `values`.

    `struct` cuts small entries, without a Python loop over them.
    """
    size = values.nbytes // max(len(values), 1)
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
    if 0 < size <= SMALL_BYTES:
        return chain.from_iterable(struct.iter_unpack(f"{size}s", data))
    return (data[at * size : (at + 1) * size] for at in range(len(values)))


def removed_meanwhile(reader: RankRows) -> RunNotFoundError:
    """Return the error for a rank that was removed, renamed or recorded anew while it was read."""
    run = f"{escape(reader.run)}: " if reader.run else ""
    return RunNotFoundError(
        f"{run}rank {reader.rank} is not there any more: the run was removed, renamed or "
        "recorded anew while it was read"
    )


def damage(reader: RankRows, row: int, why: str, what: str = "the values") -> AnchorError:
    """Return the error to raise for a damaged record: a DamagedError that names the record.

    The error is a RunNotFoundError instead where the rank was removed since it was opened: missing
    files read as zeros, which fit no digest, and would look like damage.

    row: the record's row in the rank's table. why: what is wrong, for the message. what: what is
        damaged of the record, as the message begins.
    """
    run = f"{escape(reader.run)}: " if reader.run else ""
    if not reader.is_current:
        return removed_meanwhile(reader)
    series = reader.catalogue.series[int(reader.series_ids[row])]
    step, pass_index, call = (int(reader.cell(n, row)) for n in ("step", "pass_index", "call"))
    return DamagedError(
        f"{run}{what} of {escape(join(series.name, series.kind))} at step {step}, pass "
        f"{pass_index}, call {call}, rank {reader.rank} are damaged: {why}; anchor verify names "
        "all that is damaged"
    )
