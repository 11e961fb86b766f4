"""Damaged values: values that cannot be read, or that do not have the digest that was recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash

from anchorlib.diagnosis.pairing import Table, place_at
from anchorlib.names import escape, join

__all__ = ["DigestChecks", "damaged"]

Array = np.ndarray[Any, Any]


class DigestChecks:
    """Computes digests of values as they are read; `broken` tells which are not as recorded."""

    def __init__(self, digests: Array) -> None:
        """Begin a digest for each record. digests: the recorded ones, (records, 2) uint64."""
        self._recorded = digests.tolist()
        self._hashers = [xxhash.xxh3_128() for _ in self._recorded]

    def add(self, raw: Array) -> None:
        """Add the next elements of every record: raw storage, (records, elements)."""
        for hasher, row in zip(self._hashers, np.ascontiguousarray(raw), strict=True):
            hasher.update(row.data)

    @property
    def broken(self) -> list[int]:
        """The indices of the records whose values do not have the recorded digest.

        It is to be read after all elements were added.
        """
        pairs = enumerate(zip(self._hashers, self._recorded, strict=True))
        return [at for at, (one, (high, low)) in pairs if one.intdigest() != (high << 64) + low]


def damaged(table: Table, row: int, why: str) -> str:
    """Return a line for people that says which record's values are damaged, and why."""
    place = place_at(table, row)
    where = f"step {place.step}, pass {place.pass_index}"
    where += f", rank {place.rank}" if place.rank else ""
    name = escape(join(place.name, place.kind))
    return f"{escape(table.run)}: the values of {name} at {where} are damaged: {escape(why)}"
