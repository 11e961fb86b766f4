"""A PointNet: points of a cloud, turned, seen one by one, pooled, named and drawn again."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

CLASSES, POINTS, DRAWN = 10, 24, 16
_WIDTH = 16


class Shared(nn.Conv1d):
    """A linear layer for each point: torch's convolution, or a product."""

    way = "torch"

    def forward(self, x):
        """The layer's output (cloud, channel, point)."""
        if self.way == "product":
            return functional.linear(x.mT, self.weight[:, :, 0], self.bias).mT
        return super().forward(x)


class Norm(nn.BatchNorm1d):
    """A batch norm, torch's, by its formula, or of each cloud alone."""

    way = "torch"

    def forward(self, x):
        """x, normed."""
        if self.way == "torch" or not self.training:
            return super().forward(x)
        if self.way == "clouds":
            if x.ndim < 3:
                return super().forward(x)
            return functional.instance_norm(x, weight=self.weight, bias=self.bias, eps=self.eps)
        axes, shape = ([0, 2], (-1, 1)) if x.ndim > 2 else ([0], (-1,))
        wide = x.to(self.weight.dtype)
        mean = wide.mean(axes)
        missed = wide - mean.view(shape)
        spread = missed.square().mean(axes)
        with torch.no_grad():
            count = x.numel() / x.shape[1]
            fair = spread * count / (count - 1)
            self.running_mean.mul_(1 - self.momentum).add_(mean, alpha=self.momentum)
            self.running_var.mul_(1 - self.momentum).add_(fair, alpha=self.momentum)
            self.num_batches_tracked.add_(1)
        normed = missed / (spread + self.eps).sqrt().view(shape)
        return (normed * self.weight.view(shape) + self.bias.view(shape)).to(x.dtype)


class Centre(nn.Module):
    """Clouds around zero, the farthest point of each at a distance of one."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x, real):
        """x (cloud, point, 3), moved and scaled by its real points."""
        real = real[..., None].to(x.dtype)
        count = real.sum(1, keepdim=True)
        if self.how.centres:
            x = x - (x * real).sum(1, keepdim=True) / count
        far = x.norm(dim=-1, keepdim=True) * real
        if self.how.scales == "mean":
            return x / (far.sum(1, keepdim=True) / count)
        return x / far.amax(1, keepdim=True)


class Pool(nn.Module):
    """The largest of each channel over the real points."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x, real):
        """x (cloud, channel, point) as (cloud, channel)."""
        how = self.how
        if how.pools:
            x = x.masked_fill(~real[:, None], -torch.inf)
        if how.pool == "amax":
            return x.amax(2)
        return (
            x.max(2).values if how.pool == "max" else functional.adaptive_max_pool1d(x, 1)[..., 0]
        )


class Features(nn.Module):
    """What each point tells, and what a cloud tells."""

    def __init__(self, how, seen: int) -> None:
        super().__init__()
        self.enter, self.norm1, self.act = Shared(3, _WIDTH, 1, bias=False), Norm(_WIDTH), nn.ReLU()
        self.leave, self.norm2, self.pool = (
            Shared(_WIDTH, seen, 1, bias=False),
            Norm(seen),
            Pool(how),
        )
        for norm in (self.norm1, self.norm2):
            norm.momentum = how.momentum

    def forward(self, x, real):
        """x (cloud, 3, point) as (cloud, channel)."""
        x = self.act(self.norm1(self.enter(x)))
        return self.pool(self.norm2(self.leave(x)), real)


class Turner(nn.Module):
    """A 3 × 3 matrix for each cloud."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.features, self.act1 = Features(how, _WIDTH), nn.ReLU()
        self.deep, self.act2 = nn.Linear(_WIDTH, 12), nn.ReLU()
        self.leave = nn.Linear(12, 9)
        with torch.no_grad():
            self.leave.weight.mul_(0.3)
            self.leave.bias.zero_()

    def forward(self, x, real):
        """The matrices (cloud, 3, 3)."""
        x = self.act1(self.features(x.mT, real))
        x = self.leave(self.act2(self.deep(x)))
        turn = x.view(-1, 3, 3).to(self.leave.weight.dtype)
        return turn + torch.eye(3) if self.how.identity else turn


class PointNet(nn.Module):
    """Names of clouds, and the clouds as they are drawn again."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.centre, self.turner, self.features = Centre(how), Turner(how), Features(how, POINTS)
        self.deep, self.norm, self.act = (
            nn.Linear(POINTS, _WIDTH, bias=False),
            Norm(_WIDTH),
            nn.ReLU(),
        )
        self.drop, self.name = nn.Dropout(how.dropout), nn.Linear(_WIDTH, CLASSES)
        self.wider, self.bent = nn.Linear(POINTS, 24), nn.ReLU()
        self.drawn = nn.Linear(24, 3 * DRAWN)
        for module in self.modules():
            if isinstance(module, Norm):
                module.way = how.norming
            if isinstance(module, Shared):
                module.way = how.shared

    def forward(self, x, real):
        """Logits, drawn points (cloud, point, 3), matrices, and the centred points.

        x: points (cloud, point, 3). real: which of them are (cloud, point).
        """
        how = self.how
        x = self.centre(x, real)
        turn = self.turner(x, real)
        way = turn.mT if how.transposed else turn
        moved = x @ way
        if how.checkpointed:
            seen = checkpoint(self.features, moved.mT, real, use_reentrant=False)
        else:
            seen = self.features(moved.mT, real)
        logits = self.name(self.drop(self.act(self.norm(self.deep(seen)))))
        drawn = self.drawn(
            self.bent(self.wider(seen.detach() if how.draws == "detached" else seen))
        )
        drawn = drawn.view(-1, DRAWN, 3) if how.lies else drawn.view(-1, 3, DRAWN).mT
        return logits, drawn, turn, x
