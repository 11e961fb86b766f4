"""Private names of optimizers and of GradScaler: hooks around a step, and the loss scale."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from anchorlib.torch_private.door import is_a, private

__all__ = ["global_step_hooks", "scale_of", "step_pre_hooks"]

# -- hooks

_STEPS: Final = "torch's count of hooks grows by one with each session"
_after_steps: Any = private(
    "torch.optim.optimizer._global_optimizer_post_hooks",
    "registers a hook after each step of any optimizer without changing torch's count of hooks",
    _STEPS,
    kind=is_a(dict),
)
_before_steps: Any = private(
    "torch.optim.optimizer._global_optimizer_pre_hooks",
    "registers a hook before each step of any optimizer",
    _STEPS,
    kind=is_a(dict),
)


def global_step_hooks(*, before: bool) -> Any:
    """Return torch's own dict, by key, of the hooks that run with each step of any optimizer.

    before: True for the hooks that run before a step, False for those that run after it. Returns
    None where this torch lacks the dict.
    """
    return _before_steps if before else _after_steps


def _says_dict(annotation: object) -> bool:
    return "dict[" in str(annotation).lower()


_one_optimizers: Any = private(
    "torch.optim.Optimizer._optimizer_step_pre_hooks",
    "registers a hook before a step of one optimizer, after all hooks of the user's",
    "an optimizer that is saved whole while it is watched contains a hook that does nothing",
    probe=lambda: Optimizer.__annotations__.get("_optimizer_step_pre_hooks"),
    kind=_says_dict,
)


def step_pre_hooks(optimizer: Optimizer) -> Any:
    """Return the dict of hooks that run before a step of `optimizer`; None if torch lacks it."""
    return None if _one_optimizers is None else optimizer._optimizer_step_pre_hooks


# -- GradScaler

_SCALE: Final = "_scale"
private(
    f"torch.amp.GradScaler.{_SCALE}",
    "the loss scale of gradients, without waiting for the accelerator",
    "the loss scale of gradients is not recorded",
    probe=lambda: _SCALE in vars(GradScaler("cpu", enabled=True)) or None,
    kind=is_a(bool),
)


def scale_of(scaler: GradScaler) -> torch.Tensor | None:
    """Return the loss scale of `scaler`; None before its first use, or where torch moved it."""
    scale = getattr(scaler, _SCALE, None)
    return scale if isinstance(scale, torch.Tensor) else None
