"""The model of a captioner: convolutions see a digit, and an LSTM that attends spells a caption."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_CHANNELS, _HIDDEN, _LETTER, _WIDE = 12, 16, 10, 14


class Conv(nn.Conv2d):
    """A convolution, torch's or as a product with patches."""

    way = "torch"

    def forward(self, x):
        """The convolution."""
        if self.way == "torch":
            return super().forward(x)
        high = (x.shape[2] - 1) // self.stride[0] + 1
        patches = functional.unfold(x, 3, padding=1, stride=self.stride)
        told = torch.einsum("ok,nkp->nop", self.weight.flatten(1), patches)
        return (told + self.bias[:, None]).unflatten(2, (high, -1))


class Encoder(nn.Module):
    """Features of 16 places of an image (image, place, channel)."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.conv1 = Conv(1, 8, 3, padding=1)
        self.conv2 = Conv(8, _CHANNELS, 3, stride=2, padding=1)
        self.conv1.way = self.conv2.way = how.convolution

    def forward(self, x):
        """The features."""
        x = self.conv2(self.conv1(x[:, None]).relu()).relu()
        if self.how.lays == "view":
            return x.reshape(len(x), -1, _CHANNELS)
        return x.flatten(2).transpose(1, 2)


class Attention(nn.Module):
    """Additive attention of a state to the places of an image, with a gate."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.keys, self.query = nn.Linear(_CHANNELS, _WIDE), nn.Linear(_HIDDEN, _WIDE)
        self.score, self.gate = nn.Linear(_WIDE, 1), nn.Linear(_HIDDEN, _CHANNELS)

    def forward(self, features, keys, hidden):
        """What is seen (image, channel), and the shares of places."""
        how = self.how
        keys = self.keys(features) if keys is None else keys
        mixed = keys + self.query(hidden)[:, None]
        mixed = mixed.relu() if how.bent == "relu" else mixed.tanh()
        if how.scoring == "product":
            scores = (mixed * self.score.weight[0]).sum(-1) + self.score.bias
        else:
            scores = self.score(mixed)[..., 0]
        axis = 1 if how.over == "places" else 0
        shares = scores.softmax(axis) if how.softmax == "torch" else scores.log_softmax(axis).exp()
        if how.seen == "sum":
            seen = (shares[..., None] * features).sum(1)
        else:
            seen = torch.einsum("np,npc->nc", shares, features)
        return seen * self.gate(hidden).sigmoid() if how.gates else seen, shares


class Cell(nn.LSTMCell):
    """A step of an LSTM, torch's or by its formulas."""

    def __init__(self, how) -> None:
        super().__init__(_LETTER + _CHANNELS, _HIDDEN)
        self.how = how
        if how.forgets:
            nn.init.ones_(self.bias_ih[_HIDDEN : 2 * _HIDDEN].detach())

    def forward(self, x, state):
        """The state after x."""
        if self.how.cell == "torch":
            return super().forward(x, state)
        hidden, cell = state
        weight = torch.cat((self.weight_ih, self.weight_hh), 1)
        mixed = functional.linear(torch.cat((x, hidden), 1), weight, self.bias_ih + self.bias_hh)
        into, kept, new, out = mixed.chunk(4, 1)
        cell = kept.sigmoid() * cell + into.sigmoid() * new.tanh()
        return out.sigmoid() * cell.tanh(), cell


class Letters(nn.Embedding):
    """Vectors of letters, looked up or as products with ones and zeros."""

    def __init__(self, how, letters: int) -> None:
        super().__init__(letters, _LETTER)
        self.how = how
        nn.init.uniform_(self.weight, -how.letters, how.letters)

    def forward(self, x):
        """The vectors."""
        if self.how.lookup == "torch":
            return super().forward(x)
        return functional.one_hot(x, len(self.weight)).to(self.weight.dtype) @ self.weight


class Speller(nn.Module):
    """Logits of each next letter, and where the net looked before it told them."""

    def __init__(self, how, letters: int) -> None:
        super().__init__()
        self.how = how
        self.encoder = Encoder(how)
        self.hidden, self.cell = nn.Linear(_CHANNELS, _HIDDEN), nn.Linear(_CHANNELS, _HIDDEN)
        self.embed = Letters(how, letters)
        self.attention, self.lstm = Attention(how), Cell(how)
        self.out = nn.Linear(_HIDDEN + _CHANNELS, letters)

    def forward(self, images, given):
        """Logits (image, step, letter) and shares (image, step, place)."""
        how = self.how
        if how.again:
            features = checkpoint(self.encoder, images, use_reentrant=False)
        else:
            features = self.encoder(images)
        features = features if how.tunes else features.detach()
        whole = features.mean(1)
        state = self.hidden(whole).tanh(), self.cell(whole).tanh()
        if not how.begins:
            state = tuple(torch.zeros_like(one) for one in state)
        keys = self.attention.keys(features) if how.projects == "once" else None
        told, looked = [], []
        for letter in self.embed(given).unbind(1):
            seen, shares = self.attention(features, keys, state[0])
            state = self.lstm(torch.cat((letter, seen), 1), state)
            state = state if how.carries == "rightly" else state[::-1]
            last = torch.cat((state[0], seen), 1)
            told.append(last if how.tells == "at once" else self.out(last))
            looked.append(shares)
        logits = torch.stack(told, 1)
        return self.out(logits) if how.tells == "at once" else logits, torch.stack(looked, 1)
