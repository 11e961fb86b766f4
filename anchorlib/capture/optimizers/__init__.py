"""Watched optimizers: gradients, updates and state around their steps, with GradScaler's scales."""

from anchorlib.capture.optimizers.optimizer import OptimizerWatch, StepHook, unwrap_all
from anchorlib.capture.optimizers.optimizer_watches import OptimizerWatches

__all__ = [
    "OptimizerWatch",
    "OptimizerWatches",
    "StepHook",
    "unwrap_all",
]
