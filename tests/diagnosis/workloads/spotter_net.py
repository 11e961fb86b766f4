"""A net that spots keywords: a filter bank, normed energies, separable convolutions, a pool."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

import anchorlib

RATE, HOP, LONGEST = 4000, 64, 1600
"""Samples a second, samples from frame to frame, and samples of the longest sound."""
CHANNELS, KEYWORDS = 16, 6
_WINDOW, _WIDTH, _SQUEEZED = 128, 20, 5
_EPS = 1e-6


def kept(how, x, seen):
    """x where it is seen, zero elsewhere."""
    if how.masking == "fill":
        return x.masked_fill(~seen, 0.0)
    return torch.where(seen, x, 0.0)


def _triangles():
    """The filter bank (channel, frequency): triangles that are equally wide in mels."""
    top = 2595 * math.log10(1 + RATE / 2 / 700)
    bottom = 2595 * math.log10(1 + 60 / 700)
    edges = 700 * (10 ** (torch.linspace(bottom, top, CHANNELS + 2) / 2595) - 1)
    bins = torch.linspace(0, RATE / 2, _WINDOW // 2 + 1)
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (bins - low) / (middle - low), (high - bins) / (high - middle)
    return torch.minimum(rising, falling).clamp(min=0)


class Front(nn.Module):
    """The energies of sounds, channel by channel and frame by frame."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("window", torch.hann_window(_WINDOW))
        self.register_buffer("bank", _triangles())

    def forward(self, sounds):
        """Energies (sample, channel, frame)."""
        if self.how.fourier == "torch":
            waves = torch.stft(
                sounds,
                _WINDOW,
                HOP,
                window=self.window,
                pad_mode="constant",
                return_complex=True,
            )
            return self.bank @ waves.abs().square()
        frames = functional.pad(sounds, (_WINDOW // 2, _WINDOW // 2)).unfold(1, _WINDOW, HOP)
        times = torch.arange(_WINDOW, dtype=sounds.dtype)
        angles = 2 * math.pi / _WINDOW * torch.outer(times, times[: _WINDOW // 2 + 1])
        frames = frames * self.window
        power = (frames @ angles.cos()).square() + (frames @ angles.sin()).square()
        return self.bank @ power.transpose(1, 2)


class Smoother(nn.Module):
    """A running mean of each channel's energies; how fast it follows is learnt."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.speed = nn.Parameter(torch.full((CHANNELS,), math.log(0.1)))

    def forward(self, x):
        """Running means of x (sample, channel, frame)."""
        speed = self.speed.exp()
        if self.how.smoothing == "product":
            return self._product(x, speed)
        frames = x.unbind(2)
        mean = frames[0] if self.how.begins == "first" else torch.zeros_like(frames[0])
        means = [mean] if self.how.begins == "first" else [mean + speed * (frames[0] - mean)]
        for frame in frames[1:]:
            means.append((1 - speed) * means[-1] + speed * frame)
        return torch.stack(means, 2)

    def _product(self, x, speed):
        """All frames at once: what each frame still counts at each later one."""
        at = torch.arange(x.shape[2])
        ago = at[:, None] - at
        decay = (1 - speed)[:, None, None] ** ago.clamp(min=0)
        first = (at == 0).to(x.dtype)
        share = first + (1 - first) * speed[:, None]
        return torch.einsum("bct,cft->bcf", x, decay * share[:, None] * (ago >= 0))


class PCEN(nn.Module):
    """Energies as multiples of their running means, compressed; the constants are learnt."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.smoother = Smoother(how)
        for name, begin in (("gain", 0.9), ("offset", 2.0), ("root", 0.5)):
            setattr(self, name, nn.Parameter(torch.full((CHANNELS, 1), math.log(begin))))

    def forward(self, x):
        """Energies, normed."""
        gain, offset, root = self.gain.exp(), self.offset.exp(), self.root.exp()
        mean = self.smoother(x)
        if self.how.gaining == "power":
            x = x / (_EPS + mean) ** gain
        else:
            x = x * torch.exp(-gain * torch.log(_EPS + mean))
        x = (x + offset) ** root
        return x - offset**root if self.how.subtracts else x


class Augment(nn.Module):
    """Hides a band of channels and a stretch of frames of each sound that is learnt from."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x, bands=None):
        """x, partly hidden; bands (sample, axis, 2): where each begins, and how wide it is."""
        if bands is None:
            return x
        for axis in (1, 2):
            at = torch.arange(x.shape[axis])
            begin, width = bands[:, axis - 1].split(1, 1)
            before = at <= begin + width if self.how.inclusive else at < begin + width
            hidden = (at >= begin) & before
            x = kept(self.how, x, ~hidden.unsqueeze(3 - axis))
        return x


class Depthwise(nn.Conv1d):
    """Each channel's own convolution, torch's or as a sum of moved frames."""

    def __init__(self, how, dilation: int) -> None:
        super().__init__(
            _WIDTH,
            _WIDTH,
            5,
            padding=2 * dilation,
            dilation=dilation,
            groups=_WIDTH,
            bias=False,
        )
        self.how = how

    def forward(self, x):
        """The convolution."""
        if self.how.depthwise == "torch":
            return super().forward(x)
        (pad,), (apart,), count = self.padding, self.dilation, x.shape[2]
        padded = functional.pad(x, (pad, pad))
        taps = self.weight[:, 0].split(1, 1)
        return sum(padded[..., k * apart :][..., :count] * tap for k, tap in enumerate(taps))


class Squeeze(nn.Module):
    """Weighs channels by what the whole sound holds of them."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.down, self.up = nn.Linear(_WIDTH, _SQUEEZED), nn.Linear(_SQUEEZED, _WIDTH)

    def forward(self, x, valid):
        """x, weighed."""
        gate = self.up(functional.silu(self.down(self._mean(x, valid)))).sigmoid()
        return x * gate[..., None]

    def _mean(self, x, valid):
        """Means over the frames of each sound, without what it is padded by."""
        if self.how.squeezes == "all":
            return x.mean(2)
        count = valid.sum(1, keepdim=True)
        if self.how.squeezing == "sum":
            return kept(self.how, x, valid[:, None]).sum(2) / count
        return torch.bmm(x, (valid / count)[..., None].to(x.dtype)).squeeze(2)


class Block(nn.Module):
    """A separable convolution whose channels are weighed, added to what it was given."""

    def __init__(self, how, dilation: int) -> None:
        super().__init__()
        self.how = how
        self.depth, self.point = Depthwise(how, dilation), nn.Conv1d(_WIDTH, _WIDTH, 1, bias=False)
        self.norm, self.squeeze = nn.BatchNorm1d(_WIDTH), Squeeze(how)

    def forward(self, x, valid):
        """x, moved; padding is hidden, so that it does not leak into the sound."""
        y = self.point(self.depth(kept(self.how, x, valid[:, None])))
        return functional.silu(x + self.squeeze(self.norm(y), valid))


class Stem(nn.Module):
    """A convolution over all channels."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.conv = nn.Conv1d(CHANNELS, _WIDTH, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm1d(_WIDTH)

    def forward(self, x, valid):
        """Features (sample, feature, frame)."""
        return functional.silu(self.norm(self.conv(kept(self.how, x, valid[:, None]))))


class Pool(nn.Module):
    """The mean of a sound's frames, weighed by attention."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.project = nn.Linear(_WIDTH, 12)
        self.score = nn.Linear(12, 1, bias=False)  # softmax would not see a bias

    def forward(self, x, valid):
        """Features (sample, feature)."""
        scores = self.score(self.project(x.transpose(1, 2)).tanh()).squeeze(2)
        weights = anchorlib.anchor(self._weights(scores, valid), "attention")
        return (x * weights[:, None]).sum(2)

    def _weights(self, scores, valid):
        if not self.how.hides:
            return scores.softmax(1)
        scores = scores.masked_fill(~valid, -math.inf)
        if self.how.attention == "torch":
            return scores.softmax(1)
        raised = torch.exp(scores - scores.amax(1, keepdim=True).detach())
        return raised / raised.sum(1, keepdim=True)


class Spotter(nn.Module):
    """Which keyword a sound is, if it is one."""

    def __init__(self, how) -> None:
        super().__init__()
        self.front, self.pcen, self.augment = Front(how), PCEN(how), Augment(how)
        self.stem = Stem(how)
        self.blocks = nn.ModuleList(Block(how, dilation) for dilation in (1, 2))
        self.pool, self.drop = Pool(how), nn.Dropout(how.dropout)
        self.head = nn.Linear(_WIDTH, KEYWORDS)

    def forward(self, sounds, lengths, bands=None):
        """Logits of sounds (sample, time), each as long as lengths say and padded after that."""
        x = self.augment(self.pcen(self.front(sounds)), bands)
        valid = torch.arange(x.shape[2]) < (lengths // HOP + 1)[:, None]
        x = self.stem(x, valid)
        for block in self.blocks:
            x = block(x, valid)
        return self.head(self.drop(self.pool(x, valid)))
