"""Who puts the objects of a rank, until the rank is marked as whole.

    rank0/sealing.json    which bytes are being put, and since when

Archivers of the same bytes need not know of each other: whatever one puts, the other would have
put. A claim keeps out those who have other bytes under the same name, of a rank that was recorded
anew or sealed by another version: they would exchange objects under a mark that speaks of others.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from typing import Any, Final

from anchorlib.errors import RunBusyError
from anchorlib.names import escape
from anchorlib.store.format import claim_key
from anchorlib.store.objects import Shelf
from anchorlib.store.seal import Sealed

__all__ = ["claimed"]

STALE_SECONDS: Final = 86_400.0
"""No rank takes so long to be sent: a claim that is older was left by an archiver that died."""


def claimed(shelf: Shelf, sealed: Sealed) -> None:
    """Says in the archive that the objects of a rank are these.

    Raises RunBusyError where others are being put, or were a short time ago.
    """
    key, mine = claim_key(sealed.rank, sealed.part), hashlib.sha256(sealed.document).hexdigest()
    told = json.dumps({"sealed": mine, "since_ns": time.time_ns(), "host": os.uname().nodename})
    if shelf.create(key, told.encode()):
        return None
    there = shelf.fetch(key)
    if there is None:  # its owner is done
        return claimed(shelf, sealed)
    theirs, since_ns, host = _read(there[0])
    if theirs == mine:
        return None
    age = (time.time_ns() - since_ns) / 1e9
    if age > STALE_SECONDS and shelf.swap(key, told.encode(), there[1]):
        return None
    raise RunBusyError(
        f"rank {sealed.rank} is being archived to {escape(shelf.place)} from other records, by "
        f"{escape(host[:80])}: wait until that ends; what a dead archiver left may be taken over "
        "after a day"
    )


def _read(data: bytes) -> tuple[str, int, str]:
    """The digest, the time and the machine of a claim; one that says nothing is an old one."""
    try:
        told: Any = json.loads(data)
        return str(told["sealed"]), int(told["since_ns"]), str(told["host"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "", 0, "an unknown machine"
