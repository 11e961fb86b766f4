"""A small residual net with one head a task, and the reservoir that earlier samples are kept in."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_WIDTHS = (8, 12)
_GROUPS = 4


class Norm(nn.GroupNorm):
    """A group norm, torch's or by its formula."""

    def __init__(self, how, channels: int) -> None:
        super().__init__(_GROUPS, channels)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "torch":
            return super().forward(x)
        grouped = x.to(self.weight.dtype).unflatten(1, (self.num_groups, -1))
        spread, mean = torch.var_mean(grouped, (2, 3, 4), correction=0, keepdim=True)
        normed = ((grouped - mean) * (spread + self.eps).rsqrt()).flatten(1, 2)
        return (normed * self.weight.view(-1, 1, 1) + self.bias.view(-1, 1, 1)).to(x.dtype)


class Block(nn.Module):
    """A residual block whose norms do not depend on the other samples of a batch."""

    def __init__(self, how, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(into, out, 3, stride, padding=1, bias=False)
        self.norm1 = Norm(how, out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.norm2 = Norm(how, out)
        self.shortcut = nn.Identity()
        if stride > 1:
            self.shortcut = nn.Conv2d(into, out, 1, stride, bias=False)

    def forward(self, x):
        """x, and what the block adds to it."""
        inner = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


class Trunk(nn.Module):
    """What all tasks share."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        first, second = _WIDTHS
        self.stem = nn.Conv2d(1, first, 3, padding=1, bias=False)
        self.norm = Norm(how, first)
        self.blocks = nn.ModuleList((Block(how, first, first, 1), Block(how, first, second, 2)))

    def forward(self, images):
        """Features of images (sample, 1, 8, 8)."""
        x = functional.relu(self.norm(self.stem(images)))
        for block in self.blocks:
            if self.how.checkpointed and self.training:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return x.mean((2, 3))


class Net(nn.Module):
    """The trunk, and a head for each task."""

    def __init__(self, how, tasks: int, ways: int) -> None:
        super().__init__()
        self.how = how
        self.trunk = Trunk(how)
        self.drop = nn.Dropout(how.dropout)
        self.heads = nn.ModuleList(nn.Linear(_WIDTHS[-1], ways) for _ in range(tasks))

    def forward(self, images):
        """All heads' logits (sample, task, way)."""
        features = self.drop(self.trunk(images))
        if self.how.heads == "masked":
            weight = torch.cat([head.weight for head in self.heads])
            bias = torch.cat([head.bias for head in self.heads])
            return functional.linear(features, weight, bias).unflatten(1, (len(self.heads), -1))
        return torch.stack([head(features) for head in self.heads], 1)


class Reservoir:
    """Samples of which each that was seen is kept with the same probability.

    among: what the slot of a new sample is drawn among, all samples "seen" or the "kept" ones.
    """

    def __init__(self, capacity: int, seed: int, among: str) -> None:
        self.capacity, self.among = capacity, among
        self.drawing = torch.Generator().manual_seed(seed)
        self.kept: list[tuple[torch.Tensor, ...]] = []
        self.seen = 0

    def add(self, *batch: torch.Tensor) -> None:
        """See the samples of a batch, one after the other."""
        for sample in zip(*batch, strict=True):
            self.seen += 1
            if len(self.kept) < self.capacity:
                self.kept.append(sample)
                continue
            high = self.seen if self.among == "seen" else self.capacity
            slot = int(torch.randint(0, high, (), generator=self.drawing))
            if slot < self.capacity:
                self.kept[slot] = sample

    def draw(self, count: int) -> list[torch.Tensor]:
        """A batch of kept samples, none of them twice."""
        chosen = torch.randperm(len(self.kept), generator=self.drawing)[:count]
        samples = [self.kept[int(one)] for one in chosen]
        return [torch.stack(parts) for parts in zip(*samples, strict=True)]
