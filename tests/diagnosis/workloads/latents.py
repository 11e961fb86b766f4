"""Latents that read a digit's pixels by attention, then attend to one another, in rounds."""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import anchorlib

_WIDTH, _HEADS, _LATENTS, _BANDS, _SIDE = 16, 2, 16, 4, 8
_PIXEL = 1 + 2 * (2 * _BANDS + 1)
"""Numbers that tell a pixel: its brightness, and the features of its row and its column."""


class Fourier(nn.Module):
    """Pixels with the sines and cosines of their places."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("rates", torch.linspace(1.0, _SIDE / 2, _BANDS))

    def forward(self, images):
        """Pixels (sample, pixel, number) of images (sample, 8, 8)."""
        ticks = torch.linspace(-1.0, 1.0, _SIDE)
        places = torch.stack(torch.meshgrid(ticks, ticks, indexing="ij"), -1)[..., None]
        rates = self.rates
        if self.how.places == "low":
            places, rates = places.bfloat16(), rates.bfloat16()
        angles = places * rates * math.pi
        second = angles.cos() if self.how.waves == "both" else angles.sin()
        features = torch.cat((angles.sin(), second, places), -1).view(_SIDE**2, -1)
        features = features.to(images.dtype).expand(len(images), -1, -1)
        return torch.cat((images.flatten(1)[..., None], features), -1)


class Attention(nn.Module):
    """Attention of latents to pixels, or to latents."""

    def __init__(self, how, context: int) -> None:
        super().__init__()
        self.how = how
        self.q = nn.Linear(_WIDTH, _WIDTH, bias=False)
        self.kv = nn.Linear(context, 2 * _WIDTH, bias=False)
        self.out = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x, kv, mask=None):
        """What x reads from keys and values (sample, place, 2 width); mask: the pixels seen."""
        how = self.how
        parts = (self.q(x), *kv.chunk(2, -1))
        q, k, v = (part.unflatten(-1, (_HEADS, -1)).transpose(1, 2) for part in parts)
        mask = None if mask is None else mask[:, None, None]
        scale = (_WIDTH if how.root == "width" else _WIDTH // _HEADS) ** -0.5
        if how.attention == "torch":
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            if how.attention == "einsum":
                scores = torch.einsum("bhid,bhjd->bhij", q * scale, k)
            else:
                scores = q @ k.transpose(-1, -2) * scale
            if mask is not None:
                hidden = torch.finfo(scores.dtype).min if how.hides == "wholly" else 0.0
                scores = scores.masked_fill(~mask, hidden)
            shares = scores.softmax(-1 if how.over == "places" else -2).to(v.dtype)
            if how.attention == "einsum":
                mixed = torch.einsum("bhij,bhjd->bhid", shares, v)
            else:
                mixed = shares @ v
        return self.out((mixed.transpose(1, 2) if how.returns else mixed).reshape(x.shape))


class Gate(nn.Module):
    """One half times the other, bent."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """The product."""
        value, gate = x.chunk(2, -1)
        return value * functional.gelu(gate, approximate=self.how.gelu)


class Block(nn.Module):
    """Attention and a gated layer, each added to what it was given."""

    def __init__(self, how, context: int | None = None) -> None:
        super().__init__()
        self.how = how
        self.norm1 = nn.LayerNorm(_WIDTH, how.norm_eps)
        self.context_norm = None if context is None else nn.LayerNorm(context, how.norm_eps)
        self.attention = Attention(how, context or _WIDTH)
        self.norm2 = nn.LayerNorm(_WIDTH, how.norm_eps)
        self.feed = nn.Sequential(
            OrderedDict(
                up=nn.Linear(_WIDTH, 4 * _WIDTH),
                gate=Gate(how),
                drop=nn.Dropout(how.dropout),
                down=nn.Linear(2 * _WIDTH, _WIDTH),
            )
        )

    def read(self, context):
        """Keys and values of pixels."""
        return self.attention.kv(self.context_norm(context))

    def forward(self, x, context=None, kv=None, mask=None):
        """x, moved."""
        normed = self.norm1(x)
        if self.context_norm is None:
            kv = self.attention.kv(normed)
        elif kv is None:
            kv = self.read(context)
        read = self.attention(normed, kv, mask)
        x = read if self.context_norm is not None and not self.how.adds else x + read
        return x + self.feed(self.norm2(x))


class Perceiver(nn.Module):
    """Latents that read an image several times, by the same weights."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.fourier = Fourier(how)
        self.latents = nn.Parameter(torch.empty(_LATENTS, _WIDTH))
        nn.init.trunc_normal_(self.latents, std=how.spread, a=-2.0, b=2.0)
        self.cross, self.own = Block(how, _PIXEL), Block(how)
        self.norm, self.head = nn.LayerNorm(_WIDTH, how.norm_eps), nn.Linear(_WIDTH, 10)
        if how.spare:
            self.decoder_norm = nn.LayerNorm(_WIDTH)

    def forward(self, images, mask):
        """Logits of images (sample, 8, 8), of whose pixels those in the mask are seen."""
        how = self.how
        pixels = self.fourier(images)
        x = self.latents.expand(len(images), -1, -1)
        kv = self.cross.read(pixels) if how.reads == "once" else None
        for at in range(how.rounds):
            if how.keeps == "all":
                x = self._round(x, pixels, kv, mask)
            else:
                x = checkpoint(self._round, x, pixels, kv, mask, use_reentrant=False)
            if how.cuts and at < how.rounds - 1:
                x = x.detach()
        pooled = x.mean(1 if how.pools == "latents" else 2)
        return self.head(self.norm(anchorlib.anchor(pooled, "pooled")))

    def _round(self, x, pixels, kv, mask):
        return self.own(self.cross(x, pixels, kv, mask))
