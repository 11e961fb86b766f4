"""The claim of an archiver on a rank, until the rank is marked as whole.

    rank0/sealing.json    which bytes are being put, since when, and from which machine

Archivers of the same bytes may work at the same time: each puts what the other would put. A claim
keeps out an archiver with other bytes for the same rank, for instance because the rank was recorded
anew, or sealed by another version. Such an archiver would overwrite objects that the `sealed.json`
of the first one vouches for.
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
"""An older claim was left by an archiver that died: no rank takes a day to be sent."""


def claimed(shelf: Shelf, sealed: Sealed) -> None:
    """Claims a rank in the archive for the objects of `sealed`.

    Raises RunBusyError where an archiver of other objects has claimed the rank less than a day ago.
    """
    key, mine = claim_key(sealed.rank, sealed.part), hashlib.sha256(sealed.document).hexdigest()
    claim = json.dumps({"sealed": mine, "since_ns": time.time_ns(), "host": os.uname().nodename})
    if shelf.create(key, claim.encode()):
        return None
    there = shelf.fetch(key)
    if there is None:  # the other archiver has finished and removed its claim
        return claimed(shelf, sealed)
    theirs, since_ns, host = _read(there[0])
    if theirs == mine:
        return None
    age = (time.time_ns() - since_ns) / 1e9
    if age > STALE_SECONDS and shelf.swap(key, claim.encode(), there[1]):
        return None
    raise RunBusyError(
        f"rank {sealed.rank} is being archived to {escape(shelf.place)} as other bytes, from other "
        f"records or by another version of anchorlib, by {escape(host[:80])}: wait until that "
        "ends; what a dead archiver left may be taken over after a day"
    )


def _read(data: bytes) -> tuple[str, int, str]:
    """The digest, the time and the machine of a claim; an unreadable claim counts as stale."""
    try:
        claim: Any = json.loads(data)
        return str(claim["sealed"]), int(claim["since_ns"]), str(claim["host"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "", 0, "an unknown machine"
