"""Answers from what a store holds: pure numpy on what its readers yield."""

from anchorlib.query.histogram import TensorHistogram, gradients_first, pooled

__all__ = ["TensorHistogram", "gradients_first", "pooled"]
