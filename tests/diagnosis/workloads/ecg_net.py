"""The net of signals of a heart: residual dilated convolutions, and attention pooling over time."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

LEADS, LABELS = 2, 5
_WIDTHS = (12, 12, 16, 16)
_STRIDES = (1, 2, 1)
_DILATIONS = (1, 2, 4)
_HIDDEN = 8


class Standard(nn.Module):
    """Each lead of each signal less its mean, as a multiple of its spread."""

    def __init__(self, how) -> None:
        super().__init__()
        self.axes = 2 if how.leads == "apart" else (1, 2)

    def forward(self, x, mask):
        """x, of a known size where there is a signal, zero behind it."""
        count = mask.expand_as(x).sum(self.axes, keepdim=True)
        x = (x - (x * mask).sum(self.axes, keepdim=True) / count) * mask
        return x / (x.square().sum(self.axes, keepdim=True) / count + 1e-6).sqrt()


class Conv(nn.Conv1d):
    """A convolution that keeps the length but for its stride, torch's or as a sum over its taps."""

    def __init__(self, how, into: int, out: int, size: int, stride=1, dilation=1) -> None:
        padding = dilation * (size // 2)
        super().__init__(into, out, size, stride, padding, dilation, bias=False)
        self.how = how

    def forward(self, x):
        """The convolution."""
        if self.how.convolution == "torch":
            return super().forward(x)
        (padding,), (stride,), (dilation,) = self.padding, self.stride, self.dilation
        long = (x.shape[2] - 1) // stride * stride + 1
        x = functional.pad(x, (padding, padding))
        starts = range(0, dilation * self.weight.shape[2], dilation)
        return sum(
            tap @ x[:, :, at : at + long : stride]
            for tap, at in zip(self.weight.unbind(2), starts, strict=True)
        )


class Norm(nn.BatchNorm1d):
    """A batch norm over signals and time, of signals or of all their frames in one row."""

    def __init__(self, how, width: int) -> None:
        super().__init__(width)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "signals":
            return super().forward(x)
        frames = x.transpose(1, 2).reshape(-1, x.shape[1])
        return super().forward(frames).unflatten(0, (len(x), -1)).transpose(1, 2)


class Squeeze(nn.Module):
    """Squeeze and excitation: each channel times a gate, which is made of all channels' means."""

    def __init__(self, how, width: int) -> None:
        super().__init__()
        self.how = how
        self.down, self.up = nn.Linear(width, width // 4), nn.Linear(width // 4, width)

    def forward(self, x, mask):
        """x, gated."""
        mean = x.mean(2) if self.how.squeezes == "all" else (x * mask).sum(2) / mask.sum(2)
        gate = self.up(functional.silu(self.down(mean))).sigmoid()
        gate = gate.detach() if self.how.gate == "detached" else gate
        return x * gate[:, :, None]


class Block(nn.Module):
    """Two convolutions with norms, squeezed and added to what the block was given."""

    def __init__(self, how, into: int, out: int, stride: int, dilation: int) -> None:
        super().__init__()
        self.conv1 = Conv(how, into, out, 5, stride, dilation)
        self.conv2 = Conv(how, out, out, 5, 1, dilation)
        self.norm1, self.norm2 = Norm(how, out), Norm(how, out)
        self.squeeze = Squeeze(how, out)
        same = into == out and stride == 1
        self.shortcut = nn.Identity() if same else Conv(how, into, out, 1, stride)

    def forward(self, x, mask):
        """Frames, zero behind the signal."""
        inner = functional.silu(self.norm1(self.conv1(x))) * mask
        inner = self.squeeze(self.norm2(self.conv2(inner)), mask)
        return functional.silu(inner + self.shortcut(x)) * mask


class Pool(nn.Module):
    """The mean of a signal's frames, weighted by attention."""

    def __init__(self, how, width: int) -> None:
        super().__init__()
        self.how = how
        self.hidden, self.score = nn.Linear(width, _HIDDEN), nn.Linear(_HIDDEN, 1, bias=False)

    def forward(self, x, mask):
        """One row a signal."""
        frames, shown = x.transpose(1, 2), mask[:, 0] > 0
        if self.how.pooling == "each":
            return torch.stack([self._one(*one) for one in zip(frames, shown.sum(1), strict=True)])
        keys = self.hidden(frames).tanh()
        if self.how.pooling == "torch":
            query = self.score.weight.to(keys.dtype).expand(len(x), 1, -1)
            values, allowed = frames.to(keys.dtype), shown[:, None]
            mixed = functional.scaled_dot_product_attention
            return mixed(query, keys, values, attn_mask=allowed, scale=1.0)[:, 0]
        scores = self.score(keys)[..., 0]
        if self.how.attends == "signal":
            scores = scores.masked_fill(~shown, -torch.inf)
        return (scores.softmax(1)[..., None] * frames).sum(1)

    def _one(self, frames, length):
        frames = frames[:length]
        return self.score(self.hidden(frames).tanh())[:, 0].softmax(0) @ frames


class Heart(nn.Module):
    """Logits of a signal's labels."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.standard = Standard(how)
        self.stem, self.norm = Conv(how, LEADS, _WIDTHS[0], 7, 2), Norm(how, _WIDTHS[0])
        self.blocks = nn.ModuleList(
            Block(how, *one)
            for one in zip(_WIDTHS[:-1], _WIDTHS[1:], _STRIDES, _DILATIONS, strict=True)
        )
        self.pool, self.drop = Pool(how, _WIDTHS[-1]), nn.Dropout(0.1)
        self.head = nn.Linear(_WIDTHS[-1], LABELS)

    def forward(self, x, lengths):
        """Logits of signals (signal, lead, time) that are padded behind their lengths."""
        mask = self._mask(x, lengths)
        x, mask = self.standard(x, mask), mask[:, :, ::2]
        x = functional.silu(self.norm(self.stem(x))) * mask
        for block, stride in zip(self.blocks, _STRIDES, strict=True):
            mask = mask[:, :, ::stride]
            x = block(x, mask)
        if self.how.keeps == "all" or not torch.is_grad_enabled():
            x = self.pool(x, mask)
        else:
            x = checkpoint(self.pool, x, mask, use_reentrant=False)
        return self.head(self.drop(x))

    def _mask(self, x, lengths):
        """One where there is a signal (signal, 1, time)."""
        times = torch.arange(x.shape[2])
        last = lengths[:, None] + (1 if self.how.ends == "one late" else 0)
        return (times < last)[:, None].to(x.dtype)
