"""A net that repaints images, and a frozen net whose features say how an image looks."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_NARROW, _WIDE = 6, 10
_SEEN, _DEEP = 6, 8


class Conv(nn.Conv2d):
    """A 3 × 3 convolution with reflected edges, torch's or as a product with patches.

    What is painted alone has a bias: all others are normed.
    """

    def __init__(self, how, into: int, out: int, stride: int = 1) -> None:
        mode = "zeros" if how.padding == "zeros" else "reflect"
        super().__init__(into, out, 3, stride=stride, padding=1, padding_mode=mode, bias=out == 1)
        self.how = how

    def forward(self, x):
        """The convolution."""
        if self.how.padding == "apart":
            x = functional.pad(x, (1, 1, 1, 1), mode="reflect")
            return functional.conv2d(x, self.weight, self.bias, self.stride)
        if self.how.convolution == "torch":
            return super().forward(x)
        size = x.shape[2] // self.stride[0]
        x = functional.pad(x, (1, 1, 1, 1), mode="reflect")
        patches = functional.unfold(x, 3, stride=self.stride)
        found = (self.weight.flatten(1) @ patches).unflatten(2, (size, -1))
        return found if self.bias is None else found + self.bias.view(-1, 1, 1)


class Norm(nn.InstanceNorm2d):
    """A norm of each channel of each image, torch's, as a group norm, or by its formula."""

    def __init__(self, how, channels: int) -> None:
        super().__init__(channels, eps=how.norm_eps, affine=True)
        self.how = how

    def forward(self, x):
        """x, normed."""
        how = self.how
        if how.norming == "groups":
            return functional.group_norm(x, x.shape[1], self.weight, self.bias, self.eps)
        if how.norming == "torch" and how.over == "places":
            return super().forward(x)
        axes = (2, 3) if how.over == "places" else (0, 2, 3)
        wide = x.to(self.weight.dtype)
        spread, mean = torch.var_mean(wide, axes, correction=0, keepdim=True)
        wide = (wide - mean) * (spread + self.eps).rsqrt()
        return wide * self.weight.view(-1, 1, 1) + self.bias.view(-1, 1, 1)


class Residual(nn.Module):
    """Two convolutions, added to what they were given, and bent."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.conv1, self.conv2 = Conv(how, _WIDE, _WIDE), Conv(how, _WIDE, _WIDE)
        self.norm1, self.norm2 = Norm(how, _WIDE), Norm(how, _WIDE)

    def forward(self, x):
        """x, moved."""
        moved = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return (x + moved if self.how.adds else moved).relu()


class Enlarge(nn.Module):
    """Twice as many rows and columns."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """x, enlarged."""
        if self.how.enlarges == "bilinear":
            return functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        return functional.interpolate(x, scale_factor=2, mode="nearest")


class Painter(nn.Module):
    """Smaller, around, larger again."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.first, self.down = Conv(how, 1, _NARROW), Conv(how, _NARROW, _WIDE, 2)
        self.norms = nn.ModuleList(Norm(how, size) for size in (_NARROW, _WIDE, _NARROW))
        self.around = nn.ModuleList(Residual(how) for _ in range(2))
        self.enlarge = Enlarge(how)
        self.up, self.last = Conv(how, _WIDE, _NARROW), Conv(how, _NARROW, 1)

    def forward(self, x):
        """x (sample, 1, row, column), repainted, in -1 to 1."""
        x = self.norms[0](self.first(x)).relu()
        x = self.norms[1](self.down(x)).relu()
        for block in self.around:
            x = block(x) if self.how.keeps == "all" else checkpoint(block, x, use_reentrant=False)
        x = self.norms[2](self.up(self.enlarge(x))).relu()
        x = self.last(x)
        return x.tanh() if self.how.bounds == "tanh" else x.sigmoid()


class Rest(nn.BatchNorm2d):
    """A batch norm, torch's or, at rest, as a factor and a summand of each channel."""

    how = None

    def forward(self, x):
        """x, normed."""
        if self.how is None or self.how.resting == "torch" or self.training:
            return super().forward(x)
        factor = self.weight * (self.running_var + self.eps).rsqrt()
        summand = self.bias - self.running_mean * factor
        return x * factor.view(-1, 1, 1) + summand.view(-1, 1, 1)


class Features(nn.Module):
    """What an image looks like, at two sizes; it is trained to tell digits before it is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.how = None
        self.register_buffer("mean", torch.tensor(-0.4))
        self.register_buffer("spread", torch.tensor(0.75))
        self.fine, self.coarse = nn.Conv2d(1, _SEEN, 3, padding=1), nn.Conv2d(_SEEN, _DEEP, 3, 2, 1)
        self.norm1, self.norm2 = Rest(_SEEN), Rest(_DEEP)

    def forward(self, x):
        """Fine and coarse features of images (sample, 1, row, column)."""
        x = self._standard(x)
        fine = self.norm1(self.fine(x)).relu()
        return fine, self.norm2(self.coarse(fine)).relu()

    def _standard(self, x):
        how = "rightly" if self.how is None else self.how.standard
        if how == "exchanged":
            return (x - self.spread) / self.mean
        return x if how == "no" else (x - self.mean) / self.spread


def taught(seed: int, images, labels) -> Features:
    """Features that were trained a little."""
    torch.manual_seed(500 + seed)
    features = Features()
    head = nn.Linear(_DEEP * 16, 10)
    optimizer = torch.optim.SGD([*features.parameters(), *head.parameters()], lr=0.1)
    for step in range(6):
        chosen = slice(64 * step, 64 * step + 64)
        logits = head(features(images[chosen, None])[1].flatten(1))
        optimizer.zero_grad()
        functional.cross_entropy(logits, labels[chosen]).backward()
        optimizer.step()
    optimizer.zero_grad()
    return features


class Look(nn.Module):
    """The painter, and the features that judge it."""

    def __init__(self, how, features) -> None:
        super().__init__()
        self.painter, self.features = Painter(how), features
        features.how = features.norm1.how = features.norm2.how = how

    def forward(self, x):
        """x, repainted."""
        return self.painter(x)
