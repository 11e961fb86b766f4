"""A small convolutional net that is adapted to tasks, and the rates that it is adapted by."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

_CHANNELS = 6


class Conv(nn.Conv2d):
    """A 3 × 3 convolution that halves the image, torch's or as a product with patches."""

    def __init__(self, how, into: int) -> None:
        mode = "reflect" if how.padding == "reflect" else "zeros"
        super().__init__(into, _CHANNELS, 3, stride=2, padding=1, bias=False, padding_mode=mode)
        self.how = how

    def forward(self, x):
        """The convolution."""
        if self.how.convolution == "torch":
            return super().forward(x)
        patches = functional.unfold(x, 3, padding=1, stride=2)
        return (self.weight.flatten(1) @ patches).unflatten(2, (x.shape[2] // 2, -1))


class Norm(nn.BatchNorm2d):
    """A batch norm, torch's or by its formula."""

    def __init__(self, how) -> None:
        super().__init__(_CHANNELS)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "torch":
            return super().forward(x)
        axes, sizes = (0, 2, 3), (1, -1, 1, 1)
        spread, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
        count = x.numel() // x.shape[1]
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean.flatten(), self.momentum)
            self.running_var.lerp_(spread.flatten() * (count / (count - 1)), self.momentum)
        x = (x - mean) * (spread + self.eps).rsqrt()
        return x * self.weight.view(sizes) + self.bias.view(sizes)


class Act(nn.Module):
    """The logarithm of one plus an exponential."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """The activation."""
        if self.how.act == "torch":
            return functional.softplus(x)
        return torch.logaddexp(x, torch.zeros_like(x))


class Head(nn.Linear):
    """A linear layer, torch's or by einsum."""

    way = "torch"

    def forward(self, x):
        """Logits."""
        if self.way == "einsum":
            return torch.einsum("ni,oi->no", x, self.weight) + self.bias
        return super().forward(x)


class Net(nn.Module):
    """Two convolutions with norms, and a head."""

    def __init__(self, how, ways: int) -> None:
        super().__init__()
        self.how = how
        self.convs = nn.ModuleList(Conv(how, into) for into in (1, _CHANNELS))
        self.norms = nn.ModuleList(Norm(how) for _ in range(2))
        self.acts = nn.ModuleList(Act(how) for _ in range(2))
        self.head = Head(4 * _CHANNELS, ways)
        self.head.way = how.linear

    def forward(self, x):
        """Logits of images (sample, 1, 8, 8)."""
        for conv, norm, act in zip(self.convs, self.norms, self.acts, strict=True):
            x = act(norm(conv(x)))
        logits = self.head(x.flatten(1))
        return logits.softmax(1) if self.how.softmax else logits


class Learner(nn.Module):
    """The net, and for each parameter the logarithms of the rates that it is adapted by."""

    def __init__(self, how, ways: int) -> None:
        super().__init__()
        self.net = Net(how, ways)
        self.rates = nn.ParameterDict(
            {
                f"net.{name}".replace(".", "_"): nn.Parameter(torch.full_like(one, how.inner))
                for name, one in self.net.named_parameters()
            }
        )

    def forward(self, x):
        """The net's logits."""
        return self.net(x)
