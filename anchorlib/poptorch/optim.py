"""PopTorch's optimizers: torch's, which accept the arguments that PopTorch adds.

Some of these arguments take effect: `max_grad_norm`, to which a model clips the norm of all
gradients before each update, and LAMB's `max_weight_norm` and `bias_correction`. Some values,
`bias_correction=False` of Adam and AdamW and `use_tf_variant=True` of RMSprop, are refused with
MisuseError, as torch cannot compute them. The other arguments (loss scaling, types of accumulators,
…) are for half-precision hardware; they are kept in `poptorch_arguments` and noted in the debug
log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch

from anchorlib.poptorch.errors import MisuseError

__all__ = ["LAMB", "SGD", "Adam", "AdamW", "RMSprop"]

_log = logging.getLogger("anchorlib")

_EXTRA = frozenset(
    {
        "accum_type",
        "bias_correction",
        "first_order_momentum_accum_type",
        "loss_scaling",
        "max_grad_norm",
        "max_weight_norm",
        "second_order_momentum_accum_type",
        "use_combined_accum",
        "use_tf_variant",
        "velocity_accum_type",
        "velocity_scaling",
    }
)


class _Extended(torch.optim.Optimizer):
    """A base class that removes PopTorch's arguments before torch's optimizer gets the others.

    Raises MisuseError where an argument has the value that `unavailable` has for its name.
    """

    heeded: ClassVar[frozenset[str]] = frozenset({"max_grad_norm"})
    # Arguments with values for which torch's class would make other updates than PopTorch.
    unavailable: ClassVar[Mapping[str, object]] = {}

    def __init__(self, params: Any, *args: Any, **kwargs: Any) -> None:
        extra = {name: kwargs.pop(name) for name in _EXTRA & kwargs.keys()}
        for name, value in self.unavailable.items():
            if extra.get(name) == value:
                raise MisuseError(f"{type(self).__name__}({name}={value}) is not available here")
        self.poptorch_arguments = extra
        norm = extra.get("max_grad_norm")
        self.max_grad_norm = float("inf") if norm is None else float(norm)
        unheeded = sorted(extra.keys() - self.heeded)
        if unheeded:
            _log.debug(
                "anchorlib: %s: %s not needed here", type(self).__name__, ", ".join(unheeded)
            )
        kwargs = {name: value for name, value in kwargs.items() if value is not None}
        super().__init__(params, *args, **kwargs)


class SGD(_Extended, torch.optim.SGD):
    """torch.optim.SGD, which accepts PopTorch's arguments too."""


class Adam(_Extended, torch.optim.Adam):
    """torch.optim.Adam, which accepts PopTorch's arguments too."""

    unavailable: ClassVar[Mapping[str, object]] = {"bias_correction": False}


class AdamW(_Extended, torch.optim.AdamW):
    """torch.optim.AdamW, which accepts PopTorch's arguments too."""

    unavailable: ClassVar[Mapping[str, object]] = {"bias_correction": False}


class RMSprop(_Extended, torch.optim.RMSprop):
    """torch.optim.RMSprop, which accepts PopTorch's arguments too."""

    unavailable: ClassVar[Mapping[str, object]] = {"use_tf_variant": True}


class _Lamb(torch.optim.Optimizer):
    """Layer-wise adaptive moments (You et al., 2020): Adam's step, scaled to the weights' norm."""

    max_weight_norm = float("inf")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        bias_correction: bool = True,  # noqa: FBT001, FBT002  # PopTorch's argument
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient.

        Returns what `closure` returns; None if there is no closure.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, weight: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(weight)
            state["exp_avg_sq"] = torch.zeros_like(weight)
        first, second = group["betas"]
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        state["step"] += 1
        mean.lerp_(gradient, 1 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        if group["bias_correction"]:
            number = state["step"].item()
            mean, square = mean / (1 - first**number), square / (1 - second**number)
        change = mean / (square.sqrt() + group["eps"]) + group["weight_decay"] * weight
        lengths = weight.norm().clamp(max=self.max_weight_norm), change.norm()
        ratio = lengths[0] / lengths[1] if all(length > 0 for length in lengths) else 1.0
        weight.sub_(change * ratio, alpha=group["lr"])


class LAMB(_Extended, _Lamb):
    """Layer-wise adaptive moments, with PopTorch's arguments.

    A step is scaled to the norm of the weights, or to `max_weight_norm` where that is smaller.
    """

    heeded = frozenset({"max_grad_norm", "max_weight_norm", "bias_correction"})

    def __init__(self, params: Any, *args: Any, **kwargs: Any) -> None:
        correct = kwargs.get("bias_correction")
        super().__init__(params, *args, **kwargs)
        for group in self.param_groups:
            group["bias_correction"] = True if correct is None else correct
        self.max_weight_norm = float(self.poptorch_arguments.get("max_weight_norm") or "inf")
