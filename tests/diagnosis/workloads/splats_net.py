"""The renderer of flat Gaussians: projected, sorted by depth, and laid over one another."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_C0 = 0.28209479177387814
"""The spherical harmonic of degree 0."""
_BLUR = 0.3
"""Added to variances, in squared pixels: no splat is narrower than a pixel."""
_MOST, _LEAST = 0.99, 1 / 255
"""The most that a splat covers, and the least that is not left out."""


class Splats(nn.Module):
    """What is learnt of each splat, and which ones are still alive.

    image: colours (row, column, 3) that the splats start with. count: of splats.
    """

    def __init__(self, how, image, count: int) -> None:
        super().__init__()
        self.how = how
        means = torch.rand(count, 2) * torch.tensor([image.shape[1], image.shape[0]])
        near = torch.cdist(means, means).topk(4, largest=False).values[:, 1:].mean(1)
        column, row = means.long().unbind(1)
        self.means = nn.Parameter(means)
        self.log_scales = nn.Parameter(near.log()[:, None] + torch.randn(count, 2) * 0.3 - 0.3)
        self.rotations = nn.Parameter(torch.randn(count, 2))
        self.colours = nn.Parameter((image[row, column] - 0.5) / _C0)
        self.opacities = nn.Parameter(torch.empty(count).uniform_(0.02, 0.7).logit())
        self.register_buffer("depths", torch.rand(count))
        self.register_buffer("alive", torch.ones(count, dtype=torch.bool))

    def forward(self):
        """Means, logarithms of scales, rotations, colours and opacities, the nearest first."""
        how = self.how
        opacities = self.opacities.sigmoid()
        if how.dead == "left out":
            shown = self.alive.nonzero()[:, 0]
        else:
            shown = torch.arange(len(self.alive))
            opacities = opacities * self.alive
        order = shown[self.depths[shown].argsort(descending=how.sorts == "far")]
        shapes = self.means[order], self.log_scales[order], self.rotations[order]
        return *shapes, self.colours[order], opacities[order]


class Conics(nn.Module):
    """The inverse covariances of splats."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, log_scales, rotations):
        """The three different elements of each matrix (splat, 3)."""
        how = self.how
        scales = log_scales.exp()
        scales = scales if how.spread == "squared" else scales.sqrt()
        cos, sin = functional.normalize(rotations).unbind(1)
        turn = torch.stack((cos, -sin, sin, cos), 1).view(-1, 2, 2)
        factor = turn * scales[:, None]
        covariance = factor @ factor.mT + _BLUR * torch.eye(2)
        if how.conics == "inverse":
            return torch.linalg.inv(covariance).flatten(1)[:, [0, 1, 3]]
        xx, xy, yy = covariance[:, 0, 0], covariance[:, 0, 1], covariance[:, 1, 1]
        return torch.stack((yy, -xy, xx), 1) / (xx * yy - xy * xy)[:, None]


class Falloff(nn.Module):
    """How much each splat covers of each pixel."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, pixels, means, conics, opacities):
        """Alphas (crop, row, column, splat)."""
        x, y = (pixels[..., None, :] - means).unbind(-1)
        xx, xy, yy = conics.unbind(1)
        power = -0.5 * (xx * x * x + yy * y * y) - xy * x * y
        if self.how.falloff == "product":
            alphas = opacities * power.exp()
        else:
            alphas = (power + opacities.log()).exp()
        alphas = alphas.clamp(max=_MOST)
        return torch.where(alphas < _LEAST, 0.0, alphas)


class Composition(nn.Module):
    """Splats over one another, over a background."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, alphas, colours, background):
        """The crops (crop, row, column, 3)."""
        how = self.how
        if how.composes == "back to front":
            seen = background.expand(*alphas.shape[:-1], 3)
            for alpha, colour in zip(alphas.unbind(-1)[::-1], colours.unbind(0)[::-1], strict=True):
                seen = alpha[..., None] * colour + (1 - alpha[..., None]) * seen
            return seen
        if how.background == "splat":
            alphas = functional.pad(alphas, (0, 1), value=1.0)
            colours = torch.cat((colours, background[None]))
            return (alphas * self._passed(alphas[..., :-1])) @ colours
        passed = self._passed(alphas)
        before = passed[..., 1:] if how.passes == "itself too" else passed[..., :-1]
        seen = (alphas * before) @ colours
        return seen if how.background == "none" else seen + passed[..., -1:] * background

    def _passed(self, alphas):
        """The light that passes before each splat, and behind the last one."""
        if self.how.passes == "logarithms":
            return functional.pad(torch.log1p(-alphas).cumsum(-1), (1, 0)).exp()
        return functional.pad(1 - alphas, (1, 0), value=1.0).cumprod(-1)


class Renderer(nn.Module):
    """Crops of the picture that the splats show."""

    def __init__(self, how, image, count: int) -> None:
        super().__init__()
        self.how = how
        self.splats = Splats(how, image, count)
        self.conics = Conics(how)
        self.falloff = Falloff(how)
        self.composition = Composition(how)

    def forward(self, pixels, background):
        """The crops (crop, 3, row, column) at the centres of pixels (crop, row, column, 2)."""
        means, log_scales, rotations, colours, opacities = self.splats()
        conics = self.conics(log_scales, rotations)
        colours = (_C0 * colours + 0.5).clamp(min=0)
        given = pixels, means, conics, opacities, colours, background
        if self.how.keeps == "all" or not torch.is_grad_enabled():
            seen = self._drawn(*given)
        else:
            seen = checkpoint(self._drawn, *given, use_reentrant=False)
        return seen.permute(0, 3, 1, 2)

    def _drawn(self, pixels, means, conics, opacities, colours, background):
        """All that has a number for each pixel and splat."""
        return self.composition(self.falloff(pixels, means, conics, opacities), colours, background)


class Similarity(nn.Module):
    """The structural similarity of pictures."""

    def __init__(self, how, size: int = 11, sigma: float = 1.5) -> None:
        super().__init__()
        self.how, self.size = how, size
        line = torch.exp(-((torch.arange(size) - size // 2) ** 2) / (2 * sigma**2))
        self.register_buffer("line", line / line.sum())

    def forward(self, one, other):
        """The mean over pixels and channels."""
        first, second = ((share * self.how.range) ** 2 for share in (0.01, 0.03))
        mean, wanted = self._blurred(one), self._blurred(other)
        spread = self._blurred(one * one) - mean * mean
        width = self._blurred(other * other) - wanted * wanted
        shared = self._blurred(one * other) - mean * wanted
        over = (2 * mean * wanted + first) * (2 * shared + second)
        under = (mean * mean + wanted * wanted + first) * (spread + width + second)
        return (over / under).mean()

    def _blurred(self, x):
        """x, averaged under the window."""
        channels, half = x.shape[1], self.size // 2
        if self.how.windows == "square":
            window = (self.line[:, None] * self.line).expand(channels, 1, -1, -1)
            return functional.conv2d(x, window, padding=half, groups=channels)
        down = self.line.view(1, 1, -1, 1).expand(channels, 1, -1, 1)
        x = functional.conv2d(x, down, padding=(half, 0), groups=channels)
        return functional.conv2d(x, down.mT, padding=(0, half), groups=channels)


def logit(chance: float) -> float:
    """The number of which `chance` is the sigmoid."""
    return math.log(chance / (1 - chance))
