"""Compares the objects of a sealed rank with their sizes and SHA-256 in `sealed.json`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from anchorlib.errors import StoreError
from anchorlib.names import escape
from anchorlib.store.locations import Location
from anchorlib.store.seal.manifest import Sealed, SealedObject

__all__ = ["sealed_faults"]

_PART_BYTES = 16 << 20


def sealed_faults(run: Location, sealed: Sealed) -> Iterator[str]:
    """Yield in words which objects of a sealed rank are missing or differ in size or content.

    sealed: the rank's `sealed.json`, which states the size and SHA-256 of each.
    """
    for one in sealed.objects:
        try:
            why = _fault(run, one)
        except StoreError as error:
            why = str(error)
        if why:
            yield f"{escape(one.key)} {why}"


def _fault(run: Location, sealed: SealedObject) -> str:
    hasher, size = hashlib.sha256(), 0
    while size < sealed.size:
        data = run.get(sealed.key, size, min(_PART_BYTES, sealed.size - size))
        if data is None:
            return "is missing"
        if not data:
            return f"is {sealed.size - size} bytes short"
        hasher.update(data)
        size += len(data)
    if run.get(sealed.key, sealed.size, 1):
        return "is longer than it was"
    return "" if hasher.hexdigest() == sealed.sha256 else "does not fit its SHA-256"
