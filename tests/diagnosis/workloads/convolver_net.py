"""A language model of characters whose tokens are mixed by long, gated convolutions."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

LONGEST = 36
"""Characters that the model reads at most."""
_WIDTH, _WIDE, _FILTER, _BANDS, _TAPS = 16, 24, 12, 3, 3


class Sine(nn.Module):
    """The sine of what it is given, at a frequency."""

    def __init__(self, frequency: float) -> None:
        super().__init__()
        self.frequency = frequency

    def forward(self, x):
        """The activation."""
        return torch.sin(self.frequency * x)


class Window(nn.Module):
    """An exponential decay along time, of another rate in each channel, above a floor."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        slow, fast = (math.log(100) / share for share in (1.5, 0.3))
        self.register_buffer("rates", torch.linspace(slow, fast, _WIDTH))

    def forward(self, h):
        """h (time, channel), windowed."""
        time = torch.linspace(0, 1, LONGEST, dtype=self.rates.dtype)
        if self.how.window == "positions":
            time = torch.arange(LONGEST, dtype=self.rates.dtype)
        return h * (torch.exp(-time[:, None] * self.rates) + self.how.floor)


class Filter(nn.Module):
    """A filter of each channel, which a small net makes of the positions."""

    def __init__(self, how) -> None:
        super().__init__()
        time = torch.linspace(0, 1, LONGEST)[:, None]
        angles = 2 * math.pi * time * torch.arange(1, _BANDS + 1)
        self.register_buffer("places", torch.cat((time, angles.cos(), angles.sin()), 1))
        self.net = nn.Sequential(
            nn.Linear(2 * _BANDS + 1, _FILTER),
            Sine(how.frequency),
            nn.Linear(_FILTER, _FILTER),
            Sine(how.frequency),
            nn.Linear(_FILTER, _WIDTH, bias=False),
        )
        self.window = Window(how)

    def forward(self):
        """The filters (channel, time)."""
        return self.window(self.net(self.places)).t()


class Short(nn.Conv1d):
    """A causal convolution of few taps, each channel by itself."""

    def __init__(self, how, channels: int) -> None:
        padding = _TAPS - 1 if how.short == "causal" else _TAPS // 2
        super().__init__(channels, channels, _TAPS, padding=padding, groups=channels)
        self.how = how

    def forward(self, x):
        """x (sample, channel, time), filtered."""
        if self.how.taps == "torch":
            return super().forward(x)[..., : x.shape[-1]]
        padded = functional.pad(x, (_TAPS - 1, 0))
        shifted = padded.unfold(-1, x.shape[-1], 1)
        moved = (shifted[:, :, tap] * self.weight[:, :, tap] for tap in range(_TAPS))
        return sum(moved) + self.bias[:, None]


class Long(nn.Module):
    """A causal convolution as long as the text, and a skip connection of each channel."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.skip = nn.Parameter(torch.randn(_WIDTH))

    def forward(self, u, h):
        """u (sample, channel, time), filtered by h (channel, time)."""
        u, h = u.to(self.skip.dtype), h.to(self.skip.dtype)[:, : u.shape[-1]]
        y = self._transformed(u, h) if self.how.convolution == "fft" else self._product(u, h)
        return y + u * self.skip[:, None] if self.how.skips else y

    def _transformed(self, u, h):
        how, long = self.how, u.shape[-1]
        size = {"twice": 2 * long, "power": 128, "once": long}[how.padded]
        if how.scaling == "filter":
            spectrum = torch.fft.rfft(h, n=size) / size
            y = torch.fft.irfft(torch.fft.rfft(u, n=size) * spectrum, n=size, norm="forward")
            return y[..., :long]
        norm = "ortho" if how.scaling == "ortho" else "backward"
        product = torch.fft.rfft(u, n=size, norm=norm) * torch.fft.rfft(h, n=size, norm=norm)
        return torch.fft.irfft(product, n=size, norm=norm)[..., :long]

    def _product(self, u, h):
        """By a Toeplitz matrix of each channel."""
        time = torch.arange(u.shape[-1])
        lag = time[:, None] - time
        matrix = h[:, lag.clamp(min=0)] * (lag >= 0)
        return torch.einsum("cij,bcj->bci", matrix, u)


class Mixer(nn.Module):
    """A long convolution between two gates."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.into, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.short, self.long = Short(how, 3 * _WIDTH), Long(how)
        self.filter = Filter(how)
        self.kept = None

    def forward(self, x):
        """x (sample, time, channel), mixed along time."""
        parts = self.short(self.into(x).transpose(1, 2)).chunk(3, 1)
        after, before, value = parts if self.how.splits == "value last" else parts[::-1]
        h = self.filter() if self.kept is None else self.kept[1]
        y = self.long(before * value, h) * after
        return self.out(y.transpose(1, 2))

    def prepare(self):
        """Make the filter that all micro-batches of a step share."""
        made = self.filter()
        self.kept = made, made.detach().requires_grad_()

    def finish(self):
        """Take the gradients of the shared filter back to what made it."""
        made, leaf = self.kept
        made.backward(leaf.grad)
        self.kept = None


class Gated(nn.Module):
    """Two layers with a gate between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(_WIDTH, 2 * _WIDE), nn.Linear(_WIDE, _WIDTH)

    def forward(self, x):
        """x, moved."""
        gate, value = self.up(x).chunk(2, -1)
        return self.down(functional.silu(gate) * value)


class Block(nn.Module):
    """A mixer along time and one along channels, each added to what it was given."""

    def __init__(self, how) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.RMSNorm(_WIDTH, eps=1e-5) for _ in range(2))
        self.mixer, self.mlp = Mixer(how), Gated()
        self.drop1, self.drop2 = nn.Dropout(how.dropout), nn.Dropout(how.dropout)

    def forward(self, x):
        """x, moved."""
        x = x + self.drop1(self.mixer(self.norm1(x)))
        return x + self.drop2(self.mlp(self.norm2(x)))


class Net(nn.Module):
    """Logits of the next character, by the same embeddings that characters are read with."""

    def __init__(self, how, characters: int) -> None:
        super().__init__()
        self.how = how
        self.embed = nn.Embedding(characters, _WIDTH)
        nn.init.normal_(self.embed.weight, std=0.3)
        self.blocks = nn.ModuleList(Block(how) for _ in range(2))
        self.norm = nn.RMSNorm(_WIDTH, eps=1e-5)

    def forward(self, text):
        """Logits of text (sample, time)."""
        x = self.embed(text)
        for block in self.blocks:
            if self.how.keeps == "all" or not torch.is_grad_enabled():
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=False)
        return functional.linear(self.norm(x), self.embed.weight)
