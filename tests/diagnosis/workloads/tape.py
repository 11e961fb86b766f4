"""A net with a memory beside it: a controller, and heads that write to the memory and read it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_SLOTS, _WIDTH, _HIDDEN = 12, 8, 24
_READERS = ("first", "second")
_ADDRESS = (_WIDTH, 1, 1, 3, 1)
"""Sizes of what addresses: a key, how much it counts, a gate, shifts, and a sharpness."""
_TINY = 1e-16


class Controller(nn.LSTMCell):
    """An LSTM cell, torch's or by its formula."""

    def __init__(self, how, into: int) -> None:
        super().__init__(into, _HIDDEN)
        self.how = how

    def forward(self, x, state):
        """The next hidden value and cell."""
        if self.how.cell == "torch":
            return super().forward(x, state)
        hidden, cell = state
        gates = functional.linear(
            torch.cat((x, hidden), 1),
            torch.cat((self.weight_ih, self.weight_hh), 1),
            self.bias_ih + self.bias_hh,
        )
        enters, forgets, new, leaves = gates.chunk(4, 1)
        cell = forgets.sigmoid() * cell + enters.sigmoid() * new.tanh()
        return leaves.sigmoid() * cell.tanh(), cell


class Content(nn.Module):
    """The slots that are like a key."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, memory, key, strength):
        """Weights of slots (sample, slot)."""
        how = self.how
        if not how.normed:
            alike = (memory * key[:, None]).sum(2)
        elif how.cosine == "torch":
            alike = functional.cosine_similarity(memory, key[:, None], dim=2)
        else:
            key = key * key.square().sum(1, keepdim=True).rsqrt()
            lengths = memory.square().sum(2).rsqrt()
            alike = torch.einsum("bnm,bm->bn", memory, key) * lengths
        return (strength * alike).softmax(1 if how.over == "slots" else 0)


class Shift(nn.Module):
    """Weights, moved round by one slot or none."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, weights, shares):
        """The moved weights."""
        if self.how.moving == "roll":
            moved = [weights.roll(by, 1) for by in (1, 0, -1)]
            return sum(share[:, None] * one for share, one in zip(shares.T, moved, strict=True))
        ends = weights[:, -1:], weights[:, :1]
        if not self.how.round:
            ends = [torch.zeros_like(one) for one in ends]
        around = torch.cat((ends[0], weights, ends[1]), 1).unfold(1, 3, 1)
        return (around * shares[:, None]).sum(2)


class Sharpen(nn.Module):
    """Weights to a power, whose sum is one."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, weights, sharpness):
        """The sharper weights."""
        if self.how.sharpening == "softmax":
            return (sharpness * weights.log()).softmax(1)
        weights = weights**sharpness
        return weights / (weights.sum(1, keepdim=True) + _TINY) if self.how.sums else weights


class Address(nn.Module):
    """Where a head looks: by content, by where it looked before, and then moved and sharpened."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.content, self.shift, self.sharpen = Content(how), Shift(how), Sharpen(how)

    def forward(self, memory, told, before):
        """Weights of slots."""
        key, strength, gate, shares, sharpness = told
        weights = self.content(memory, key.tanh(), functional.softplus(strength))
        gate = gate.sigmoid()
        before = before if self.how.through else before.detach()
        weights = self.shift(gate * weights + (1 - gate) * before, shares.softmax(1))
        return self.sharpen(weights, functional.softplus(sharpness) + self.how.least)


