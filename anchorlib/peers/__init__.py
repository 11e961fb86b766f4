"""Finds the ranks of a run that differ from the others, and says where and in what they differ.

outliers("run1").outliers       ranks that contradict the others, each with its first such record
outliers("run1").missing        ranks of the job that recorded nothing

Peers are ranks that should agree. Only stored digests, counts and norms are read, never values.
"""

from anchorlib.peers.outlier import Early, Outlier, RankAnswer
from anchorlib.peers.presence import missing_ranks
from anchorlib.peers.question import outliers
from anchorlib.peers.wording import outlier_text, ranks_text

__all__ = [
    "Early",
    "Outlier",
    "RankAnswer",
    "missing_ranks",
    "outlier_text",
    "outliers",
    "ranks_text",
]
