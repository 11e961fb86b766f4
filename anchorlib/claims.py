"""Who may continue a rank: the writer that knows its secret, of which a store keeps only a hash.

    secret ─claim_of─▶ claim          in the store, for all who read it
       └─next_secret─▶ the next secret    of the writer that continues the rank in a new attempt

The hash is called the claim. A writer that reconnects presents its secret, and the store compares
the hash of the secret with the claim that it has kept. Whoever merely reads a claim cannot find the
secret, and so cannot pretend to be that writer.
"""

from __future__ import annotations

import hashlib
from typing import Final

__all__ = ["SECRET_BYTES", "claim_of", "next_secret", "stored_claim"]

SECRET_BYTES: Final = 16
_CLAIM_BYTES: Final = 32


def claim_of(secret: bytes) -> bytes:
    """Return the claim (SHA-256) of a writer's secret; empty for a writer without a secret."""
    return hashlib.sha256(b"anchor claim " + secret).digest() if secret else b""


def next_secret(secret: bytes) -> bytes:
    """Return the secret of the writer that continues a rank after the writer that has `secret`.

    The new secret is derived from `secret`, not random, so that a delivery that is interrupted and
    begun again has the same claim.
    """
    return hashlib.sha256(b"anchor heir " + secret).digest()[:SECRET_BYTES]


def stored_claim(kept: bytes) -> bytes:
    """Return the claim (SHA-256 of a writer's secret) that the bytes `kept` in a store stand for.

    Older versions stored the secret itself: its hash is computed here. Empty for no secret.
    """
    return kept if len(kept) == _CLAIM_BYTES else claim_of(kept)
