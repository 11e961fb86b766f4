"""Ranks of one run among their peers: which of them leave the others, where, and by what.

outliers("run1").outliers       ranks that their peers contradict, each with its first such record
outliers("run1").missing        ranks of the job that recorded nothing

Columns alone are read: digests, counts and norms, never values.
"""

from anchorlib.peers.outlier import Early, Outlier, RankAnswer
from anchorlib.peers.question import outliers
from anchorlib.peers.wording import outlier_text, ranks_text

__all__ = ["Early", "Outlier", "RankAnswer", "outlier_text", "outliers", "ranks_text"]
