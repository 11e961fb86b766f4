"""An encoder and a forecaster of convolutional LSTMs, which tell the next frames of a radar."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_CHANNELS, _SIZES = (6, 8), (8, 4)
"""Channels and widths of the hidden states of each level."""
_READ = 4
"""Channels that a frame is read from."""


class Norm(nn.GroupNorm):
    """A group norm, torch's or as a layer norm of each group."""

    def __init__(self, how, groups: int, channels: int) -> None:
        super().__init__(groups, channels)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "torch":
            return super().forward(x)
        parts = x.unflatten(1, (self.num_groups, -1))
        normed = functional.layer_norm(parts, parts.shape[2:], eps=self.eps).flatten(1, 2)
        return torch.addcmul(
            self.bias[:, None, None], normed, self.weight[:, None, None].to(normed.dtype)
        )


class Down(nn.Module):
    """A convolution that halves the width, a norm and a leaky ReLU."""

    def __init__(self, how, into: int, out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(into, out, 3, stride=2, padding=1, bias=False)
        self.norm, self.act = Norm(how, 2, out), nn.LeakyReLU(0.2)

    def forward(self, x):
        """x, half as wide."""
        return self.act(self.norm(self.conv(x)))


class Raise(nn.ConvTranspose2d):
    """A transposed convolution, torch's or as a convolution whose channels become pixels."""

    def __init__(self, how, into: int, out: int) -> None:
        super().__init__(into, out, 4, stride=2, padding=1, bias=False)
        self.how = how

    def forward(self, x):
        """x, twice as wide."""
        if self.how.raising == "torch":
            return super().forward(x)
        kernel, none = self.weight.transpose(0, 1), self.weight.new_zeros(())
        for axis in (2, 3):  # even pixels see the taps 3 and 1, odd ones 2 and 0
            k0, k1, k2, k3 = kernel.unbind(axis)
            empty = none.expand_as(k0)
            phases = torch.stack((k3, k1, empty), axis), torch.stack((empty, k2, k0), axis)
            kernel = torch.stack(phases, 1).flatten(0, 1) if axis == 2 else torch.stack(phases, 1)
        kernel = kernel.unflatten(0, (-1, 2)).flatten(0, 2)  # channel, row, column
        return functional.pixel_shuffle(functional.conv2d(x, kernel, padding=1), 2)


class Up(nn.Module):
    """A transposed convolution that doubles the width, a norm and a leaky ReLU."""

    def __init__(self, how, into: int, out: int) -> None:
        super().__init__()
        self.conv = Raise(how, into, out)
        self.norm, self.act = Norm(how, 2, out), nn.LeakyReLU(0.2)

    def forward(self, x):
        """x, twice as wide."""
        return self.act(self.norm(self.conv(x)))


class Cell(nn.Module):
    """A convolutional LSTM with a normed sum of gates, and peepholes at the cell state."""

    def __init__(self, how, channels: int) -> None:
        super().__init__()
        self.how = how
        self.of_input = nn.Conv2d(channels, 4 * channels, 3, padding=1, bias=False)
        self.of_state = nn.Conv2d(channels, 4 * channels, 3, padding=1, bias=False)
        self.norm = Norm(how, how.groups, 4 * channels)
        self.peepholes = nn.Parameter(torch.randn(3, channels, 1, 1) * 0.2)

    def forward(self, x, hidden, cell):
        """The next hidden and cell state."""
        for_input, for_forget, for_output = self.peepholes
        i, f, g, o = self.norm(self._gates(x, hidden)).chunk(4, 1)
        i, f = self._sigmoid(i + for_input * cell), self._sigmoid(f + 1 + for_forget * cell)
        following = f * cell + i * g.tanh()
        seen = following if self.how.peeps == "new" else cell
        return self._sigmoid(o + for_output * seen) * following.tanh(), following

    def _gates(self, x, hidden):
        if self.how.packing == "apart":
            return self.of_input(x) + self.of_state(hidden)
        weight = torch.cat((self.of_input.weight, self.of_state.weight), 1)
        return functional.conv2d(torch.cat((x, hidden), 1), weight, padding=1)

    def _sigmoid(self, x):
        if self.how.sigmoid == "torch":
            return x.sigmoid()
        return 0.5 * (x / 2).tanh() + 0.5


class Stack(nn.Module):
    """Cells of two levels, each at half the width of what is below it."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.downs = nn.ModuleList(
            Down(how, into, out) for into, out in zip((1, *_CHANNELS), _CHANNELS, strict=False)
        )
        self.cells = nn.ModuleList(Cell(how, channels) for channels in _CHANNELS)

    def forward(self, frames, states):
        """The states of both levels after some frames (sample, time, 1, height, width)."""
        states = list(states)
        if self.how.scans == "times":
            for frame in frames.unbind(1):
                x = frame
                for at, (down, cell) in enumerate(zip(self.downs, self.cells, strict=True)):
                    states[at] = self._moved(cell, down(x), states[at])
                    x = states[at][0]
            return states
        for at, (down, cell) in enumerate(zip(self.downs, self.cells, strict=True)):
            times, found = frames.shape[1], []
            for x in down(frames.flatten(0, 1)).unflatten(0, (-1, times)).unbind(1):
                states[at] = self._moved(cell, x, states[at])
                found.append(states[at][0])
            frames = torch.stack(found, 1)
        return states

    def _moved(self, cell, x, state):
        if self.how.keeps == "all" or not torch.is_grad_enabled():
            return cell(x, *state)
        return checkpoint(cell, x, *state, use_reentrant=False)


class Readout(nn.Module):
    """How a frame changes, of the hidden states of both levels."""

    def __init__(self, how) -> None:
        super().__init__()
        low, high = _CHANNELS
        self.ups = nn.ModuleList((Up(how, high, low), Up(how, low, _READ)))
        self.head = nn.Conv2d(_READ, 1, 1)

    def forward(self, low, high):
        """The change (sample, 1, height, width)."""
        return self.head(self.ups[1](low + self.ups[0](high)))


class Nowcast(nn.Module):
    """What the encoder has seen goes on in the forecaster, frame by frame.

    draws: what scheduled sampling is drawn from. kept: the encoder's last states.
    """

    def __init__(self, how, known: int, draws: torch.Generator) -> None:
        super().__init__()
        self.how, self.known, self.draws = how, known, draws
        self.encoder, self.forecaster, self.readout = Stack(how), Stack(how), Readout(how)
        self.kept = None

    def forward(self, frames, chance: float):
        """The frames behind those that are known; truth is fed back by a chance."""
        states = self.encoder(frames[:, : self.known], self._begun(frames))
        self.kept = [tuple(one.detach() for one in state) for state in states]
        given, told = frames[:, self.known - 1], []
        ahead = frames.shape[1] - self.known
        forced = torch.zeros(len(frames), ahead, dtype=torch.bool)
        if self.training:
            forced = torch.rand(len(frames), ahead, generator=self.draws) < chance
        for at in range(ahead):
            states = self.forecaster(given[:, None], states)
            told.append(given + self.readout(*(hidden for hidden, _ in states)))
            given = self._fed(frames[:, self.known + at], told[-1], forced[:, at])
        if self.how.lies == "samples":
            return torch.stack(told, 1)
        return torch.stack(told).view(len(frames), ahead, *given.shape[1:])

    def _begun(self, frames):
        """The states before the first frame."""
        if self.how.carries and self.training and self.kept is not None:
            return self.kept
        return [
            2 * (frames.new_zeros(len(frames), channels, size, size),)
            for channels, size in zip(_CHANNELS, _SIZES, strict=True)
        ]

    def _fed(self, true, told, forced):
        """What the forecaster is given next."""
        told = told if self.how.feeds == "attached" else told.detach()
        forced = forced[:, None, None, None]
        return (
            torch.where(forced, true, told) if self.how.forces else torch.where(forced, told, true)
        )
