"""Answers from what a store holds: pure functions on what its readers yield."""

from anchorlib.query.ancestry import Ancestry, Link
from anchorlib.query.histogram import TensorHistogram, gradients_first, pooled
from anchorlib.query.lineage import Lineage, StepLineage

__all__ = [
    "Ancestry",
    "Lineage",
    "Link",
    "StepLineage",
    "TensorHistogram",
    "gradients_first",
    "pooled",
]
