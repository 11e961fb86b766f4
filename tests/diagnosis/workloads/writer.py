"""The model of a handwriter: two LSTMs that keep their state, and mixtures of Gaussians."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

_WIDTH, _CODES, _MIXED = 20, 6, 4


class Reader(nn.LSTM):
    """An LSTM that goes on from the state it is in, over sequences that end at their lengths.

    It is given packed sequences, or padded ones, or it is a loop over cells.
    """

    def __init__(self, how, given: int) -> None:
        super().__init__(given, _WIDTH, batch_first=True)
        self.how, self.state = how, None

    def forward(self, x, lengths):
        """What it says of each place, zeros behind the end."""
        if self.how.cells == "packed":
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            out, self.state = super().forward(packed, self.state)
            return pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])[0]
        seen = (torch.arange(x.shape[1]) < lengths[:, None])[..., None]
        if self.how.cells == "padded":
            out, self.state = super().forward(x, self.state)
        else:
            out = self._loop(x, seen)
        return out * seen

    def _loop(self, x, seen):
        """One cell after the other; a sequence that has ended keeps its state."""
        given = functional.linear(x, self.weight_ih_l0, self.bias_ih_l0 + self.bias_hh_l0)
        none = x.new_zeros(len(x), _WIDTH)
        hidden, cell = (none, none) if self.state is None else (one[0] for one in self.state)
        told = []
        for at in range(x.shape[1]):
            gates = given[:, at] + hidden @ self.weight_hh_l0.T
            enters, stays, new, leaves = gates.chunk(4, 1)
            after = stays.sigmoid() * cell + enters.sigmoid() * new.tanh()
            cell = torch.where(seen[:, at], after, cell)
            hidden = torch.where(seen[:, at], leaves.sigmoid() * after.tanh(), hidden)
            told.append(hidden)
        self.state = (hidden[None], cell[None])
        return torch.stack(told, 1)


class Locked(nn.Module):
    """A dropout that leaves out the same channels at all places of a sequence."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """x, in part."""
        share = self.how.dropout
        if not self.training or not share:
            return x
        kept = (torch.rand(len(x), 1, x.shape[2]) >= share).to(x.dtype)
        return x * (kept.flip(0) if self.how.turned else kept) / (1 - share)


class Mixture(nn.Module):
    """The mixture of Gaussians that the numbers of the head stand for."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """The logarithms of weights, means, spreads, correlations, and the pen's logits."""
        how = self.how
        pen, x = x[..., -1], x[..., :-1]
        if how.parameters == "in turn":
            weights, right, down, wide, high, bound = x.chunk(6, -1)
        else:
            weights, right, down, wide, high, bound = x.unflatten(-1, (-1, 6)).unbind(-1)
        if how.softmax == "torch":
            weights = weights.log_softmax(how.axis)
        else:
            weights = weights - weights.logsumexp(how.axis, keepdim=True)
        spreads = torch.stack((wide, high), -1)
        spreads = spreads.exp() if how.spread == "exp" else functional.softplus(spreads)
        bound = bound.tanh() if how.bounds == "tanh" else bound.sigmoid()
        return weights, torch.stack((right, down), -1), spreads, 0.95 * bound, pen


class Head(nn.Linear):
    """A linear layer, as a whole or number by number of the mixtures."""

    def __init__(self, how) -> None:
        super().__init__(2 * _WIDTH, 6 * _MIXED + 1)
        self.how = how

    def forward(self, x):
        """The numbers of the mixtures and of the pen."""
        if self.how.heads == "joined":
            return super().forward(x)
        weights, biases = self.weight.split(_MIXED), self.bias.split(_MIXED)
        parts = [functional.linear(x, *own) for own in zip(weights, biases, strict=True)]
        return torch.cat(parts, -1)


class Writer(nn.Module):
    """What stroke comes next: the upper LSTM is given the strokes again."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.names = nn.Embedding(10, _CODES)
        self.lower, self.upper = Reader(how, 3 + _CODES), Reader(how, 3 + _CODES + _WIDTH)
        self.locked, self.head, self.mixture = Locked(how), Head(how), Mixture(how)

    def forward(self, strokes, labels, lengths):
        """Mixtures, place by place."""
        codes = self.names(labels)[:, None].expand(-1, strokes.shape[1], -1)
        given = torch.cat((strokes, codes), -1)
        lower = self.lower(given, lengths)
        kept = self.locked(lower if self.how.flows else lower.detach())
        upper = self.upper(torch.cat((given, kept), -1), lengths)
        return self.mixture(self.head(torch.cat((lower, upper), -1)))

    def rest(self) -> None:
        """Forget the state."""
        self.lower.state = self.upper.state = None

    def cut(self) -> None:
        """Go on from the state, without its past."""
        for one in (self.lower, self.upper):
            one.state = tuple(part.detach() for part in one.state)
