"""A net that takes mixtures of sounds apart: an encoder, masks by convolutions, a decoder."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

LENGTH, SOURCES = 192, 2
_WINDOW, _HOP = 16, 8
_BASES, _NARROW, _WIDE = 18, 12, 16
_FRAMES = LENGTH // _HOP + 1


class Encoder(nn.Conv1d):
    """Frames of a sound by learnt bases, as a convolution or as a product with frames."""

    def __init__(self, how) -> None:
        super().__init__(1, _BASES, _WINDOW, stride=_HOP, padding=_HOP, bias=False)
        self.how = how

    def forward(self, x):
        """x (sample, time) as (sample, base, frame), none of them negative."""
        if self.how.frames == "convolution":
            return super().forward(x[:, None]).relu()
        cut = functional.pad(x, (_HOP, _HOP)).unfold(-1, _WINDOW, _HOP)
        return (self.weight[:, 0] @ cut.transpose(1, 2)).relu()


class Decoder(nn.ConvTranspose1d):
    """A sound of frames, which overlap and are added."""

    def __init__(self, how) -> None:
        super().__init__(_BASES, 1, _WINDOW, stride=_HOP, bias=False)
        self.how = how

    def forward(self, x):
        """x (sample, source, base, frame) as (sample, source, time)."""
        x = x.flatten(0, 1)
        if self.how.frames == "convolution":
            sound = super().forward(x)[:, 0]
        else:
            pieces = self.weight[:, 0].t() @ x
            sound = functional.fold(
                pieces, (1, LENGTH + 2 * _HOP), (1, _WINDOW), stride=(1, _HOP)
            ).flatten(1)
        begins = _HOP if self.how.trims == "both" else 0
        return sound[:, begins : begins + LENGTH].unflatten(0, (-1, SOURCES))


class Spectra(nn.Module):
    """Short-time spectra of sounds, and back; it has nothing to learn."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("window", torch.hann_window(2 * _WINDOW))
        turns = torch.outer(torch.arange(_WINDOW + 1), torch.arange(2 * _WINDOW)) / (2 * _WINDOW)
        both = torch.stack(((2 * math.pi * turns).cos(), -(2 * math.pi * turns).sin()))
        self.register_buffer("waves", both.to(self.window.dtype))

    def forward(self, x):
        """x (sample, time) as (sample, frequency, frame, 2)."""
        window = self.window if self.how.windows else torch.ones_like(self.window)
        if self.how.fourier == "torch":
            found = torch.stft(x, 2 * _WINDOW, _HOP, window=window, return_complex=True)
            return torch.view_as_real(found)
        padded = functional.pad(x[:, None], (_WINDOW, _WINDOW), mode="reflect")[:, 0]
        cut = padded.unfold(-1, 2 * _WINDOW, _HOP) * window
        return torch.einsum("pfn,btn->bftp", self.waves, cut)

    def sound(self, spectra):
        """Spectra (sample, source, frequency, frame, 2) as sounds."""
        found = torch.view_as_complex(spectra.flatten(0, 1).contiguous())
        sound = torch.istft(found, 2 * _WINDOW, _HOP, window=self.window, length=LENGTH)
        return sound.unflatten(0, (-1, SOURCES))


class Norm(nn.Module):
    """A norm over all channels and frames of a sample, or over a frame's channels."""

    def __init__(self, how, channels: int) -> None:
        super().__init__()
        self.how = how
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        """x, normed."""
        how = self.how
        if how.norming == "torch" and how.over == "both":
            return functional.group_norm(x, 1, self.weight, self.bias, how.norm_eps)
        axes = (1, 2) if how.over == "both" else 1
        wide = x.to(self.weight.dtype)
        spread, mean = torch.var_mean(wide, axes, correction=0, keepdim=True)
        wide = (wide - mean) / (spread + how.norm_eps).sqrt()
        return wide * self.weight[:, None] + self.bias[:, None]


