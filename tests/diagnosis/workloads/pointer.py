"""The model of a summarizer: it reads a sequence, and writes words of its own or points at some."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

PAD, START, STOP, UNKNOWN = range(4)
WORDS, ALL = 11, 14
"""How many words the vocabulary has, and how many there are with those that it lacks."""
_WIDTH, _STATE, _SCORED = 10, 12, 10
_BOTH = 2 * _STATE


class Encoder(nn.LSTM):
    """A bidirectional LSTM that stops where each sequence does, torch's or by its formula."""

    def __init__(self, how) -> None:
        super().__init__(_WIDTH, _STATE, batch_first=True, bidirectional=True)
        self.how = how
        with torch.no_grad():
            for bias in (self.bias_ih_l0, self.bias_ih_l0_reverse):
                bias[_STATE : 2 * _STATE] = how.forget

    def forward(self, x, lengths):
        """What is remembered of each place, and the last states and cells of both directions."""
        if self.how.reading == "loops":
            known = torch.arange(x.shape[1]) < lengths[:, None]
            told, last = zip(*(self._read(x, known, end) for end in ("", "_reverse")), strict=True)
            state, cell = (torch.cat(one, 1) for one in zip(*last, strict=True))
            return torch.cat(told, 2), state, cell
        if self.how.packs:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            told, last = super().forward(packed)
            told = pad_packed_sequence(told, batch_first=True, total_length=x.shape[1])[0]
        else:
            told, last = super().forward(x)
        if self.how.joins == "sequences":
            return told, *(one.transpose(0, 1).flatten(1) for one in last)
        return told, *(one.reshape(len(x), -1) for one in last)

    def _read(self, x, known, end):
        weights = (getattr(self, f"{name}_l0{end}") for name in ("weight_ih", "weight_hh"))
        taken, kept = weights
        bias = getattr(self, f"bias_ih_l0{end}") + getattr(self, f"bias_hh_l0{end}")
        state = cell = x.new_zeros(len(x), _STATE)
        told, places = [None] * x.shape[1], range(x.shape[1])
        for at in reversed(places) if end else places:
            gates = functional.linear(torch.cat((x[:, at], state), 1), torch.cat((taken, kept), 1))
            new, kept_cell = _moved(gates + bias, cell)
            here = known[:, at, None]
            state, cell = torch.where(here, new, state), torch.where(here, kept_cell, cell)
            told[at] = state * here
        return torch.stack(told, 1), (state, cell)


def _moved(gates, cell):
    """The next state and cell of an LSTM."""
    enters, keeps, new, shows = gates.chunk(4, 1)
    cell = keeps.sigmoid() * cell + enters.sigmoid() * new.tanh()
    return shows.sigmoid() * cell.tanh(), cell


class Cell(nn.LSTMCell):
    """One step of an LSTM, torch's or by its formula."""

    def __init__(self, how) -> None:
        super().__init__(_WIDTH, _STATE)
        self.how = how
        with torch.no_grad():
            self.bias_ih[_STATE : 2 * _STATE] = how.forget

    def forward(self, x, last):
        """The next state and cell."""
        if self.how.cell == "torch":
            return super().forward(x, last)
        weight = torch.cat((self.weight_ih, self.weight_hh), 1)
        gates = torch.einsum("ni,oi->no", torch.cat((x, last[0]), 1), weight)
        return _moved(gates + (self.bias_ih + self.bias_hh), last[1])


