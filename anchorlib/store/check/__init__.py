"""What is stored, compared with its checksums; and what other readers see, made again."""

from anchorlib.store.check.audit import RankAudit
from anchorlib.store.check.documents import run_faults
from anchorlib.store.check.republishing import republish, unpublished

__all__ = [
    "RankAudit",
    "republish",
    "run_faults",
    "unpublished",
]
