"""An optimizer: LARS, whose weights are drawn back to slow ones every few steps (Lookahead)."""

from __future__ import annotations

import torch


class Lars(torch.optim.Optimizer):
    """Each tensor moves by a share of its own length; groups without `trusts` move by SGD.

    how: the training: which of the ways of its fields are taken.
    """

    def __init__(self, groups, how) -> None:
        options = {
            "lr": how.lr,
            "momentum": how.momentum,
            "weight_decay": how.weight_decay,
            "trusts": True,
        }
        super().__init__(groups, options)
        self.how, self.count = how, 0

    @torch.no_grad()
    def step(self, closure=None):
        """Move all weights."""
        self.count += 1
        meets = self.count % self.how.every == 0
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    self._move(one, group)
                    if meets:
                        self._meet(one)

    def _move(self, one, group):
        how, state, rate = self.how, self.state[one], group["lr"]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(one)
            state["slow"] = one if how.slow == "the same" else one.clone()
        trust = self._trust(one, group) if group["trusts"] else 1.0
        memory, decay = state["momentum_buffer"], group["weight_decay"]
        if how.moving == "parts":
            memory.mul_(group["momentum"]).add_(one.grad * trust)
            memory.add_(one * (decay * trust))
            one.sub_(memory * rate)
            return
        pull = one.grad + decay * one
        if how.rated == "before":
            memory.mul_(group["momentum"]).add_(rate * trust * pull)
            one.sub_(memory)
        else:
            memory.mul_(group["momentum"]).add_(trust * pull)
            one.add_(memory, alpha=-rate)

    def _trust(self, one, group):
        """The length of a tensor, by that of its gradient and decay."""
        how = self.how
        if how.lengths == "norm":
            size, slope = one.norm(), one.grad.norm()
        else:
            size, slope = (each.flatten().dot(each.flatten()).sqrt() for each in (one, one.grad))
        return how.trust * size / (slope + group["weight_decay"] * size + 1e-8)

    def _meet(self, one):
        """Draw the slow weights to the fast ones, which begin there again."""
        how, slow = self.how, self.state[one]["slow"]
        if how.meeting == "lerp":
            slow.lerp_(one, how.pull)
        else:
            slow.mul_(1 - how.pull).add_(how.pull * one)
        one.copy_(slow)
