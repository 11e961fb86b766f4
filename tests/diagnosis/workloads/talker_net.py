"""A net that speaks: phonemes are encoded, held as long as they last, and decoded to mel frames."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

BANDS, PHONEMES = 8, 10
_WIDTH, _HEADS, _FILTER = 16, 2, 24


def padding(how, lengths, longest: int):
    """Where a batch is padded (utterance, place)."""
    places = torch.arange(longest)
    return places > lengths[:, None] if how.inclusive else places >= lengths[:, None]


class Conv(nn.Conv1d):
    """A convolution over time of (utterance, time, channel), torch's or as a product."""

    def __init__(self, how, into: int, out: int, kernel: int) -> None:
        super().__init__(into, out, kernel, padding=kernel // 2)
        self.how = how

    def forward(self, x):
        """The convolution, of the same length."""
        if self.how.convolution == "torch":
            return super().forward(x.transpose(1, 2)).transpose(1, 2)
        around = self.padding[0]
        windows = functional.pad(x, (0, 0, around, around)).unfold(1, self.kernel_size[0], 1)
        return functional.linear(windows.flatten(2), self.weight.flatten(1), self.bias)


class Positions(nn.Module):
    """Sinusoids by place, which are added."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """x, which knows its places."""
        kind = torch.get_default_dtype()
        if self.how.sinusoids == "powers":
            places = torch.arange(x.shape[1], dtype=torch.float64)[:, None]
            powers = 1e4 ** (torch.arange(0, _WIDTH, 2, dtype=torch.float64) / _WIDTH)
            angles = places / powers
        else:
            places = torch.arange(x.shape[1], dtype=kind)[:, None]
            rates = torch.exp(torch.arange(0, _WIDTH, 2, dtype=kind) * (-math.log(1e4) / _WIDTH))
            angles = places * rates
        return x + torch.stack((angles.sin(), angles.cos()), -1).flatten(1).to(kind)


class Attention(nn.Module):
    """Attention of all places to those that are not padding."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.q, self.k, self.v = (nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(3))
        self.out = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x, pads):
        """x, mixed."""
        q, k, v = (
            one(x).unflatten(-1, (_HEADS, -1)).transpose(1, 2) for one in (self.q, self.k, self.v)
        )
        pads = pads[:, None, None]
        if self.how.attention == "torch":
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=~pads)
        else:
            scores = q @ k.transpose(-1, -2) / math.sqrt(_WIDTH // _HEADS)
            mixed = scores.masked_fill(pads, -math.inf).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


class Feed(nn.Module):
    """Two convolutions, the first of them over neighbours."""

    def __init__(self, how) -> None:
        super().__init__()
        self.conv1, self.conv2 = Conv(how, _WIDTH, _FILTER, 5), Conv(how, _FILTER, _WIDTH, 1)

    def forward(self, x):
        """x, convolved."""
        return self.conv2(self.conv1(x).relu())


class Block(nn.Module):
    """A feed-forward transformer block: what is padded stays zero."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.attention, self.feed = Attention(how), Feed(how)
        self.norm1, self.norm2 = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.drop1, self.drop2 = nn.Dropout(how.dropout), nn.Dropout(how.dropout)

    def forward(self, x, pads):
        """x, moved."""
        x = self._zeroed(self.norm1(x + self.drop1(self.attention(x, pads))), pads)
        return self._zeroed(self.norm2(x + self.drop2(self.feed(x))), pads)

    def _zeroed(self, x, pads):
        return x.masked_fill(pads[..., None], 0) if self.how.zeroes else x


class Stack(nn.Module):
    """Blocks over what knows its places."""

    def __init__(self, how, *, placed: bool) -> None:
        super().__init__()
        self.how = how
        self.positions = Positions(how) if placed else nn.Identity()
        self.blocks = nn.ModuleList(Block(how) for _ in range(2))

    def forward(self, x, pads):
        """x, through all blocks."""
        x = self.positions(x)
        for block in self.blocks:
            if self.how.keeps == "all" or not torch.is_grad_enabled():
                x = block(x, pads)
            else:
                x = checkpoint(block, x, pads, use_reentrant=False)
        return x


class Predictor(nn.Module):
    """A number for each phoneme."""

    def __init__(self, how) -> None:
        super().__init__()
        self.convs = nn.ModuleList(Conv(how, _WIDTH, _WIDTH, 3) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(_WIDTH) for _ in range(2))
        self.drops = nn.ModuleList(nn.Dropout(how.dropout) for _ in range(2))
        self.out = nn.Linear(_WIDTH, 1)

    def forward(self, x, pads):
        """The numbers, zero where there is no phoneme."""
        for conv, norm, drop in zip(self.convs, self.norms, self.drops, strict=True):
            x = drop(norm(conv(x.masked_fill(pads[..., None], 0)).relu()))
        return self.out(x)[..., 0].masked_fill(pads, 0)


class Regulator(nn.Module):
    """What is known of each phoneme, repeated for each of its frames."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x, durations, longest: int):
        """Frames (utterance, frame, channel), of which `longest` are made."""
        ends = durations.cumsum(1)
        frames = torch.arange(longest).expand(len(x), -1).contiguous()
        if self.how.regulator == "loop":
            held = [one.repeat_interleave(long, 0) for one, long in zip(x, durations, strict=True)]
            held = nn.utils.rnn.pad_sequence(held, batch_first=True)
            return functional.pad(held, (0, 0, 0, longest - held.shape[1]))
        if self.how.regulator == "path":
            begins = (ends - durations)[:, None]
            path = (frames[..., None] >= begins) & (frames[..., None] < ends[:, None])
            return path.to(x.dtype) @ x
        which = torch.searchsorted(ends, frames, right=self.how.right)
        which = which.clamp(max=x.shape[1] - 1)[..., None].expand(-1, -1, x.shape[2])
        return x.gather(1, which).masked_fill((frames >= ends[:, -1:])[..., None], 0)


class Talker(nn.Module):
    """Mel frames of phonemes, how long each of these lasts, and how high it is."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.embedding = nn.Embedding(1 + PHONEMES, _WIDTH, padding_idx=0)
        self.encoder = Stack(how, placed=True)
        self.duration, self.pitch = Predictor(how), Predictor(how)
        self.pitch_embedding = Conv(how, 1, _WIDTH, 3)
        self.regulator = Regulator(how)
        self.decoder = Stack(how, placed=how.placed)
        self.mel = nn.Linear(_WIDTH, BANDS)

    def forward(self, phonemes, lengths, durations=None, pitch=None, longest=None):
        """Frames, logarithms of durations, and pitches; without targets, as they are told."""
        pads = padding(self.how, lengths, phonemes.shape[1])
        x = self.encoder(self.embedding(phonemes), pads)
        lasting = self.duration(x.detach() if self.how.stops else x, pads)
        high = self.pitch(x, pads)
        if durations is None:
            durations = (lasting.exp() - 1).round().long().clamp(min=1).masked_fill(pads, 0)
        pitch = high if pitch is None or not self.how.forces else pitch
        x = x + self.pitch_embedding(pitch[..., None])
        spoken = durations.sum(1)
        longest = longest or int(spoken.max())
        x = self.decoder(self.regulator(x, durations, longest), padding(self.how, spoken, longest))
        return self.mel(x), lasting, high
