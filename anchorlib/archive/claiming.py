"""A claim on a rank in an archive, which keeps other archivers out until the rank is complete.

    rank0/sealing.json    which bytes are being sent, since when, and from which machine

Two archivers that send equal bytes may work at the same time: each sends what the other would send.
A claim keeps out an archiver that would send other bytes for the rank, because the rank was
recorded anew, or compressed by another version of anchorlib. Such an archiver would overwrite
objects whose hashes are in the `sealed.json` of the first archiver.
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

__all__ = ["claim_rank"]

STALE_SECONDS: Final = 86_400.0
"""An older claim is ignored: its archiver must have died, as no rank takes a day to be sent."""


def claim_rank(shelf: Shelf, sealed: Sealed) -> None:
    """Claim a rank in the archive, so that no archiver with other bytes sends it at the same time.

    The claim is an object `sealing.json` beside the rank's objects. It stays until the caller
    removes it. A claim for equal bytes is left as it is; a claim older than a day is replaced.
    sealed: the objects that this process sends.
    Raises RunBusyError where an archiver of other bytes has claimed the rank less than a day ago.
    """
    key, mine = claim_key(sealed.rank, sealed.part), hashlib.sha256(sealed.document).hexdigest()
    claim = json.dumps({"sealed": mine, "since_ns": time.time_ns(), "host": os.uname().nodename})
    if shelf.create(key, claim.encode()):
        return None
    stored = shelf.fetch(key)
    if stored is None:  # the other archiver has finished and removed its claim
        return claim_rank(shelf, sealed)
    theirs, since_ns, host = _read(stored[0])
    if theirs == mine:
        return None
    age = (time.time_ns() - since_ns) / 1e9
    if age > STALE_SECONDS and shelf.swap(key, claim.encode(), stored[1]):
        return None
    raise RunBusyError(
        f"rank {sealed.rank} is being archived to {escape(shelf.place)} as other bytes, from other "
        f"records or by another version of anchorlib, by {escape(host[:80])}: wait until that "
        "ends; what a dead archiver left may be taken over after a day"
    )


def _read(data: bytes) -> tuple[str, int, str]:
    """Return what a claim says: a digest of the bytes being sent, the time, and the machine.

    data: the content of the claim, an object in the archive.
    The digest is the SHA-256 of the rank's `sealed.json`, in hex. The time is that at which the
    claim was made, in ns since the epoch. For a claim that cannot be read, the digest is "" and
    the time 0, so that the claim counts as very old; the machine is "an unknown machine".
    """
    try:
        claim: Any = json.loads(data)
        return str(claim["sealed"]), int(claim["since_ns"]), str(claim["host"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "", 0, "an unknown machine"
