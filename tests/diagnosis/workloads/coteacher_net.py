"""Two convolutional nets of one shape, each of which chooses what the other learns from."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

_CHANNELS = (1, 8, 16)


class Conv(nn.Conv2d):
    """A 3 × 3 convolution, torch's or as a product with patches."""

    def __init__(self, how, into: int, out: int) -> None:
        super().__init__(into, out, 3, padding=1, bias=False)
        self.how = how

    def forward(self, x):
        """The convolution."""
        if self.how.convolution == "torch":
            return super().forward(x)
        patches = functional.unfold(x, 3, padding=1)
        return (self.weight.flatten(1) @ patches).unflatten(2, x.shape[2:])


class Norm(nn.BatchNorm2d):
    """A batch norm, torch's or by its formula."""

    def __init__(self, how, width: int) -> None:
        super().__init__(width)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "torch" or not self.training:
            return super().forward(x)
        axes, sizes = (0, 2, 3), (1, -1, 1, 1)
        mean = x.mean(axes, keepdim=True)
        spread = (x - mean).square().mean(axes, keepdim=True)
        count = x.numel() // x.shape[1]
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean.flatten(), self.momentum)
            self.running_var.lerp_(spread.flatten() * (count / (count - 1)), self.momentum)
        x = (x - mean) / (spread + self.eps).sqrt()
        return x * self.weight.view(sizes) + self.bias.view(sizes)


class Pool(nn.Module):
    """The mean over all pixels."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """x (sample, channel, 4, 4), one number a channel."""
        x = x.flatten(2)
        return x.mean(2 if self.how.averages == "pixels" else 1)


class Net(nn.Module):
    """Two convolutions with norms, dropout of whole channels between them, and a head."""

    def __init__(self, how) -> None:
        super().__init__()
        widths = list(pairwise(_CHANNELS))
        self.convs = nn.ModuleList(Conv(how, into, out) for into, out in widths)
        self.norms = nn.ModuleList(Norm(how, out) for _, out in widths)
        self.acts = nn.ModuleList(nn.LeakyReLU(0.01) for _ in widths)
        self.shrink, self.drop = nn.MaxPool2d(2), nn.Dropout2d(how.dropout)
        self.pool, self.head = Pool(how), nn.Linear(_CHANNELS[-1], 10)
        for conv in self.convs:
            nn.init.kaiming_normal_(conv.weight, 0.01)

    def forward(self, x):
        """Logits of images (sample, 8, 8)."""
        x = self.acts[0](self.norms[0](self.convs[0](x[:, None])))
        x = self.drop(self.shrink(x))
        x = self.acts[1](self.norms[1](self.convs[1](x)))
        return self.head(self.pool(x))


class Peers(nn.Module):
    """Both nets; they differ by what they were drawn as."""

    def __init__(self, how) -> None:
        super().__init__()
        self.one, self.two = Net(how), Net(how)
        if how.alike:
            self.two.load_state_dict(self.one.state_dict())

    def forward(self, x):
        """The logits of either net."""
        return self.one(x), self.two(x)
