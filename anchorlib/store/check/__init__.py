"""A stored run compared with its checksums, and files for other zarr readers made anew."""

from anchorlib.store.check.audit import RankAudit
from anchorlib.store.check.documents import run_faults
from anchorlib.store.check.republishing import republish, unpublished

__all__ = [
    "RankAudit",
    "republish",
    "run_faults",
    "unpublished",
]
