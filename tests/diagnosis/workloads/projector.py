"""A small convolutional encoder of digits, a projector with batch norms, and a probe beside it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

_CHANNELS, _WIDE = (6, 8), 16
SIZE = 12
"""Numbers of an embedding."""


class Conv(nn.Conv2d):
    """A 3 × 3 convolution that halves the image, torch's or as a product with patches."""

    def __init__(self, how, into: int, out: int) -> None:
        super().__init__(into, out, 3, stride=2, padding=1, bias=False)
        self.how = how

    def forward(self, x):
        """The convolution."""
        if self.how.convolution == "torch":
            return super().forward(x)
        patches = functional.unfold(x, 3, padding=1, stride=2)
        return (self.weight.flatten(1) @ patches).unflatten(2, (x.shape[2] // 2, -1))


class Norm(nn.BatchNorm1d):
    """A batch norm of features, torch's or by its formula."""

    def __init__(self, how, features: int) -> None:
        super().__init__(features)
        self.how = how

    def forward(self, x):
        """x (sample, feature), normed."""
        if self.how.norming == "torch" or not self.training:
            return super().forward(x)
        wide = x.to(self.weight.dtype)
        spread, mean = torch.var_mean(wide, 0, correction=0)
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(spread * (len(x) / (len(x) - 1)), self.momentum)
        return (wide - mean) * (spread + self.eps).rsqrt() * self.weight + self.bias


class Encoder(nn.Module):
    """Two convolutions with batch norms."""

    def __init__(self, how) -> None:
        super().__init__()
        sizes = (1, *_CHANNELS)
        self.convs = nn.ModuleList(Conv(how, *sizes[at : at + 2]) for at in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(size) for size in _CHANNELS)
        self.acts = nn.ModuleList(nn.ReLU() for _ in _CHANNELS)
        for conv in self.convs:
            nn.init.kaiming_normal_(conv.weight, mode=how.fan, nonlinearity="relu")

    def forward(self, x):
        """The features of images (sample, 1, 8, 8)."""
        for conv, norm, act in zip(self.convs, self.norms, self.acts, strict=True):
            x = act(norm(conv(x)))
        return x.flatten(1)


class Projector(nn.Module):
    """Two layers, the first with a batch norm."""

    def __init__(self, how, into: int) -> None:
        super().__init__()
        self.how = how
        self.up = nn.Linear(into, _WIDE, bias=False)
        self.norm, self.act = Norm(how, _WIDE), nn.ReLU()
        self.down = nn.Linear(_WIDE, SIZE, bias=False)

    def forward(self, x):
        """The embeddings."""
        x = self.up(x)
        return self.down(self.act(self.norm(x) if self.how.normed else x))


class Twins(nn.Module):
    """An encoder and a projector for both views, and a probe that names digits."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.encoder = Encoder(how)
        self.projector = Projector(how, 4 * _CHANNELS[1])
        self.probe = nn.Linear(4 * _CHANNELS[1], 10)

    def forward(self, one, other):
        """The embeddings of both views, and logits of the first one's digits."""
        if self.how.passes == "apart":
            first, second = self.encoder(one), self.encoder(other)
            found = self.projector(first), self.projector(second)
        else:
            features = self.encoder(torch.cat((one, other)))
            first, _ = features.chunk(2)
            found = self.projector(features).chunk(2)
        return *found, self.probe(first.detach() if self.how.probes == "detached" else first)
