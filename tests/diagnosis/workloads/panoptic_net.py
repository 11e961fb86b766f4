"""A small net of learnt queries that read a scene's pixels, each for one mask and its class."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

CLASSES, QUERIES = 11, 6
"""Ten digits and the ground; whatever a query says beyond them is that it found nothing."""
_WIDTH, _HEADS, _LAYERS = 16, 2, 3
_CHANNELS = (8, 12, 16)


class Backbone(nn.Module):
    """Three convolutions, each of which halves the scene."""

    def __init__(self) -> None:
        super().__init__()
        pairs = list(zip((1, *_CHANNELS), _CHANNELS, strict=False))
        self.convs = nn.ModuleList(
            nn.Conv2d(into, out, 3, stride=2, padding=1, bias=False) for into, out in pairs
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(out) for out in _CHANNELS)

    def forward(self, x):
        """What is seen at strides 2, 4 and 8."""
        found = []
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(conv(x)).relu()
            found.append(x)
        return found


class Pixels(nn.Module):
    """The pixel decoder: coarse features are enlarged and added to finer ones."""

    def __init__(self) -> None:
        super().__init__()
        self.laterals = nn.ModuleList(nn.Conv2d(into, _WIDTH, 1) for into in _CHANNELS)
        self.smooths = nn.ModuleList(
            nn.Conv2d(_WIDTH, _WIDTH, 3, padding=1, bias=False) for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.GroupNorm(4, _WIDTH) for _ in range(2))
        self.features = nn.Conv2d(_WIDTH, _WIDTH, 1)

    def forward(self, fine, middle, coarse):
        """The memory that queries read (stride 4), and the features of masks (stride 2)."""
        memory = self._added(1, middle, self.laterals[2](coarse))
        return memory, self.features(self._added(0, fine, memory))

    def _added(self, at, x, coarse):
        x = self.laterals[at](x) + functional.interpolate(coarse, scale_factor=2, mode="nearest")
        return self.norms[at](self.smooths[at](x)).relu()


class Positions(nn.Module):
    """Sines and cosines of where a pixel lies in the part of the canvas that is not padding."""

    def forward(self, padding):
        """An embedding of each pixel (scene, pixel, width)."""
        seen = (~padding).to(torch.get_default_dtype())
        half = _WIDTH // 2
        rates = 10_000 ** (2 * torch.arange(half // 2) / half)
        found = []
        for axis in (1, 2):
            place = seen.cumsum(axis)
            far = place.narrow(axis, place.shape[axis] - 1, 1)
            angle = (2 * math.pi * place / (far + 1e-6))[..., None] / rates
            found += [angle.sin(), angle.cos()]
        return torch.cat(found, -1).flatten(1, 2)


class Attention(nn.Module):
    """Attention of queries to keys, of which some may be padding."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.q, self.k, self.v, self.out = (nn.Linear(_WIDTH, _WIDTH) for _ in range(4))

    def forward(self, x, memory, places, padding=None):
        """What x reads of the memory, whose keys know their places."""
        parts = self.q(x), self._keys(memory, places), self.v(memory)
        q, k, v = (part.unflatten(-1, (_HEADS, -1)).transpose(1, 2) for part in parts)
        hidden = None if padding is None else padding[:, None, None]
        if self.how.attention == "torch":
            seen = None if hidden is None else ~hidden
            read = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        else:
            scores = q @ k.transpose(-1, -2) / math.sqrt(_WIDTH // _HEADS)
            if hidden is not None:
                scores = scores.masked_fill(hidden, -math.inf)
            read = scores.softmax(-1) @ v
        return self.out(read.transpose(1, 2).flatten(2))

    def _keys(self, memory, places):
        if self.how.keys == "summed":
            return self.k(memory + places)
        own = functional.linear(memory, self.k.weight, self.k.bias)
        return own + functional.linear(places, self.k.weight)


class Layer(nn.Module):
    """Queries read the pixels, then each other, then think; each is added and normed."""

    def __init__(self, how) -> None:
        super().__init__()
        self.cross, self.own = Attention(how), Attention(how)
        self.norms = nn.ModuleList(nn.LayerNorm(_WIDTH) for _ in range(3))
        self.up, self.down = nn.Linear(_WIDTH, 2 * _WIDTH), nn.Linear(2 * _WIDTH, _WIDTH)

    def forward(self, x, asked, memory, places, padding):
        """x, with what it found; `asked` are the queries' own places."""
        x = self.norms[0](x + self.cross(x + asked, memory, places, padding))
        x = self.norms[1](x + self.own(x + asked, x, asked))
        return self.norms[2](x + self.down(self.up(x).relu()))


class Net(nn.Module):
    """Classes and masks of all queries, as each layer of the decoder tells them."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.backbone, self.pixels, self.positions = Backbone(), Pixels(), Positions()
        self.entry = nn.Conv2d(_WIDTH, _WIDTH, 1)
        self.queries = nn.Embedding(QUERIES, _WIDTH)
        self.asked = nn.Embedding(QUERIES, _WIDTH)
        self.decoder = nn.ModuleList(Layer(how) for _ in range(_LAYERS))
        self.norm = nn.LayerNorm(_WIDTH)
        self.classes = nn.Linear(_WIDTH, CLASSES + 1)
        self.masks = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, _WIDTH))

    def forward(self, scenes, padding):
        """Logits of classes (layer, scene, query, class) and of masks, at half the size."""
        how = self.how
        memory, features = self.pixels(*self.backbone(scenes))
        size = memory.shape[-2:]
        padding = functional.interpolate(padding[:, None].to(memory.dtype), size)[:, 0] > 0
        places = self.positions(padding)
        read = self.entry(memory if how.flows else memory.detach()).flatten(2).transpose(1, 2)
        padding = padding.flatten(1) if how.attends == "seen" else None
        found = self._decoded(read, places, padding)
        return self.classes(found), self._drawn(self.masks(found), features)

    def _decoded(self, memory, places, padding):
        """The queries after each layer."""
        x, asked = (one.weight.expand(len(memory), -1, -1) for one in (self.queries, self.asked))
        found = []
        for layer in self.decoder:
            given = x, asked, memory, places, padding
            if self.how.keeps == "all" or not torch.is_grad_enabled():
                x = layer(*given)
            else:
                x = checkpoint(layer, *given, use_reentrant=False)
            found.append(self.norm(x))
        return torch.stack(found)

    def _drawn(self, told, features):
        """Each embedding of a mask times the features of each pixel."""
        if self.how.dots == "einsum":
            return torch.einsum("lsqc,schw->lsqhw", told, features)
        told = told[..., None, None].unbind(3)  # channel by channel
        return sum(one * features[:, at, None] for at, one in enumerate(told))
