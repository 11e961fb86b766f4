"""Who may continue a rank: the writer that knows its secret, of which a store keeps only a hash.

    secret ─claim_of─▶ claim          in the store, for all who read it
       └─heir_of─▶ the next secret    where another attempt was made in between

The hash is called the claim. Whoever reads a claim can check that a writer made an attempt, but
cannot pretend to be that writer.
"""

from __future__ import annotations

import hashlib
from typing import Final

__all__ = ["SECRET_BYTES", "claim_of", "heir_of", "stored_claim"]

SECRET_BYTES: Final = 16
_CLAIM_BYTES: Final = 32


def claim_of(secret: bytes) -> bytes:
    """The claim that a store keeps of a writer's secret; empty for a writer without a secret."""
    return hashlib.sha256(b"anchor claim " + secret).digest() if secret else b""


def heir_of(secret: bytes) -> bytes:
    """The secret of the writer that continues behind the attempt of `secret`.

    It is derived from `secret`, so that an interrupted delivery goes on under the same claim.
    """
    return hashlib.sha256(b"anchor heir " + secret).digest()[:SECRET_BYTES]


def stored_claim(kept: bytes) -> bytes:
    """The claim in a catalogue's entry `kept`; older versions stored the secret itself there."""
    return kept if len(kept) == _CLAIM_BYTES else claim_of(kept)
