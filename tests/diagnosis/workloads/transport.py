"""A net that matches two sets of images: features, a learnt cost and Sinkhorn's iterations."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_PIXELS, _WIDE, _FEATURES = 64, 32, 16


class Linear(nn.Linear):
    """A linear layer, torch's or as a product and a sum."""

    way = "torch"

    def forward(self, x):
        """x, multiplied and moved."""
        if self.way == "product":
            return x @ self.weight.T + self.bias
        return super().forward(x)


class Encoder(nn.Module):
    """Features of length one, of each image by itself."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        layers = (
            Linear(_PIXELS, _WIDE),
            nn.LayerNorm(_WIDE),
            nn.GELU(),
            Linear(_WIDE, _FEATURES),
        )
        layers[0].way = layers[3].way = how.linear
        self.net = nn.ModuleList(layers) if how.lists else nn.Sequential(*layers)

    def forward(self, x):
        """Features (problem, image, feature)."""
        if self.how.lists:
            for layer in self.net:
                x = layer(x)
        else:
            x = self.net(x)
        x = x.to(self.net[0].weight.dtype)
        return functional.normalize(x, dim=2 if self.how.lengths == "features" else 1)


class Cost(nn.Module):
    """Squared distances in a learnt metric."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.metric = nn.Parameter(torch.eye(_FEATURES) + 0.1 * torch.randn(_FEATURES, _FEATURES))

    def forward(self, source, target):
        """What it costs to move each of the source to each of the target."""
        source, target = source @ self.metric, target @ self.metric
        if self.how.distances == "plain":
            return (source[:, :, None] - target[:, None]).square().sum(3)
        lengths = source.square().sum(2)[:, :, None] + target.square().sum(2)[:, None]
        return torch.baddbmm(lengths, source, target.transpose(1, 2), alpha=-2)


class Plan(nn.Module):
    """The entropic plan of a cost, with a bin on each side for what stays without a partner."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.bin = nn.Parameter(torch.tensor(1.0))

    def forward(self, cost):
        """The plan's logarithm (problem, source + 1, target + 1)."""
        how = self.how
        scores = -functional.pad(cost, (0, 1, 0, 1)) / how.eps
        bins = -self.bin / (how.eps if how.bins == "divided" else 1)
        outside = functional.pad(torch.zeros_like(cost), (0, 1, 0, 1), value=1.0)
        scores = scores + bins * outside
        rows, columns = self._mass(scores, 1), self._mass(scores, 2)
        if how.sinkhorn == "kernel":
            for _ in range(how.iterations):
                scores = scores - scores.logsumexp(2, keepdim=True) + rows[:, None]
                scores = scores - scores.logsumexp(1, keepdim=True) + columns
            return scores
        over = 1 if how.over == "partners" else 2
        u, v = torch.zeros_like(scores[:, :, 0]), torch.zeros_like(scores[:, 0])
        for _ in range(how.iterations):
            before = u
            u = rows - (scores + v[:, None]).logsumexp(2)
            known = u if how.waits else before
            v = columns - (scores + known[:, :, None]).logsumexp(over)
        return scores + u[:, :, None] + v[:, None]

    def _mass(self, scores, axis):
        """The logarithm of what each place of one side holds: a bin, as much as the other side."""
        own, other = scores.shape[axis] - 1, scores.shape[3 - axis] - 1
        mass = scores.new_full((own + 1,), -math.log(own + other))
        if self.how.slack:
            mass[-1] += math.log(other)
        return mass


class Transport(nn.Module):
    """Features of both sets, what matching them costs, and the plan."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.encoder, self.cost, self.plan = Encoder(how), Cost(how), Plan(how)
        if how.spare:
            self.drop = nn.Dropout(0.5)

    def forward(self, source, target):
        """The plan's logarithm."""
        source, target = self.encoder(source), self.encoder(target)
        with torch.autocast("cpu", enabled=False):
            cost = self.cost(source, target)
            if self.how.keeps == "all":
                return self.plan(cost)
            return checkpoint(self.plan, cost, use_reentrant=False)