class Depth(nn.Conv1d):
    """A dilated convolution of each channel for itself."""

    def __init__(self, how, dilation: int) -> None:
        super().__init__(_WIDE, _WIDE, 3, groups=_WIDE, dilation=dilation)
        self.how = how

    def forward(self, x):
        """As many frames as x has."""
        reach = self.dilation[0]
        x = functional.pad(x, (2 * reach, 0) if self.how.causal else (reach, reach))
        if self.how.depth == "torch":
            return super().forward(x)
        parts = x.unfold(-1, x.shape[-1] - 2 * reach, reach)
        return (parts * self.weight.transpose(1, 2)).sum(2) + self.bias[:, None]


class Block(nn.Module):
    """Wider, a dilated convolution, and two ways back: one goes on and one goes to the masks."""

    def __init__(self, how, number: int) -> None:
        super().__init__()
        self.how = how
        self.wider = nn.Conv1d(_NARROW, _WIDE, 1)
        self.act1, self.act2 = nn.PReLU(), nn.PReLU()
        self.norm1, self.norm2 = Norm(how, _WIDE), Norm(how, _WIDE)
        self.depth = Depth(how, 2**number if how.dilates else 1)
        self.on, self.skip = nn.Conv1d(_WIDE, _NARROW, 1), nn.Conv1d(_WIDE, _NARROW, 1)

    def forward(self, x):
        """What goes on, and what goes to the masks."""
        found = self.norm1(self.act1(self.wider(x)))
        found = self.norm2(self.act2(self.depth(found)))
        return x + self.on(found) if self.how.adds else self.on(found), self.skip(found)


class Masks(nn.Module):
    """The share of each source in each base and frame."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        bases = _WINDOW + 1 if how.front == "fourier" else _BASES
        self.act, self.conv = nn.PReLU(), nn.Conv1d(_NARROW, SOURCES * bases, 1)

    def forward(self, x):
        """Masks (sample, source, base, frame)."""
        how = self.how
        logits = self.conv(self.act(x)).unflatten(1, (SOURCES, -1))
        if how.shares == "sigmoid":
            share = (logits[:, 0] - logits[:, 1]).sigmoid()
            return torch.stack((share, 1 - share), 1)
        return logits.softmax(2 if how.shares == "bases" else 1)


class Unmixer(nn.Module):
    """Sounds of which a mixture is the sum."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        spectral = how.front == "fourier"
        self.encoder = Spectra(how) if spectral else Encoder(how)
        width = _WINDOW + 1 if spectral else _BASES
        self.norm, self.narrow = Norm(how, width), nn.Conv1d(width, _NARROW, 1)
        self.blocks = nn.ModuleList(Block(how, number) for number in range(3))
        self.masks = Masks(how)
        if not spectral:
            self.decoder = Decoder(how)

    def forward(self, mixture):
        """mixture (sample, time) as (sample, source, time)."""
        how, encoded = self.how, self.encoder(mixture)
        seen = self._seen(encoded)
        normed = self.norm(seen)
        masks = self.masks(self._mixed(self.narrow(normed)))
        if how.front == "fourier":
            sounds = self.encoder.sound(masks[..., None] * encoded[:, None])
        else:
            masked = normed if how.masked == "normed" else encoded
            sounds = self.decoder(masks * masked[:, None])
        return self._consistent(sounds, mixture)

    def _seen(self, encoded):
        """What masks are told from."""
        if self.how.front == "fourier":
            return torch.linalg.vector_norm(encoded, dim=-1).log1p()
        return encoded

    def _mixed(self, x):
        """What all blocks say of the masks."""
        skips = []
        for block in self.blocks:
            if self.how.keeps == "all":
                x, skip = block(x)
            else:
                x, skip = checkpoint(block, x, use_reentrant=False)
            skips.append(skip)
        return sum(skips)

    def _consistent(self, sounds, mixture):
        """The sounds, so that their sum is the mixture."""
        how = self.how
        sounds = sounds.to(mixture.dtype)
        if how.consistent == "no":
            return sounds
        if how.consistent == "product":
            mean = sounds.new_full((SOURCES, SOURCES), -1 / SOURCES) + torch.eye(SOURCES)
            return mean @ sounds + mixture[:, None] / SOURCES
        return sounds + (mixture - sounds.sum(1))[:, None] / SOURCES
