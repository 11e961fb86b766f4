"""Record Sharpness-Aware Minimization: two passes a step, kept apart, and a wrapper optimizer.

SAM (Foret et al., 2021) climbs to nearby weights where the loss is worst (`first_step`), takes the
gradient there, and applies it to the original weights (`second_step`, with the base optimizer).

    python examples/sam.py
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from digits import batches, load
from torch import nn

import anchorlib


class SAM(torch.optim.Optimizer):
    """A wrapper around `base_optimizer` that needs two forward+backward passes a step."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        base: type[torch.optim.Optimizer],
        rho: float = 0.05,
        **options: Any,
    ) -> None:
        super().__init__(parameters, {"rho": rho, **options})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        """Move the weights along the gradient, by a distance of rho."""
        length = self._gradient_norm()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["original"] = p.detach().clone()
                    p.add_(p.grad, alpha=group["rho"] / (length.item() + 1e-12))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        """Restore the weights, and step with the gradient of the moved weights."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.copy_(self.state[p]["original"])
        self.base_optimizer.step()
        self.zero_grad()

    def step(self, closure: Any = None) -> None:
        """Take both half steps; `closure` runs the second pass."""
        self.first_step()
        with torch.enable_grad():
            closure()
        self.second_step()

    def _gradient_norm(self) -> torch.Tensor:
        gradients = [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]
        return torch.stack([gradient.norm() for gradient in gradients]).norm()


def train(optimizer: SAM, model: nn.Module, steps: int, session: anchorlib.Session) -> None:
    """Train on digits, and record every tensor."""
    images, labels = load()
    session.watch(model, tensors="*", optimizer=optimizer)
    for x, y in batches(images, labels, size=64, seed=0)[:steps]:
        for finish in (optimizer.first_step, optimizer.second_step):
            loss = nn.functional.cross_entropy(model(x), y)
            anchorlib.anchor(loss, "loss")
            loss.backward()
            finish()


def check(run: anchorlib.Run, steps: int) -> None:
    """Check that the records of both passes are those that SAM must make."""
    weight, updated = run["2.weight@value"], run["2.weight@updated"]
    for step in range(1, steps):
        # A step starts from the weights that the last step left: SAM's move was undone.
        start = weight.at(step=step, pass_index=0).array
        assert np.array_equal(start, updated.at(step=step - 1).array)
        assert not np.array_equal(start, weight.at(step=step, pass_index=1).array)
    consumed, passes = run["2.weight@grad"], run["2.weight@pass_grad"]
    for step in range(steps):
        second = passes.at(step=step, pass_index=1).array
        assert np.array_equal(consumed.at(step=step).array, second)
    print(f"{steps} steps of two passes; each update used the second pass's gradient")


def main() -> None:
    """Train with SAM, then print and check what was recorded of both passes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--run", default="sam")
    parser.add_argument("--store")
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 64), nn.Tanh(), nn.Linear(64, 10))
    optimizer = SAM(model.parameters(), torch.optim.SGD, rho=0.05, lr=0.05, momentum=0.9)
    with anchorlib.start(options.run, store=options.store, overwrite=options.overwrite) as session:
        train(optimizer, model, options.steps, session)

    run = anchorlib.open_run(options.run, store=options.store)
    losses = run["loss@value"]
    for step, pass_index, loss in zip(
        losses.columns["step"], losses.columns["pass_index"], losses.values(), strict=True
    ):
        climbed = "  <- at the perturbed weights" if pass_index else ""
        print(f"step {step} pass {pass_index}: loss {loss:.6f}{climbed}")
    check(run, options.steps)


if __name__ == "__main__":
    main()
