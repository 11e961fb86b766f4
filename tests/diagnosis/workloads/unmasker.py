"""The model of a masked autoencoder: patches that are seen are encoded, the others are told."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

SIDE, PLACES, PIXELS = 4, 16, 4
"""Patches in a row, in an image, and pixels in a patch."""
DEPTH = 2
_WIDTH, _HEADS = 16, 4
_NARROW, _FEW = 12, 2


def patches(images, pixels="rows"):
    """Images (sample, 8, 8) as patches (sample, place, pixel), their pixels in rows or columns."""
    parted = images.unflatten(1, (SIDE, -1)).unflatten(3, (SIDE, -1))
    order = (0, 1, 3, 2, 4) if pixels == "rows" else (0, 1, 3, 4, 2)
    return parted.permute(order).reshape(len(images), PLACES, PIXELS)


def _positions(width):
    """Sines and cosines of each place's row and column (place, width)."""
    rates = 20.0 ** -(torch.arange(width // 4) / (width // 4))
    angles = torch.arange(SIDE)[:, None] * rates
    along = torch.cat((angles.sin(), angles.cos()), 1)
    high = along[:, None].expand(-1, SIDE, -1)
    wide = along[None].expand(SIDE, -1, -1)
    return torch.cat((high, wide), -1).flatten(0, 1)


def _picked(tokens, places):
    """The tokens of some places, sample by sample."""
    return tokens.gather(1, places[..., None].expand(-1, -1, tokens.shape[-1]))


class Norm(nn.LayerNorm):
    """A layer norm, torch's or by its formula."""

    def __init__(self, how, width: int) -> None:
        super().__init__(width, how.norm_eps)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "torch":
            return super().forward(x)
        wide = x.to(self.weight.dtype)
        wide = wide - wide.mean(-1, keepdim=True)
        spread = wide.square().mean(-1, keepdim=True)
        return wide / (spread + self.eps).sqrt() * self.weight + self.bias


class Attention(nn.Module):
    """Attention of all tokens to all tokens."""

    def __init__(self, how, width: int, heads: int) -> None:
        super().__init__()
        self.how, self.heads = how, heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        """x, mixed."""
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)) for part in (self.q, self.k, self.v))
        return self.out(self._mixed(q, k, v).reshape(x.shape))

    def _mixed(self, q, k, v):
        """The values (sample, token, head, size), weighted."""
        how = self.how
        size, axis = q.shape[-1], -1 if how.over == "keys" else -2
        if how.attention == "logarithms":
            scores = torch.einsum("nqhs,nkhs->nhqk", q / math.sqrt(size), k)
            return torch.einsum("nhqk,nkhs->nqhs", scores.log_softmax(axis).exp(), v)
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        if how.attention == "torch":
            mixed = functional.scaled_dot_product_attention(q, k, v)
        else:
            mixed = (q @ k.transpose(-1, -2) / math.sqrt(size)).softmax(axis) @ v
        return mixed.transpose(1, 2)


class Block(nn.Module):
    """Attention and two layers, each added to what it was given."""

    def __init__(self, how, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = Norm(how, width), Norm(how, width)
        self.attention = Attention(how, width, heads)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        """x, moved."""
        x = x + self.attention(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Embed(nn.Linear):
    """Tokens of the patches that are seen, with their positions."""

    def __init__(self, how) -> None:
        super().__init__(PIXELS, _WIDTH)
        self.how = how
        self.register_buffer("positions", _positions(_WIDTH))

    def forward(self, seen, kept):
        """The tokens (sample, kept, width)."""
        how = self.how
        if how.places == "first":
            return _picked(super().forward(seen), kept) + self.positions[: kept.shape[1]]
        if how.embedding == "convolution":
            row = seen.flatten(1)[:, None]
            tokens = functional.conv1d(row, self.weight[:, None], self.bias, stride=PIXELS)
            tokens = tokens.transpose(1, 2) + self.positions
        elif how.embedding == "product":
            given = (self.positions + self.bias).expand(len(seen), -1, -1)
            tokens = torch.baddbmm(given, seen, self.weight.T.expand(len(seen), -1, -1))
        else:
            tokens = super().forward(seen) + self.positions
        if how.picking == "index":
            return tokens[torch.arange(len(seen))[:, None], kept]
        return _picked(tokens, kept)


class Encoder(nn.Module):
    """What is seen, with a token for the whole."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.embed = Embed(how)
        self.whole = nn.Parameter(torch.randn(_WIDTH) * 0.02)
        self.blocks = nn.ModuleList(Block(how, _WIDTH, _HEADS) for _ in range(DEPTH))
        self.norm = Norm(how, _WIDTH)

    def forward(self, seen, kept):
        """The latent tokens."""
        tokens = self.embed(seen, kept)
        x = torch.cat((self.whole.expand(len(seen), 1, _WIDTH).to(tokens.dtype), tokens), 1)
        for block in self.blocks:
            if self.how.keeps == "all" or not torch.is_grad_enabled():
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=False)
        return self.norm(x)


class Fill(nn.Module):
    """A learnt token where nothing was seen, all tokens in their places, with their positions."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.token = nn.Parameter(torch.randn(_NARROW) * 0.02)
        self.register_buffer("positions", _positions(_NARROW))

    def forward(self, x, restore):
        """The tokens of the whole and of all places."""
        how = self.how
        hidden = PLACES - (x.shape[1] - 1)
        tokens = self.token.expand(len(x), hidden, _NARROW).to(x.dtype)
        tokens = _picked(torch.cat((x[:, 1:], tokens), 1), restore)
        if how.told_places == "none":
            return torch.cat((x[:, :1], tokens), 1)
        if how.told_places == "one off":
            tokens = torch.cat((x[:, :1], tokens), 1)
            return tokens + functional.pad(self.positions, (0, 0, 0, 1))
        return torch.cat((x[:, :1], tokens + self.positions), 1)


class Decoder(nn.Module):
    """The pixels of all places, of latent tokens."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.embed, self.fill = nn.Linear(_WIDTH, _NARROW), Fill(how)
        self.block, self.norm = Block(how, _NARROW, _FEW), Norm(how, _NARROW)
        self.tell = nn.Linear(_NARROW, PIXELS)

    def forward(self, latent, restore):
        """The pixels (sample, place, pixel)."""
        if not self.how.flows:
            latent = torch.cat((latent[:, :1], latent[:, 1:].detach()), 1)
        x = self.fill(self.embed(latent), restore)
        return self.tell(self.norm(self.block(x)))[:, 1:]


class Unmasker(nn.Module):
    """Encodes what is kept of patches, and tells them all."""

    def __init__(self, how) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(how), Decoder(how)

    def forward(self, seen, kept, restore):
        """The told pixels of patches (sample, place, pixel)."""
        return self.decoder(self.encoder(seen, kept), restore)
