"""A small convolutional net that tells how likely an image is above each of several ranks."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

_CHANNELS = 8, 12


class Norm(nn.BatchNorm2d):
    """A batch norm, torch's or by its formula."""

    def __init__(self, how, channels: int) -> None:
        super().__init__(channels)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "torch":
            return super().forward(x)
        spread, mean = self.running_var, self.running_mean
        if self.training:
            spread, mean = torch.var_mean(x, (0, 2, 3), correction=0)
            count = x.numel() // x.shape[1]
            with torch.no_grad():
                self.num_batches_tracked += 1
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(spread * (count / (count - 1)), self.momentum)
        factor = self.weight * (spread + self.eps).rsqrt()
        sizes = (1, -1, 1, 1)
        return x * factor.view(sizes) + (self.bias - mean * factor).view(sizes)


class Stage(nn.Module):
    """A convolution, its norm, and a relu."""

    def __init__(self, how, into: int, out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(into, out, 3, padding=1, bias=False)
        self.norm, self.act = Norm(how, out), nn.ReLU()

    def forward(self, x):
        """x, bent."""
        return self.act(self.norm(self.conv(x)))


class Drop(nn.Module):
    """Dropout by the function, which has to be told whether the net trains."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """x, some of it dropped."""
        training = self.training if self.how.rests else True
        return functional.dropout(x, self.how.dropout, training)


class Head(nn.Module):
    """Logits of being above each rank: a score less the rank's threshold.

    All ranks share the score's weights, so that nothing is likelier above a rank than above the
    one below it; only conditional ranks have a score each.
    """

    def __init__(self, how, width: int, ranks: int) -> None:
        super().__init__()
        self.how = how
        scores = 1 if how.tasks == "shared" else ranks
        self.weight = nn.Parameter(torch.randn(scores, width) / width**0.5)
        self.thresholds = nn.Parameter(torch.linspace(-1, 1, ranks))

    def forward(self, x):
        """The logits (sample, rank)."""
        if self.how.sharing == "one":
            weight = self.weight.expand(len(self.thresholds), -1)
            return functional.linear(x, weight, -self.thresholds)
        score = functional.linear(x, self.weight)
        return score - self.thresholds if self.how.lowers else score + self.thresholds


class Net(nn.Module):
    """Two stages, a pool, dropout and the head."""

    def __init__(self, how, ranks: int) -> None:
        super().__init__()
        self.how = how
        first, second = _CHANNELS
        self.stem, self.body = Stage(how, 1, first), Stage(how, first, second)
        self.shrink, self.pool = nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1)
        self.drop, self.head = Drop(how), Head(how, second, ranks)

    def forward(self, x):
        """Logits of images (sample, 1, 8, 8)."""
        x = self.pool(self.body(self.shrink(self.stem(x)))).flatten(1)
        logits = self.head(self.drop(x))
        return logits.sigmoid() if self.how.squashes else logits
