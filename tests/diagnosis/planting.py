"""A layer whose formula can be swapped, and the witness that says where the swap first shows.

While everything up to the planted layer is bit-equal in both runs, what its old and its new formula
make of the same inputs is what the two runs record. So the first call at which the two differ is
where the runs part, whatever any comparison says; and formulas evaluated in float64 say how much
of the difference is mathematics and how much is rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from tests.diagnosis.formulas import REFERENCE, Change


@dataclass
class Here:
    """Where the training loop is."""

    step: int = 0
    pass_index: int = 0


@dataclass(frozen=True)
class Seen:
    """The first difference.

    mathematics: ‖new − old‖ / (‖old‖ eps) of the formulas in float64.
    rounding: the distances of the old and of the new formula from themselves in float64, added up.
    """

    step: int
    pass_index: int
    mathematics: float
    rounding: float


@dataclass
class Plant:
    """The formula that a layer computes.

    change: None: the layer's own formula, written as a custom Function.
    since: (step, pass) from which the change is in force.
    """

    kind: str
    change: Change | None
    here: Here
    since: tuple[int, int] = (0, 0)
    seen: Seen | None = field(default=None)

    @property
    def forward_changed(self) -> bool:
        """Whether the forward is changed at this step and pass."""
        return self._on and self.change is not None and self.change.forward is not None

    @property
    def gradient_changed(self) -> bool:
        """Whether a gradient is changed at this step and pass."""
        return self._on and self.change is not None and self.change.gradient is not None

    @property
    def _on(self) -> bool:
        return (self.here.step, self.here.pass_index) >= self.since

    def witness(self, old: Any, new: Any, given: tuple[torch.Tensor, ...], formulas: Any) -> None:
        """Note the first difference of two results."""
        if self.seen is not None or same_bits(old, new):
            return
        truth, other = (formula(*(x.double() for x in given)) for formula in formulas)
        eps = torch.finfo(old.dtype).eps
        self.seen = Seen(
            self.here.step,
            self.here.pass_index,
            distance(truth, other) / eps,
            (distance(truth, old) + distance(other, new)) / eps,
        )


class Planted(torch.autograd.Function):
    """The autograd Function of one layer, computed by its plant."""

    @staticmethod
    def forward(ctx, plant, *xs):
        """The layer's output."""
        old = REFERENCE[plant.kind]
        with torch.autocast("cpu", enabled=False):
            y = old(*xs)
            if plant.forward_changed:
                new = plant.change.forward(*xs)
                plant.witness(y, new, xs, (old, plant.change.forward))
                y = new
        ctx.plant = plant
        ctx.save_for_backward(*xs, y)
        return y

    @staticmethod
    def backward(ctx, g):
        """Its gradients: torch's own of the old formula, one of them swapped."""
        plant, (*xs, y) = ctx.plant, ctx.saved_tensors
        wanted = ctx.needs_input_grad[1:]
        grads = gradients(REFERENCE[plant.kind], xs, g, wanted)
        if plant.gradient_changed and wanted[plant.change.of]:
            of, new_of = plant.change.of, plant.change.gradient
            new = new_of(g, *xs, y)

            def old_of(g, *rest):
                return gradients(REFERENCE[plant.kind], rest[:-1], g, wanted)[of]

            # Both are formulas of what backward was given, y included.
            plant.witness(grads[of], new, (g, *xs, y), (old_of, new_of))
            grads[of] = new
        return None, *grads


def gradients(formula, xs, g, wanted):
    """torch's own gradients of a formula."""
    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        leaves = [x.detach().requires_grad_(want) for x, want in zip(xs, wanted, strict=True)]
        y = formula(*leaves)
        asked = [leaf for leaf, want in zip(leaves, wanted, strict=True) if want]
        found = iter(torch.autograd.grad(y, asked, g))
    return [next(found) if want else None for want in wanted]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors hold the same bits."""
    whole = torch.int32 if a.dtype == torch.float32 else torch.int16
    return torch.equal(a.contiguous().view(whole), b.contiguous().view(whole))


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """‖b − a‖ / ‖a‖ in float64."""
    length = a.double().norm().item()
    far = (b.double() - a.double()).norm().item()
    return far / length if length else float(far > 0)