class Attention(nn.Module):
    """Additive attention that is told how much each place was attended to so far."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.key = nn.Linear(_BOTH, _SCORED, bias=False)
        self.query = nn.Linear(_BOTH, _SCORED)
        self.cover = nn.Linear(1, _SCORED, bias=False)
        self.score = nn.Linear(_SCORED, 1, bias=False)

    def forward(self, state, told, keys, covered, known):
        """How much each place is attended to."""
        how = self.how
        if how.scoring == "summed":
            mixed = keys + self.query(state)[:, None] + self.cover(covered[..., None])
        else:
            wide = state[:, None].expand(-1, told.shape[1], -1)
            joined = torch.cat((told, wide, covered[..., None]), 2)
            weight = torch.cat((self.key.weight, self.query.weight, self.cover.weight), 1)
            mixed = functional.linear(joined, weight, self.query.bias)
        scores = self.score(mixed.tanh())[..., 0]
        if how.masks == "before":
            scores = scores.masked_fill(~known, how.lowest)
        weights = scores.softmax(1 if how.over == "places" else 0)
        if how.masks == "after":
            weights = weights * known
            weights = weights / weights.sum(1, keepdim=True)
        return weights


class Decoder(nn.Module):
    """One word more: the chances of all words, of which some are only in the sequence."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.enter = nn.Linear(_WIDTH + _BOTH, _WIDTH)
        self.cell, self.attention = Cell(how), Attention(how)
        self.switch = nn.Linear(2 * _BOTH + _WIDTH, 1)
        self.mix, self.out = nn.Linear(_STATE + _BOTH, _STATE), nn.Linear(_STATE, WORDS)

    def forward(self, x, last, told, keys, covered, known, ids):
        """Chances (sample, word), weights of places, what is read, and the state and cell."""
        how, (seen, state, cell) = self.how, last
        x = self.enter(torch.cat((x, seen), 1))
        state, cell = self.cell(x, (state, cell))
        both = torch.cat((state, cell), 1)
        weights = self.attention(both, told, keys, covered, known)
        seen = (weights[:, None] @ told)[:, 0]
        share = self.switch(torch.cat((seen, both, x), 1))
        share = share.sigmoid() if how.gate == "sigmoid" else 0.5 * (1 + (share / 2).tanh())
        words = self.out(self.mix(torch.cat((state, seen), 1)))
        words = words.softmax(1) if how.chances == "softmax" else words.log_softmax(1).exp()
        own, copied = share * words, (1 - share) * weights
        if how.shares == "exchanged":
            own, copied = (1 - share) * words, share * weights
        own = functional.pad(own, (0, ALL - WORDS)).to(copied.dtype)
        if how.copying == "adds":
            chances = own.scatter_add(1, ids, copied)
        elif how.copying == "product":
            named = functional.one_hot(ids, ALL).to(copied.dtype)
            chances = own + (copied[:, None] @ named)[:, 0]
        else:
            chances = own + torch.zeros_like(own).scatter(1, ids, copied)
        return chances, weights, seen, state, cell


class Summarizer(nn.Module):
    """Reads digits and writes a shorter sequence of them."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.embed = nn.Embedding(WORDS, _WIDTH)
        nn.init.normal_(self.embed.weight, std=how.spread)
        self.encoder, self.decoder = Encoder(how), Decoder(how)
        self.state, self.cell = nn.Linear(_BOTH, _STATE), nn.Linear(_BOTH, _STATE)

    def forward(self, source, wanted, forced):
        """Chances (sample, step, word) and weights and coverage (sample, step, place).

        forced: of each step, whether the word before it is the one that was wanted.
        """
        how, known = self.how, source != PAD
        told, state, cell = self.encoder(self.embed(_named(source)), known.sum(1))
        told = told if how.remembers else told.detach()
        keys = self.decoder.attention.key(told) if how.scoring == "summed" else None
        last = told.new_zeros(len(told), _BOTH), self.state(state).relu(), self.cell(cell).relu()
        ids = source if how.points == "all" else _named(source)
        word, covered = torch.full_like(source[:, 0], START), torch.zeros_like(told[..., 0])
        found = []
        for at, teacher in enumerate(forced):
            given = self.embed(_named(wanted[:, at] if how.peeks and teacher else word))
            inputs = given, last, told, keys, covered, known, ids
            if how.keeps == "all":
                chances, weights, *last = self.decoder(*inputs)
            else:
                chances, weights, *last = checkpoint(self.decoder, *inputs, use_reentrant=False)
            found.append((chances, weights, covered))
            covered = covered + (weights if how.covers == "attached" else weights.detach())
            word = wanted[:, at] if teacher else chances.argmax(1)
        return tuple(torch.stack(one, 1) for one in zip(*found, strict=True))


def _named(words):
    """Words, those that the vocabulary lacks as one."""
    return words.masked_fill(words >= WORDS, UNKNOWN)
