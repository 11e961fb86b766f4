"""The model of a verifier: a net that places digits on a sphere, and the angles to its classes."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

PLACES = 12
"""How many numbers place a digit."""


class Conv(nn.Conv2d):
    """A convolution without biases, torch's or as a product with patches."""

    way = "torch"

    def forward(self, x):
        """The convolution."""
        if self.way == "torch":
            return super().forward(x)
        high = (x.shape[2] - 1) // self.stride[0] + 1
        patches = functional.unfold(x, 3, padding=1, stride=self.stride)
        return (self.weight.flatten(1) @ patches).unflatten(2, (high, -1))


class Norm(nn.modules.batchnorm._BatchNorm):
    """A batch norm over all axes but the second, torch's or by its formula."""

    def __init__(self, how, size: int) -> None:
        super().__init__(size, how.bn_eps)
        self.way = how.norming

    def _check_input_dim(self, x) -> None:
        """Any number of axes will do."""

    def forward(self, x):
        """x, normed."""
        if self.way == "torch":
            return super().forward(x)
        axes = (0, *range(2, x.ndim))
        sizes = (1, -1, *(1 for _ in axes[1:]))
        wide = x.to(self.weight.dtype)
        mean, spread = self.running_mean, self.running_var
        if self.training:
            spread, mean = torch.var_mean(wide, axes, correction=0)
            count = x.numel() // x.shape[1]
            with torch.no_grad():
                self.num_batches_tracked += 1
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(spread * (count / (count - 1)), self.momentum)
        wide = (wide - mean.view(sizes)) * (spread + self.eps).rsqrt().view(sizes)
        return (wide * self.weight.view(sizes) + self.bias.view(sizes)).to(x.dtype)


class Act(nn.PReLU):
    """A rectifier whose slope below zero is learnt, torch's or as a difference of two."""

    way = "torch"

    def forward(self, x):
        """The activation."""
        if self.way == "torch":
            return super().forward(x)
        return x.relu() - self.weight.view(-1, 1, 1) * (-x).relu()


class Net(nn.Module):
    """Where each digit lies, before it is brought to the sphere."""

    def __init__(self, how) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            (
                Conv(1, 8, 3, padding=1, bias=False),
                Conv(8, 12, 3, stride=2, padding=1, bias=False),
            )
        )
        self.norms = nn.ModuleList(Norm(how, size) for size in (8, 12))
        self.acts = nn.ModuleList(Act(size) for size in (8, 12))
        for conv, act in zip(self.convs, self.acts, strict=True):
            conv.way, act.way = how.convolution, how.act
        self.place = nn.Linear(12 * 16, PLACES, bias=False)
        self.last = Norm(how, PLACES)
        self.last.bias.requires_grad_(how.moves)

    def forward(self, x):
        """The places (image, number)."""
        for conv, norm, act in zip(self.convs, self.norms, self.acts, strict=True):
            x = act(norm(conv(x)))
        return self.last(self.place(x.flatten(1)))


class Sphere(nn.Module):
    """Logits of classes: scaled cosines of angles, that of the right class enlarged by a margin."""

    def __init__(self, how, classes: int) -> None:
        super().__init__()
        self.how = how
        self.weight = nn.Parameter(torch.randn(classes, PLACES) * 0.3)

    def forward(self, x, labels):
        """The logits with the margin, and the cosines."""
        how = self.how
        x = self._unit(x, 1) if how.norms else x
        cosine = self._cosine(x, self._unit(self.weight, how.axis))
        moved = self._moved(cosine)
        if how.margins == "all":
            return how.sharp * moved, cosine
        right = functional.one_hot(labels, len(self.weight))
        if how.picks == "where":
            logits = torch.where(right.bool(), moved, cosine)
        elif how.picks == "product":
            right = right.to(x.dtype)
            logits = right * moved + (1 - right) * cosine
        else:
            own = labels[:, None]
            logits = cosine.scatter(1, own, moved.gather(1, own))
        return how.sharp * logits, cosine

    def _unit(self, x, axis):
        if self.how.unit == "torch":
            return functional.normalize(x, dim=axis)
        return x * (x * x).sum(axis, keepdim=True).rsqrt()

    def _cosine(self, x, weight):
        if self.how.cosines == "linear":
            return functional.linear(x, weight)
        return torch.einsum("ni,ci->nc", x, weight)

    def _moved(self, cosine):
        """The cosine of the angle and a margin; a line where the sum would pass half a turn."""
        how = self.how
        if how.kind == "cosine":
            return cosine - how.margin
        square = cosine if how.sine == "wrong" else cosine.square()
        margin = -how.margin if how.nears else how.margin
        if how.sine == "angle":
            moved = torch.cos(torch.acos(cosine) + margin)
        elif how.sine == "factors":
            sine = ((1 - cosine) * (1 + cosine)).sqrt()
            moved = math.cos(margin) * cosine - math.sin(margin) * sine
        else:
            sine = (1 - square).clamp(1e-9, 1).sqrt()
            moved = cosine * math.cos(margin) - sine * math.sin(margin)
        line = cosine - how.margin * math.sin(how.margin)
        return torch.where(cosine > math.cos(math.pi - how.margin), moved, line)


class Centres(nn.Module):
    """A learnt centre for each class, and how far digits lie from their own."""

    def __init__(self, how, classes: int) -> None:
        super().__init__()
        self.how = how
        self.weight = nn.Parameter(torch.randn(classes, PLACES))

    def forward(self, x, labels):
        """Squared distances of each digit to its centre."""
        how = self.how
        x = functional.normalize(x) if how.centred == "normed" else x
        if how.distances != "table":
            weight = self.weight
            if how.distances == "scaled":
                weight = weight / how.pull - (1 / how.pull - 1) * weight.detach()
            return (x - weight[labels]).square().sum(1)
        squares = x.square().sum(1, keepdim=True) + self.weight.square().sum(1)
        table = torch.addmm(squares, x, self.weight.T, alpha=-2)
        right = functional.one_hot(labels, len(self.weight))
        return (table * right).sum(1)


class Verifier(nn.Module):
    """The net, the classes' directions and their centres."""

    def __init__(self, how, classes: int) -> None:
        super().__init__()
        self.net, self.sphere, self.centres = Net(how), Sphere(how, classes), Centres(how, classes)

    def forward(self, x):
        """The places of images."""
        return self.net(x)
