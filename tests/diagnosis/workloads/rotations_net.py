"""RotatE, which scores facts by how far relations' rotations are off, and an Adam of its own."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

ENTITIES, RELATIONS = 32, 4
WIDTH, MARGIN = 8, 6.0
RANGE = (MARGIN + 2) / WIDTH
"""Embeddings begin between minus and plus this, and phases are multiples of it."""


class Own(torch.optim.Optimizer):
    """Adam, whose corrections of both moments are parts of the rate and of eps."""

    @torch.no_grad()
    def step(self, closure=None):
        """Update."""
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    self._update(one, self.state[one], group)

    def _update(self, one, state, group):
        first, second = group["betas"]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(one), torch.zeros_like(one)
        state["step"] += 1
        time = state["step"].item()
        state["exp_avg"].mul_(first).add_(one.grad, alpha=1 - first)
        state["exp_avg_sq"].mul_(second).add_(one.grad.square(), alpha=1 - second)
        root = math.sqrt(1 - second**time)
        rate = group["lr"] * root / (1 - first**time)
        one.sub_(rate * state["exp_avg"] / (state["exp_avg_sq"].sqrt() + group["eps"] * root))


class Phases(nn.Module):
    """The cosines and sines of relations' angles; inverse relations come behind the others."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how, self.table = how, None
        self.rows = nn.Embedding(2 * RELATIONS, WIDTH)
        nn.init.uniform_(self.rows.weight, -RANGE, RANGE)

    def forward(self, relations, inverse):
        """Cosines and sines."""
        rows = relations + RELATIONS * inverse if self.how.apart else relations
        if self.how.caches:
            if not torch.is_grad_enabled():
                self.table = _turns(self.rows.weight)
            if self.table is not None:
                return tuple(functional.embedding(rows, one) for one in self.table)
        if self.how.angles == "table":
            return tuple(functional.embedding(rows, one) for one in _turns(self.rows.weight))
        return _turns(self.rows(rows))


class Rotation(nn.Module):
    """The product of two complex numbers."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, real, imaginary, cos, sin):
        """Both parts of the product."""
        if self.how.numbers == "complex":
            return torch.complex(real, imaginary) * torch.complex(cos, sin)
        if self.how.product == "sign":
            return real * cos - imaginary * sin, real * sin - imaginary * cos
        return real * cos - imaginary * sin, real * sin + imaginary * cos


class Distance(nn.Module):
    """The margin, less the sum of the absolute values of what lies between complex vectors."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, one, other):
        """Scores."""
        if self.how.numbers == "complex":
            far = (one - torch.complex(*other)).abs().sum(-1)
        else:
            between = [a - b for a, b in zip(one, other, strict=True)]
            far = torch.stack(between).norm(dim=0).sum(-1)
        return MARGIN - far if self.how.margin == "model" else -far


class Rotate(nn.Module):
    """Scores of candidates for the other end of facts (RotatE)."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.entities = nn.Embedding(ENTITIES, 2 * WIDTH)
        nn.init.uniform_(self.entities.weight, -RANGE, RANGE)
        self.phases, self.rotation, self.distance = Phases(how), Rotation(how), Distance(how)

    def forward(self, known, relations, inverse, candidates):
        """Scores (fact, candidate)."""
        turns = [one[:, None] for one in self.phases(relations, inverse)]
        ends = self.entities(known[:, None]), self.entities(candidates)
        if self.how.keeps == "all" or not torch.is_grad_enabled():
            return self._scores(*ends, *turns)
        return checkpoint(self._scores, *ends, *turns, use_reentrant=False)

    def _scores(self, known, candidates, cos, sin):
        known, candidates = known.chunk(2, -1), candidates.chunk(2, -1)
        if self.how.turns == "known":
            return self.distance(self.rotation(*known, cos, sin), candidates)
        return self.distance(self.rotation(*candidates, cos, -sin), known)


def _turns(rows):
    angles = rows * (math.pi / RANGE)
    return angles.cos(), angles.sin()
