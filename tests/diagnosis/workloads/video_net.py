"""A net for short clips: (2+1)D convolutions, channels shifted in time, attention to frames."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

_WIDTH, _FOLD = 8, 2
"""Channels, and how many of them each block shifts to the next frame, and as many to the last."""


class Spatial(nn.Conv3d):
    """A 3 × 3 convolution in each frame: of the whole clip, or of frames folded into the batch."""

    def __init__(self, how, into: int, stride: int) -> None:
        size, moved, edge = (1, 3, 3), (1, stride, stride), (0, 1, 1)
        super().__init__(into, _WIDTH, size, moved, edge, bias=False)
        self.how = how

    def forward(self, x):
        """x (clip, channel, frame, row, column), convolved."""
        if self.how.spatial == "clips":
            return super().forward(x)
        folded = x.transpose(1, 2).flatten(0, 1)
        y = functional.conv2d(folded, self.weight[:, :, 0], None, self.stride[1:], 1)
        if self.how.unfolds == "clips":
            return y.unflatten(0, (x.shape[0], x.shape[2])).transpose(1, 2)
        return y.unflatten(0, (x.shape[2], x.shape[0])).permute(1, 2, 0, 3, 4)


class Temporal(nn.Conv3d):
    """A convolution over 3 frames, torch's or as a sum of one product for each tap."""

    def __init__(self, how) -> None:
        super().__init__(_WIDTH, _WIDTH, (3, 1, 1), padding=(1, 0, 0), bias=False)
        self.how = how

    def forward(self, x):
        """x, convolved."""
        if self.how.temporal == "torch":
            return super().forward(x)
        before, now, after = self.weight.flatten(2).unbind(2)
        y = torch.einsum("oc,ncthw->nothw", now, x)
        y[:, :, 1:] += torch.einsum("oc,ncthw->nothw", before, x[:, :, :-1])
        y[:, :, :-1] += torch.einsum("oc,ncthw->nothw", after, x[:, :, 1:])
        return y


class Norm(nn.BatchNorm3d):
    """A batch norm, torch's or from the sums of values and of squares."""

    def __init__(self, how) -> None:
        super().__init__(_WIDTH)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "torch" or not self.training:
            return super().forward(x)
        count, sizes = x.numel() // x.shape[1], (1, -1, 1, 1, 1)
        wide = x.to(self.weight.dtype)
        mean = wide.sum((0, 2, 3, 4)) / count
        spread = wide.square().sum((0, 2, 3, 4)) / count - mean.square()
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(spread * (count / (count - 1)), self.momentum)
        scale = self.weight * (spread + self.eps).rsqrt()
        return wide * scale.view(sizes) + (self.bias - mean * scale).view(sizes)


class Shift(nn.Module):
    """Some channels from the frame before, some from the frame after; zeros beyond the ends."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """x, shifted."""
        first, second, rest = x.split((_FOLD, _FOLD, _WIDTH - 2 * _FOLD), 1)
        if self.how.shifting == "roll":
            return torch.cat((first.roll(1, 2), second.roll(-1, 2), rest), 1)
        first = functional.pad(first[:, :, :-1], (0, 0, 0, 0, 1, 0))
        return torch.cat((first, functional.pad(second[:, :, 1:], (0, 0, 0, 0, 0, 1)), rest), 1)


class Stem(nn.Module):
    """A convolution in space that halves the frames, then one in time."""

    def __init__(self, how, into: int = 1, stride: int = 2) -> None:
        super().__init__()
        self.spatial, self.temporal = Spatial(how, into, stride), Temporal(how)
        self.norm1, self.norm2 = Norm(how), Norm(how)
        self.act1, self.act2 = nn.SiLU(), nn.SiLU()

    def forward(self, x):
        """Features of the clip."""
        x = self.act1(self.norm1(self.spatial(x)))
        return self.act2(self.norm2(self.temporal(x)))


class Block(Stem):
    """Shifted channels, a convolution in space and one in time, added to what they were given."""

    def __init__(self, how) -> None:
        super().__init__(how, _WIDTH, 1)
        self.shift = Shift(how)

    def forward(self, x):
        """x, moved."""
        y = self.act1(self.norm1(self.spatial(self.shift(x))))
        return self.act2(x + self.norm2(self.temporal(y)))


class Pool(nn.Module):
    """Attention of one learnt query to the frames that were kept."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.query = nn.Parameter(torch.randn(_WIDTH))
        self.key, self.value = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x, kept):
        """One vector (clip, channel) of frames (clip, frame, channel)."""
        how = self.how
        kept = kept if how.masks else torch.ones_like(kept)
        key = self.key(x)
        if how.pooling == "torch":
            query = self.query.to(key.dtype).expand(len(x), 1, -1)
            mixed = functional.scaled_dot_product_attention(
                query, key, self.value(x), kept[:, None]
            )
            return mixed[:, 0]
        scores = (key * self.query).sum(-1) / math.sqrt(_WIDTH)
        weights = scores.masked_fill(~kept, -math.inf).softmax(1 if how.over == "frames" else 0)
        weights = (weights if how.learns else weights.detach())[:, None]
        if how.values == "last":
            return self.value((weights @ x)[:, 0])
        return (weights.to(key.dtype) @ self.value(x))[:, 0]


class Nesterov(torch.optim.Optimizer):
    """SGD with Nesterov momentum and decay, for many tensors at once, in one sum."""

    def __init__(self, groups, lr: float, momentum: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure=None):
        """One step: of the gradient, and of all those before it."""
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            ones = group["params"]
            grads = torch._foreach_add(
                [one.grad for one in ones], ones, alpha=group["weight_decay"]
            )
            for one in ones:
                self.state[one].setdefault("momentum_buffer", torch.zeros_like(one))
            held = [self.state[one]["momentum_buffer"] for one in ones]
            torch._foreach_mul_(held, momentum)
            torch._foreach_add_(ones, held, alpha=-lr * momentum)
            torch._foreach_add_(ones, grads, alpha=-lr * (1 + momentum))
            torch._foreach_add_(held, grads)


class Net(nn.Module):
    """A clip's logits."""

    def __init__(self, how, frames: int, classes: int) -> None:
        super().__init__()
        self.stem = Stem(how)
        self.blocks = nn.ModuleList(Block(how) for _ in range(2))
        self.times = nn.Embedding(frames, _WIDTH)
        self.pool, self.head = Pool(how), nn.Linear(_WIDTH, classes)

    def forward(self, x, kept):
        """Logits of clips (clip, 1, frame, row, column), of whose frames some are kept."""
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        x = x.mean((3, 4)).transpose(1, 2)
        x = x + self.times(torch.arange(x.shape[1], device=x.device))
        return self.head(self.pool(x, kept))
