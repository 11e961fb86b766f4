"""The model of a VQ-VAE: an encoder, a book of codes that follows its choosers, a decoder."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

CODES, DEEP = 16, 6
_CHANNELS, _UPPER, _SMOOTH = 12, 8, 1e-2


class Conv(nn.Conv2d):
    """A convolution, torch's or a product of patches."""

    way = "torch"

    def forward(self, x):
        """The convolution."""
        if self.way == "torch":
            return super().forward(x)
        size, stride, pad = self.kernel_size[0], self.stride[0], self.padding[0]
        high = (x.shape[2] + 2 * pad - size) // stride + 1
        patches = functional.unfold(x, size, padding=pad, stride=stride)
        out = self.weight.flatten(1) @ patches + self.bias[:, None]
        return out.unflatten(2, (high, -1))


class Norm(nn.GroupNorm):
    """A group norm, torch's or by its formula."""

    way = "torch"

    def forward(self, x):
        """x, normed."""
        if self.way == "torch":
            return super().forward(x)
        wide = x.to(self.weight.dtype).unflatten(1, (self.num_groups, -1))
        spread, mean = torch.var_mean(wide, (2, 3, 4), correction=0, keepdim=True)
        normed = ((wide - mean) * torch.rsqrt(spread + self.eps)).flatten(1, 2)
        return normed * self.weight[:, None, None] + self.bias[:, None, None]


class Act(nn.Module):
    """A swish, written in one of two ways."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """The activation."""
        return functional.silu(x) if self.how.act == "torch" else x / (1 + torch.exp(-x))


class Block(nn.Module):
    """What is given, and two convolutions of it, each after a ReLU."""

    def __init__(self, how) -> None:
        super().__init__()
        self.first = nn.ReLU(inplace=how.in_place)
        self.conv1, self.conv2 = Conv(_CHANNELS, 8, 3, 1, 1), Conv(8, _CHANNELS, 1)
        self.second = nn.ReLU()

    def forward(self, x):
        """x, moved."""
        return self.conv2(self.second(self.conv1(self.first(x)))) + x


class Encoder(nn.Module):
    """Images as vectors, one for each four pixels."""

    def __init__(self, how) -> None:
        super().__init__()
        self.enter, self.norm = Conv(1, _CHANNELS, 4, 2, 1), Norm(4, _CHANNELS)
        self.act, self.block, self.leave = Act(how), Block(how), Conv(_CHANNELS, DEEP, 1)

    def forward(self, x):
        """x (image, 1, 8, 8) as (image, DEEP, 4, 4)."""
        return self.leave(self.block(self.act(self.norm(self.enter(x)))))


class Decoder(nn.Module):
    """Vectors as images."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.enter, self.block, self.norm = (
            Conv(DEEP, _CHANNELS, 3, 1, 1),
            Block(how),
            Norm(4, _CHANNELS),
        )
        self.act, self.wider = Act(how), Conv(_CHANNELS, 4 * _UPPER, 3, 1, 1)
        self.last, self.leave = Act(how), Conv(_UPPER, 1, 3, 1, 1)

    def forward(self, x):
        """x (image, DEEP, 4, 4) as (image, 1, 8, 8)."""
        x = self.wider(self.act(self.norm(self.block(self.enter(x)))))
        x = self.leave(self.last(self._shuffled(x)))
        return x.sigmoid() if self.how.bounds == "sigmoid" else x.tanh()

    def _shuffled(self, x):
        """Four channels as four pixels."""
        count, _, high, wide = x.shape
        if self.how.shuffle == "torch":
            return functional.pixel_shuffle(x, 2)
        apart = x.reshape(count, 2, 2, _UPPER, high, wide).permute(0, 3, 4, 1, 5, 2)
        return apart.reshape(count, _UPPER, 2 * high, 2 * wide)


class Book(nn.Module):
    """Codes, of which each vector is given the nearest one."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        codes = 0.3 * torch.randn(CODES, DEEP)
        if how.learns == "loss":
            self.codes = nn.Parameter(codes)
        else:
            self.register_buffer("codes", codes)
            self.register_buffer("counts", torch.ones(CODES))
            self.register_buffer("sums", codes.clone())

    def forward(self, z):
        """The codes of z through which gradients pass, and both distances of z and its codes."""
        how = self.how
        last = z.permute(0, 2, 3, 1) if how.lies else z
        flat = last.reshape(-1, DEEP)
        with torch.no_grad():
            chosen = self._nearest(flat)
        follows = self.training and how.learns == "averages"
        if follows and how.renews == "before":
            self._follow(flat.detach(), chosen)
        found = self.codes[chosen].view(last.shape)
        found = found.permute(0, 3, 1, 2) if how.lies else found
        if follows and how.renews == "after":
            self._follow(flat.detach(), chosen)
        near = self._missed(z.detach() if how.commits == "codes" else z, found.detach())
        book = self._missed(found, z if how.pulls == "both" else z.detach())
        return self._straight(z, found), near, book

    def _nearest(self, flat):
        how = self.how
        if how.distances == "cdist":
            return torch.cdist(flat, self.codes).argmin(1)
        both = flat @ self.codes.T
        far = flat.square().sum(1, keepdim=True) + self.codes.square().sum(1)
        return (far - (2 * both if how.twice else both)).argmin(1)

    def _straight(self, z, found):
        how = self.how
        if how.straight == "open":
            return z + (found - z)
        if how.straight == "nothing":
            return found
        if how.straight == "added":
            return found.detach() + (z - z.detach())
        if how.straight == "codes":
            return found + (z - z.detach())
        return z + (found - z).detach()

    def _missed(self, one, other):
        if self.how.over == "sum":
            return functional.mse_loss(one, other, reduction="sum")
        return functional.mse_loss(one, other)

    @torch.no_grad()
    def _follow(self, flat, chosen):
        """Renew the averages of what chose each code, and the codes."""
        how = self.how
        ones = functional.one_hot(chosen, CODES).to(flat.dtype)
        counts = ones.mean(0) if how.counted == "mean" else ones.sum(0)
        sums = ones.T @ flat
        if how.averages == "lerp":
            self.counts.lerp_(counts, 1 - how.keeps)
            self.sums.lerp_(sums, 1 - how.keeps)
        else:
            self.counts.mul_(how.keeps).add_(counts, alpha=1 - how.keeps)
            self.sums.mul_(how.keeps if how.forgets else 1.0).add_(sums, alpha=1 - how.keeps)
        total, smoothed = self.counts.sum(), self.counts
        if how.smooths:
            smoothed = (smoothed + _SMOOTH) / (total + CODES * _SMOOTH) * total
        self.codes.copy_(self.sums / smoothed[:, None])


class Quantized(nn.Module):
    """Images, encoded, as codes, and decoded."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.encoder, self.book, self.decoder = Encoder(how), Book(how), Decoder(how)
        for module in self.modules():
            if isinstance(module, Conv):
                module.way = how.convolution
            if isinstance(module, Norm):
                module.way = how.norming

    def forward(self, x):
        """Images, how far vectors are from their codes, and codes from their vectors."""
        z = self.encoder(x)
        with torch.autocast("cpu", enabled=False):
            z, near, book = self.book(z.to(self.encoder.leave.weight.dtype))
        return self.decoder(z), near, book