class Head(nn.Module):
    """What a head is told by the controller, and where it looks."""

    def __init__(self, how, more: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.sizes = (*_ADDRESS, *more)
        self.told, self.address = nn.Linear(_HIDDEN, sum(self.sizes)), Address(how)

    def forward(self, memory, hidden, before, told=None):
        """Weights of slots, and what else the head was told."""
        told = self.told(hidden) if told is None else told
        told = told.to(memory.dtype).split(self.sizes, 1)
        return self.address(memory, told[: len(_ADDRESS)], before), told[len(_ADDRESS) :]


class Write(nn.Module):
    """Slots, partly erased and added to."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, memory, weights, erased, added):
        """The next memory."""
        if self.how.writing == "products":
            kept = 1 - torch.einsum("bn,bm->bnm", weights, erased)
            return torch.baddbmm(memory * kept, weights[:, :, None], added[:, None])
        kept = 1 - weights[:, :, None] * erased[:, None]
        added = weights[:, :, None] * added[:, None]
        return memory * kept + added if self.how.erases == "first" else (memory + added) * kept


class Read(nn.Module):
    """The mean of slots by their weights."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, memory, weights):
        """What is read (sample, width)."""
        if self.how.reading == "product":
            return torch.bmm(weights[:, None], memory)[:, 0]
        return (weights[:, :, None] * memory).sum(1)


class Tape(nn.Module):
    """A controller with one head that writes and two that read."""

    def __init__(self, how, into: int, out: int) -> None:
        super().__init__()
        self.how = how
        self.controller = Controller(how, into + len(_READERS) * _WIDTH)
        self.writer = Head(how, (_WIDTH, _WIDTH))
        self.readers = nn.ModuleDict({name: Head(how) for name in _READERS})
        self.write, self.read = Write(how), Read(how)
        layers = [nn.Linear(_HIDDEN + len(_READERS) * _WIDTH, 24), nn.ReLU(), nn.Linear(24, out)]
        self.out = nn.Sequential(*layers) if how.layers == "sequence" else nn.ModuleList(layers)
        self.hidden, self.cell = (nn.Parameter(torch.randn(_HIDDEN) * 0.1) for _ in range(2))
        self.first_read = nn.Parameter(torch.randn(len(_READERS) * _WIDTH) * 0.1)
        self.looks = nn.Parameter(torch.randn(1 + len(_READERS), _SLOTS))
        self.register_buffer("blank", torch.randn(_SLOTS, _WIDTH) * 0.3)
        self.left = None

    def forward(self, x):
        """Logits at each time: x is (sample, time, input)."""
        count, how = len(x), self.how
        memory = self.blank.expand(count, -1, -1)
        if not how.resets and self.left is not None:
            memory = self.left
        state = [one.expand(count, -1) for one in (self.hidden, self.cell)]
        looks = [one.softmax(0).expand(count, -1) for one in self.looks]
        reads, logits = self.first_read.expand(count, -1), []
        for now in x.unbind(1):
            if how.keeps == "all":
                found = self._step(now, memory, state, looks, reads)
            else:
                found = checkpoint(
                    self._step, now, memory, state, looks, reads, use_reentrant=False
                )
            memory, state, looks, reads, told = found
            logits.append(told)
        self.left = memory.detach()
        return torch.stack(logits, 1)

    def _step(self, now, memory, state, looks, reads):
        """Everything at the next time, and its logits."""
        how = self.how
        hidden, cell = self.controller(torch.cat((now, reads), 1), state)
        told = self._told(hidden)
        old, before = memory, [looks[1 if how.looks == "first" else head] for head in (1, 2)]
        look, (erased, added) = self.writer(memory, hidden, looks[0], told[0])
        memory = self.write(memory, look, erased.sigmoid(), added.tanh())
        seen, looks, found = memory if how.reads == "new" else old, [look], []
        for head, last, given in zip(self.readers.values(), before, told[1:], strict=True):
            look, _ = head(seen, hidden, last, given)
            looks.append(look)
            found.append(self.read(seen, look))
        reads = torch.cat(found, 1)
        told = torch.cat((hidden.to(reads.dtype), reads), 1)
        if how.layers == "sequence":
            told = self.out(told)
        else:
            for layer in self.out:
                told = layer(told)
        state = (hidden, cell) if how.states == "rightly" else (cell, hidden)
        return memory, state, looks, reads, told

    def _told(self, hidden):
        """What all heads are told, if it is computed at once."""
        heads = [self.writer, *self.readers.values()]
        if self.how.packing == "apart":
            return [None] * len(heads)
        weight, bias = (
            torch.cat([getattr(head.told, name) for head in heads]) for name in ("weight", "bias")
        )
        told = functional.linear(hidden, weight, bias)
        return told.split([sum(head.sizes) for head in heads], 1)
