"""Who may go on with a rank: a secret of its writer, of which a store keeps the claim alone.

    secret ─claim_of─▶ claim          in the store, for all who read it
       └─heir_of─▶ the next secret    where another attempt was made in between

A claim is a hash: whoever reads it can tell that a writer is the one who made an attempt, and
cannot say that he is that writer.
"""

from __future__ import annotations

import hashlib
from typing import Final

__all__ = ["SECRET_BYTES", "claim_of", "heir_of", "stored_claim"]

SECRET_BYTES: Final = 16
_CLAIM_BYTES: Final = 32


def claim_of(secret: bytes) -> bytes:
    """What a store keeps of a writer's secret; nothing of a writer that has none."""
    return hashlib.sha256(b"anchor claim " + secret).digest() if secret else b""


def heir_of(secret: bytes) -> bytes:
    """The secret under which a writer goes on behind another attempt, the same every time."""
    return hashlib.sha256(b"anchor heir " + secret).digest()[:SECRET_BYTES]


def stored_claim(kept: bytes) -> bytes:
    """The claim in a catalogue; older writers kept the secret itself there."""
    return kept if len(kept) == _CLAIM_BYTES else claim_of(kept)
