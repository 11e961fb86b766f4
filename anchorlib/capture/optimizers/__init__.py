"""Watched optimizers: what a step consumed, changed and keeps, and what a GradScaler does to it."""

from anchorlib.capture.optimizers.optimizer import OptimizerWatch, StepHook, unwrap_all
from anchorlib.capture.optimizers.optimizer_watches import OptimizerWatches

__all__ = [
    "OptimizerWatch",
    "OptimizerWatches",
    "StepHook",
    "unwrap_all",
]
