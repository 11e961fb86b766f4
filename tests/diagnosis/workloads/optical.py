"""A net that tells the optical flow between two images: features, correlations and warps."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_CHANNELS = (8, 12)
_REACH = 2
_SIDE = 2 * _REACH + 1


def warp(how, x, flow):
    """x (sample, channel, y, x), looked up where its pixels went: flow is (x, y) in pixels."""
    high, wide = x.shape[-2:]
    y, along = torch.meshgrid(
        torch.arange(high, dtype=flow.dtype), torch.arange(wide, dtype=flow.dtype), indexing="ij"
    )
    places = torch.stack((along, y)) + (flow if how.axes == "xy" else flow.flip(1))
    if how.warping == "own":
        return _looked_up(x, *places.unbind(1))
    grid = 2 * places.permute(0, 2, 3, 1) / torch.tensor([wide - 1, high - 1]).to(flow) - 1
    return functional.grid_sample(
        x.to(grid.dtype), grid, padding_mode="border", align_corners=how.corners
    )


def _looked_up(x, along, down):
    """x at places between its pixels, from the four around each."""
    high, wide = x.shape[-2:]
    along, down = along.clamp(0, wide - 1), down.clamp(0, high - 1)
    left, top = (one.detach().floor().clamp(max=wide - 2) for one in (along, down))
    right, under = (along - left)[:, None], (down - top)[:, None]
    flat = x.flatten(2)

    def at(row, column):
        index = ((top + row) * wide + left + column).long().flatten(1)
        found = flat.gather(2, index[:, None].expand(-1, x.shape[1], -1))
        return found.view(x.shape)

    upper = at(0, 0) * (1 - right) + at(0, 1) * right
    lower = at(1, 0) * (1 - right) + at(1, 1) * right
    return upper * (1 - under) + lower * under


def enlarged(how, flow, factor):
    """A flow on more pixels, still as long as on the few."""
    if how.enlarges == "torch":
        return functional.interpolate(
            flow, scale_factor=factor, mode="bilinear", align_corners=True
        )
    few = flow.shape[-1]
    at = torch.linspace(0, few - 1, few * factor, dtype=flow.dtype)
    shares = (1 - (at[:, None] - torch.arange(few)).abs()).clamp(min=0)
    return shares @ flow @ shares.T


class Warp(nn.Module):
    """Features of the second image, moved back."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x, flow):
        """x, warped."""
        return warp(self.how, x, flow)


class Standard(nn.Module):
    """Features of each image without their mean and spread."""

    def __init__(self, how) -> None:
        super().__init__()
        self.axes = (1, 2, 3) if how.moments == "image" else (1,)

    def forward(self, x):
        """x, of a known size."""
        spread, mean = torch.var_mean(x, self.axes, correction=0, keepdim=True)
        return (x - mean) / (spread + 1e-6).sqrt()


class Correlation(nn.Module):
    """How alike each pixel of the first image is to those around it in the second."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, first, second):
        """The volume (sample, displacement, y, x)."""
        high, wide = first.shape[-2:]
        if self.how.correlation == "patches":
            around = functional.unfold(second, _SIDE, padding=_REACH)
            around = around.unflatten(1, (second.shape[1], -1))
            costs = torch.einsum("ncp,ncdp->ndp", first.flatten(2), around) / first.shape[1]
            return costs.unflatten(2, (high, wide))
        ways = [(down, along) for down in range(_SIDE) for along in range(_SIDE)]
        if self.how.wraps:
            shifts = [second.roll((_REACH - down, _REACH - along), (2, 3)) for down, along in ways]
        else:
            padded = functional.pad(second, [_REACH] * 4)
            shifts = [padded[..., down : down + high, along : along + wide] for down, along in ways]
        return torch.stack([(first * one).mean(1) for one in shifts], 1)


def _conv(how, into, out, stride=1, dilation=1):
    return nn.Sequential(
        nn.Conv2d(into, out, 3, stride, dilation, dilation), nn.LeakyReLU(how.slope)
    )


class Pyramid(nn.Module):
    """Features at half and at a quarter of the size."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.levels = nn.ModuleList(
            nn.Sequential(_conv(how, into, out, stride=2), _conv(how, out, out))
            for into, out in zip((1, *_CHANNELS), _CHANNELS, strict=False)
        )

    def forward(self, x):
        """Features, the finest first."""
        found = []
        for level in self.levels:
            x = level(x) if self.how.keeps == "all" else checkpoint(level, x, use_reentrant=False)
            found.append(x)
        return found


class Estimator(nn.Module):
    """What is added to the flow of the level above."""

    def __init__(self, how, channels) -> None:
        super().__init__()
        self.layers = nn.Sequential(_conv(how, _SIDE**2 + channels + 2, 24), _conv(how, 24, 16))
        self.flow = nn.Conv2d(16, 2, 3, padding=1)

    def forward(self, costs, features, flow):
        """The step, and what it was told from."""
        x = self.layers(torch.cat((costs, features, flow.to(costs.dtype)), 1))
        return self.flow(x), x


class Flows(nn.Module):
    """Flow from the coarse level to the fine one, and a context net at the end."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.pyramid = Pyramid(how)
        self.standard, self.warp, self.correlation = Standard(how), Warp(how), Correlation(how)
        self.act = nn.LeakyReLU(how.slope)
        self.estimators = nn.ModuleList(Estimator(how, channels) for channels in _CHANNELS)
        layers = {
            "near": _conv(how, 18, 16),
            "far": _conv(how, 16, 16, dilation=2),
            "flow": nn.Conv2d(16, 2, 3, padding=1),
        }
        self.context = nn.Sequential(OrderedDict(layers))
        if how.spare:
            self.prelu = nn.PReLU()

    def forward(self, first, second):
        """Flows from the first image to the second and back, the finest first."""
        if self.how.passes == "joined":
            pyramid = self.pyramid(torch.cat((first, second)))
            turned = [torch.cat(one.chunk(2)[::-1]) for one in pyramid]
            flows = [one.chunk(2) for one in self._told(pyramid, turned)]
            return [one for one, _ in flows], [other for _, other in flows]
        one, other = self.pyramid(first), self.pyramid(second)
        return self._told(one, other), self._told(other, one)

    def _told(self, first, second):
        how, flows = self.how, []
        levels = list(zip(self.estimators, first, second, strict=True))
        for estimator, one, other in reversed(levels):
            if flows:
                above = flows[0].detach() if how.between == "detached" else flows[0]
                flow = enlarged(how, above, 2) * (2 if how.grows else 1)
                there = self.warp(other, flow)
            else:
                flow, there = torch.zeros_like(one[:, :2]), other
            costs = self.act(self.correlation(self.standard(one), self.standard(there)))
            step, x = estimator(costs, one, flow)
            flow = flow + step
            if flows:
                flow = flow + self.context(torch.cat((x, flow.to(x.dtype)), 1))
            flows.insert(0, flow.to(self.context[-1].weight.dtype))
        return flows
