"""A wide residual net, its teacher, and the weak and strong views of images that both see."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

CLASSES = 10
_STEM, _WIDTHS, _STRIDES = 8, (16, 24, 32), (1, 2, 2)
_SLOPE = 0.1
_TURN, _HOLE = math.pi / 6, 3


class Norm(nn.BatchNorm2d):
    """A batch norm, torch's or by its formula."""

    def __init__(self, how, channels: int) -> None:
        super().__init__(channels)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "torch":
            return super().forward(x)
        if not self.training:
            return self._scaled(x, self.running_mean, self.running_var)
        spread, mean = torch.var_mean(x, (0, 2, 3), correction=0)
        count = x.numel() // x.shape[1]
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(spread * (count / (count - 1)), self.momentum)
        return self._scaled(x, mean, spread)

    def _scaled(self, x, mean, spread):
        """x times one number a channel, plus another."""
        scale = self.weight * (spread + self.eps).rsqrt()
        shift = self.bias - mean * scale
        return x * scale[:, None, None] + shift[:, None, None]


class Block(nn.Module):
    """Norm, activation and convolution, twice, beside a shortcut of what was activated first."""

    def __init__(self, how, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.how = how
        self.norm1, self.norm2 = Norm(how, into), Norm(how, out)
        self.act1, self.act2 = nn.LeakyReLU(_SLOPE), nn.LeakyReLU(_SLOPE)
        self.conv1 = nn.Conv2d(into, out, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(into, out, 1, stride, bias=False)

    def forward(self, x):
        """Features of the next size."""
        active = self.act1(self.norm1(x))
        beside = self.shortcut(active if self.how.activates else x)
        return beside + self.conv2(self.act2(self.norm2(self.conv1(active))))


class Head(nn.Linear):
    """Classes of features: of their mean over all places, or place by place before the mean."""

    def __init__(self, how) -> None:
        super().__init__(_WIDTHS[-1], CLASSES)
        self.how = how

    def forward(self, x):
        """Logits."""
        if self.how.pools == "features":
            return super().forward(functional.adaptive_avg_pool2d(x, 1).flatten(1))
        return functional.conv2d(x, self.weight[:, :, None, None], self.bias).mean((2, 3))


class WideNet(nn.Module):
    """A wide residual net of ten layers."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.stem = nn.Conv2d(1, _STEM, 3, padding=1, bias=False)
        sizes = zip((_STEM, *_WIDTHS[:-1]), _WIDTHS, _STRIDES, strict=True)
        self.blocks = nn.ModuleList(Block(how, *size) for size in sizes)
        self.norm, self.act = Norm(how, _WIDTHS[-1]), nn.LeakyReLU(_SLOPE)
        self.head = Head(how)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, _SLOPE, "fan_out", "leaky_relu")
        nn.init.xavier_normal_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x):
        """Logits of images (sample, 1, 8, 8)."""
        x = self.stem(x)
        for block in self.blocks:
            if self.how.keeps == "all" or not torch.is_grad_enabled():
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.act(self.norm(x)))


class Teacher(nn.Module):
    """The mean of a student's weights, whose classes are aligned to be equally frequent."""

    def __init__(self, how, student: nn.Module) -> None:
        super().__init__()
        self.how = how
        self.net = copy.deepcopy(student)
        self.register_buffer("frequency", torch.full((CLASSES,), 1 / CLASSES))
        self.requires_grad_(False).eval()

    def forward(self, x):
        """Probabilities of the classes of weak views."""
        how = self.how
        with torch.autocast("cpu", torch.bfloat16, enabled=how.low):
            logits = self.net(x)
        logits = logits.to(self.frequency.dtype)
        chances = logits.softmax(1)
        self.frequency.lerp_(chances.mean(0), 0.1)
        if how.aligning == "logits":
            return (logits - (CLASSES * self.frequency).log()).softmax(1)
        aligned = chances * (1 / CLASSES / self.frequency)
        return aligned / aligned.sum(1, keepdim=True) if how.renorms else aligned

    @torch.no_grad()
    def follow(self, student: nn.Module, step: int) -> None:
        """Come nearer to the student, slower from step to step; take its statistics over."""
        how = self.how
        keep = min(how.inertia, (1 + step) / (10 + step))
        keep = keep if how.follows == "student" else 1 - keep
        mine, its = list(self.net.parameters()), list(student.parameters())
        if how.averaging == "foreach":
            torch._foreach_lerp_(mine, its, 1 - keep)
        else:
            for old, new in zip(mine, its, strict=True):
                old.mul_(keep).add_(new, alpha=1 - keep)
        if how.copies:
            for old, new in zip(self.net.buffers(), student.buffers(), strict=True):
                old.copy_(new)


def weak(images):
    """Images (sample, 8, 8), moved by up to one pixel."""
    count, high, wide = images.shape
    rows, columns = torch.randint(0, 3, (2, count, 1))
    rows, columns = rows + torch.arange(high), columns + torch.arange(wide)
    padded = functional.pad(images[:, None], (1, 1, 1, 1), mode="reflect")[:, 0]
    return padded[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None]]


def strong(images):
    """Weak views, turned and zoomed, with other contrast and brightness, and with a hole."""
    count, high, wide = images.shape
    turn, zoom, contrast, brightness = 2 * torch.rand(4, count) - 1
    turn, zoom = turn * _TURN, 1 + 0.2 * zoom
    zeros = torch.zeros(count)
    matrix = torch.stack((turn.cos(), -turn.sin(), zeros, turn.sin(), turn.cos(), zeros), 1)
    matrix = matrix.view(count, 2, 3) * zoom[:, None, None]
    grid = functional.affine_grid(matrix, [count, 1, high, wide], align_corners=False)
    seen = functional.grid_sample(
        images[:, None], grid, padding_mode="border", align_corners=False
    )[:, 0]
    middle = seen.mean((1, 2), keepdim=True)
    seen = middle + (seen - middle) * (1 + 0.4 * contrast)[:, None, None]
    seen = (seen + 0.3 * brightness[:, None, None]).clamp(-1, 1)
    top, left = torch.randint(0, high - _HOLE + 1, (2, count, 1))
    inside = [
        (at >= edge) & (at < edge + _HOLE)
        for at, edge in ((torch.arange(high), top), (torch.arange(wide), left))
    ]
    return seen.masked_fill(inside[0][:, :, None] & inside[1][:, None], 0.0)


def interleaved(x, size: int):
    """Samples of each part of the batch, by turns."""
    return x.unflatten(0, (-1, size)).transpose(0, 1).flatten(0, 1)


def parted(x, size: int):
    """Undo `interleaved`."""
    return x.unflatten(0, (size, -1)).transpose(0, 1).flatten(0, 1)
