"""An encoder of sequences of tokens, and a decoder with Luong attention that answers them."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

PAD, BEGIN, END = range(3)
SOURCES, TARGETS = 15, 11
"""How many tokens either side knows."""
_WIDTH = 24


def embedded(how, count: int) -> nn.Sequential:
    """Embeddings, and dropout behind them."""
    words = nn.Embedding(count, _WIDTH, padding_idx=PAD)
    nn.init.normal_(words.weight, std=0.4)
    with torch.no_grad():
        words.weight[PAD].zero_()
    return nn.Sequential(OrderedDict(words=words, drop=nn.Dropout(how.dropout)))


class Cells(nn.GRU):
    """A GRU of one layer, torch's or by its formula."""

    way = "torch"

    def forward(self, x, state):
        """All states, and the last."""
        if self.way == "torch":
            return super().forward(x, state)
        state, found = state[0], []
        for one in x.unbind(1):
            given = functional.linear(one, self.weight_ih_l0, self.bias_ih_l0).chunk(3, 1)
            held = functional.linear(state, self.weight_hh_l0, self.bias_hh_l0).chunk(3, 1)
            reset, update = (torch.sigmoid(given[at] + held[at]) for at in range(2))
            new = torch.tanh(given[2] + reset * held[2])
            state = (1 - update) * new + update * state
            found.append(state)
        return torch.stack(found, 1), state[None]


class Encoder(nn.Module):
    """A GRU that reads in both directions."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.embed = embedded(how, SOURCES)
        self.gru = nn.GRU(_WIDTH, _WIDTH // 2, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, source, lengths):
        """What was read at each place, and the state that the decoder begins with."""
        x = self.embed(source)
        if self.how.packs:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            memory, last = self.gru(packed)
            memory, _ = pad_packed_sequence(memory, batch_first=True, total_length=x.shape[1])
        else:
            memory, last = self.gru(x)
        last = last.transpose(0, 1) if self.how.moves else last
        return memory, torch.tanh(self.bridge(last.reshape(len(x), -1)))


class Attention(nn.Module):
    """Luong's general attention."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.keys = nn.Linear(_WIDTH, _WIDTH, bias=False)

    def forward(self, query, memory, mask):
        """The contexts of queries (sample, time, width)."""
        scores = self._scores(query, memory)
        if self.how.masks:
            scores = scores.masked_fill(~mask[:, None], float("-inf"))
        weights = scores.softmax(-1)
        if self.how.attention == "sum":
            return (weights[..., None] * memory[:, None]).sum(2)
        return torch.bmm(weights, memory)

    def _scores(self, query, memory):
        if self.how.attention == "folded":
            return torch.bmm(query @ self.keys.weight, memory.transpose(1, 2))
        keys = self.keys(memory)
        if self.how.attention == "sum":
            return (query[:, :, None] * keys[:, None]).sum(-1)
        return torch.bmm(query, keys.transpose(1, 2))


class Decoder(nn.Module):
    """A GRU that attends to what was read, and tells the next token."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.embed = embedded(how, TARGETS)
        self.gru = Cells(_WIDTH, _WIDTH, batch_first=True)
        self.gru.way = how.cells
        self.attention = Attention(how)
        self.mix = nn.Linear(2 * _WIDTH, _WIDTH)
        self.out = nn.Linear(_WIDTH, TARGETS)
        if how.tied:
            self.out.weight = self.embed[0].weight

    def forward(self, words, state, memory, mask):
        """Logits after words (sample, time), and the last state."""
        states, last = self.gru(self.embed(words), state[None])
        query = states if self.how.query == "new" else state[:, None]
        context = self.attention(query, memory, mask)
        mixed = torch.tanh(self.mix(torch.cat((context, states), -1)))
        return self.out(mixed), last[0]


class Dialogue(nn.Module):
    """The encoder and the decoder."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.encoder, self.decoder = Encoder(how), Decoder(how)

    def forward(self, source, lengths, target, forced):
        """Logits of each token of the target; forced: whether a place is given the right one."""
        memory, state = self.encoder(source, lengths)
        mask = source != PAD
        begin = torch.full_like(target[:, :1], BEGIN)
        given = torch.cat((begin, target[:, :-1]), 1) if self.how.shifts else target
        if self.how.passes == "one" and all(forced):
            return self.decoder(given, state, memory, mask)[0]
        told, word = [], begin
        for at, right in enumerate(forced[: target.shape[1]]):
            word = given[:, at : at + 1] if right else word
            logits, state = self.decoder(word, state, memory, mask)
            state = state.detach() if self.how.detaches else state
            told.append(logits)
            word = logits.detach().argmax(-1)
        return torch.cat(told, 1)
