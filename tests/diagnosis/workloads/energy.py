"""The model of an energy: convolutions whose largest singular values are divided away."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

_CHANNELS = (1, 6, 8)
_WIDE = 16
_FIRST = 5
"""Power iterations before the training."""


class Bounded(nn.Module):
    """A layer whose weight is divided by its largest singular value, told by power iterations."""

    def __init__(self, how, *shape: int) -> None:
        super().__init__()
        self.how = how
        fan = torch.Size(shape[1:]).numel()
        self.weight = nn.Parameter(torch.randn(shape) / fan**0.5)
        self.bias = nn.Parameter(torch.randn(shape[0]) * 0.1)
        rows, columns = self._matrix().shape
        drawn = torch.randn(rows, generator=torch.Generator().manual_seed(rows))
        self.register_buffer("u", functional.normalize(drawn, dim=0))
        self.register_buffer("v", torch.zeros(columns))
        self.register_buffer("before", self.u.clone())
        for _ in range(_FIRST):
            self.settle()

    def _matrix(self):
        """The weight as a matrix of outputs and inputs."""
        weight = self.weight
        if self.how.rows == "inputs":
            weight = weight.transpose(0, 1)
        return weight.flatten(1)

    def _turned(self, before):
        """One power iteration: both singular vectors."""
        matrix = self._matrix()
        v = functional.normalize(matrix.T @ before, dim=0, eps=1e-12)
        return functional.normalize(matrix @ v, dim=0, eps=1e-12), v

    @torch.no_grad()
    def settle(self):
        """Come nearer to the singular vectors."""
        self.before.copy_(self.u)
        u, v = self._turned(self.u)
        self.u.copy_(u)
        self.v.copy_(v)

    def _largest(self):
        """The largest singular value, differentiable by the weight alone."""
        u, v = self.u.clone(), self.v.clone()
        if self.how.vectors == "attached":
            u, v = self._turned(self.before.clone())
        if self.how.largest == "norm":
            return (self._matrix() @ v).norm()
        if self.how.largest == "outer":
            return (self._matrix() * torch.outer(u, v)).sum()
        return u @ (self._matrix() @ v)

    def forward(self, x):
        """x, through the bounded layer."""
        if self.how.settles == "always":
            self.settle()
        largest = self._largest().to(self.weight.dtype)
        if self.how.divided == "weight":
            return self._bias(self._product(x, self.weight / largest))
        return self._bias(self._product(x, self.weight) / largest)

    def _product(self, x, weight):
        raise NotImplementedError

    def _bias(self, x):
        raise NotImplementedError


class Conv(Bounded):
    """A 3 × 3 convolution that halves the image."""

    def __init__(self, how, into: int, out: int) -> None:
        super().__init__(how, out, into, 3, 3)

    def _product(self, x, weight):
        if self.how.convolution == "torch":
            return functional.conv2d(x, weight, stride=2, padding=1)
        patches = functional.unfold(x, 3, padding=1, stride=2)
        return (weight.flatten(1) @ patches).unflatten(2, (x.shape[2] // 2, -1))

    def _bias(self, x):
        return x + self.bias[:, None, None]


class Linear(Bounded):
    """A linear layer."""

    def _product(self, x, weight):
        return functional.linear(x, weight)

    def _bias(self, x):
        return x + self.bias


class Act(nn.Module):
    """A number times its sigmoid."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """The activation."""
        if self.how.act == "torch":
            return functional.silu(x)
        return x / (1 + (-x).exp())


class Energy(nn.Module):
    """The energy of images, one number each."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.convs = nn.ModuleList(Conv(how, into, out) for into, out in pairwise(_CHANNELS))
        self.wide = Linear(how, _WIDE, 4 * _CHANNELS[-1])
        self.acts = nn.ModuleList(Act(how) for _ in range(3))
        self.told = Linear(how, 1, _WIDE)

    def layers(self):
        """The bounded layers."""
        return [*self.convs, self.wide, self.told]

    def forward(self, x):
        """The energies of images (sample, 8, 8)."""
        x = x[:, None]
        for conv, act in zip(self.convs, self.acts, strict=False):
            x = act(conv(x))
        x = self.told(self.acts[2](self.wide(x.flatten(1))))[:, 0]
        return x * self.how.cold if self.how.heats == "multiplied" else x / self.how.cold
