"""Compares a stored run with its checksums, and rewrites the files that other zarr readers need."""

from anchorlib.store.check.audit import RankAudit
from anchorlib.store.check.documents import run_faults
from anchorlib.store.check.republishing import republish, unpublished

__all__ = [
    "RankAudit",
    "republish",
    "run_faults",
    "unpublished",
]
