"""What `anchor verify` does, and `anchor repair` at its end: a run compared with its checksums."""

from anchor_cli.verification.outcome import Verification
from anchor_cli.verification.walk import verified

__all__ = [
    "Verification",
    "verified",
]
