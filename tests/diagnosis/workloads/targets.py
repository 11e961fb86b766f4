"""A hypernetwork, and the small convolutional nets whose weights it tells, one for each task."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

TASKS, CLASSES = 4, 5
_CODE, _TRUNK = 8, 24
_CHANNELS, _TAPS, _POOLED, _HIDDEN = 6, 9, 24, 16
_RANK = 3


class Codes(nn.Embedding):
    """A learnt code for each task, looked up by torch or by indices."""

    def __init__(self, how) -> None:
        super().__init__(TASKS, _CODE)
        self.how = how

    def forward(self, tasks):
        """The codes of tasks."""
        return super().forward(tasks) if self.how.codes == "torch" else self.weight[tasks]


class Trunk(nn.Module):
    """What all weights are told from, of tasks' codes."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.first, self.second = nn.Linear(_CODE, _TRUNK), nn.Linear(_TRUNK, _TRUNK)
        self.drop = nn.Dropout(how.dropout)

    def forward(self, codes):
        """A vector for each task."""
        x = functional.silu(self.first(codes))
        return self.drop(functional.silu(self.second(x)))


class LowRank(nn.Module):
    """Weights (task, out, into) of low rank, to be added to those that all tasks share."""

    def __init__(self, how, out: int, into: int) -> None:
        super().__init__()
        self.how, self.out, self.into = how, out, into
        self.left, self.right = nn.Linear(_TRUNK, out * _RANK), nn.Linear(_TRUNK, _RANK * into)
        size = how.spread / math.sqrt(_TRUNK)
        for layer in (self.left, self.right):
            nn.init.normal_(layer.weight, std=size)
            nn.init.normal_(layer.bias, std=0.5)

    def forward(self, x):
        """Both factors, the first one made smaller by the rank."""
        left = self.left(x).unflatten(1, (self.out, _RANK))
        right = self.right(x).unflatten(1, (_RANK, self.into))
        return left / _RANK if self.how.ranked else left, right


class Standard(nn.Module):
    """Weights (task, out, into) of zero mean and one spread for each output."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, weight):
        """The weights, made smaller by the root of the inputs."""
        how, size = self.how, math.sqrt(weight.shape[-1])
        if how.standard == "layer norm":
            return functional.layer_norm(weight, weight.shape[-1:], eps=how.eps) / size
        if how.standard == "moments":
            mean = weight.mean(-1, keepdim=True)
            spread = weight.square().mean(-1, keepdim=True) - mean.square()
            return (weight - mean) * (spread + how.eps).rsqrt() / size
        axes = {"inputs": (-1,), "outputs": (-2,), "both": (-2, -1)}[how.standing]
        spread, mean = torch.var_mean(weight, axes, correction=0, keepdim=True)
        weight = weight - mean if how.centres else weight
        return weight / (spread + how.eps).sqrt() / size


class Convolution(nn.Module):
    """3 × 3 convolutions that halve images (task, sample, 8, 8), each task's by its weights."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, images, weight):
        """Channels (task, sample, channel, 4, 4)."""
        how = self.how
        if how.convolution == "patches":
            patches = functional.unfold(images.flatten(0, 1)[:, None], 3, padding=1, stride=2)
            patches = patches.unflatten(0, images.shape[:2])
            return torch.einsum("toi,tnip->tnop", weight, patches).unflatten(3, (4, 4))
        kernels = weight.unflatten(2, (1, 3, 3))
        if how.convolution == "grouped":
            kernels = kernels.flatten(0, 1)
            given = images.transpose(0, 1)
            found = functional.conv2d(given, kernels, stride=2, padding=1, groups=len(images))
            return found.unflatten(1, (len(images), -1)).transpose(0, 1)
        pairs = zip(images[:, :, None], kernels, strict=True)
        return torch.stack(
            [functional.conv2d(image, kernel, stride=2, padding=1) for image, kernel in pairs]
        )


class Norm(nn.Module):
    """A group norm without weights."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """x (task, sample, channel, 4, 4), normed."""
        flat = x.flatten(0, 1)
        return functional.group_norm(flat, self.how.groups).view(x.shape)


class Film(nn.Module):
    """Channels, each times a number and plus one, which tasks have of their own."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x, told):
        """x (task, sample, channel, 4, 4), modulated."""
        how = self.how
        told = told[:, None, :, None, None]
        factor, moved = told.chunk(2, 2) if how.halves == "factor first" else told.chunk(2, 2)[::-1]
        if how.film == "plain":
            return (1 + factor) * x + moved if how.ones else factor * x + moved
        return torch.addcmul(x + moved, factor, x)


class Hidden(nn.Module):
    """A linear layer, whose weights are shared ones and a product of low rank."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.shared = nn.Parameter(torch.randn(_HIDDEN, _POOLED) / math.sqrt(_POOLED))

    def forward(self, x, left, right):
        """x (task, sample, into), through the layer."""
        if self.how.hidden == "factors":
            return x @ self.shared.T + (x @ right.transpose(1, 2)) @ left.transpose(1, 2)
        weight = self.shared + left @ right
        return x @ weight.transpose(1, 2)


class Targets(nn.Module):
    """The nets of tasks, and the hypernetwork that tells their weights."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.codes, self.trunk = Codes(how), Trunk(how)
        self.kernels = LowRank(how, _CHANNELS, _TAPS)
        self.shared = nn.Parameter(torch.randn(_CHANNELS, _TAPS))
        self.standard, self.convolution = Standard(how), Convolution(how)
        self.norm, self.film = Norm(how), Film(how)
        self.modulation = nn.Linear(_TRUNK, 2 * _CHANNELS)
        self.factors, self.hidden = LowRank(how, _HIDDEN, _POOLED), Hidden(how)
        self.last = nn.Linear(_TRUNK, CLASSES * _HIDDEN)

    def forward(self, images, tasks):
        """Logits of images (task, sample, 8, 8), and the last weights."""
        how = self.how
        codes = self.codes(tasks)
        if how.keeps == "all" or not torch.is_grad_enabled():
            told = self.trunk(codes)
        else:
            told = checkpoint(self.trunk, codes, use_reentrant=False)
        left, right = self.kernels(told)
        x = self.convolution(images, self.standard(self.shared + left @ right))
        modulation = self.modulation(told.detach() if how.cuts else told)
        if how.film_at == "behind":
            x = self.film(self.norm(x), modulation)
        else:
            x = self.norm(self.film(x, modulation))
        x = functional.silu(x).unflatten(3, (2, 2)).unflatten(5, (2, 2)).mean((4, 6)).flatten(2)
        x = functional.silu(self.hidden(x, *self.factors(told)))
        last = self.last(told).unflatten(1, (CLASSES, _HIDDEN))
        return torch.einsum("tni,toi->tno", x, last), last
