"""A tagger of rows: a bidirectional LSTM, and a linear chain over its emissions."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import anchorlib

_PIXELS, _WIDTH, _HIDDEN = 8, 12, 8


class Recurrence(nn.LSTM):
    """An LSTM in both directions over padded sequences; each reads its own rows alone."""

    def __init__(self, how) -> None:
        super().__init__(_WIDTH, _HIDDEN, batch_first=True, bidirectional=True)
        self.how = how
        self.state = None

    def forward(self, x, lengths):
        """States of both directions side by side (sequence, time, 2 hidden); 0 in the padding."""
        how = self.how
        if how.lstm == "own":
            ways = [self._one_way(x, lengths, back) for back in (False, True)]
            return torch.cat(ways, -1)
        if not how.packs:
            return super().forward(x)[0]
        if how.lstm == "sorted":
            sizes, places = lengths.sort(descending=True)
            packed = pack_padded_sequence(x[places], sizes, batch_first=True)
            told, _ = pad_packed_sequence(super().forward(packed)[0], True, 0.0, x.shape[1])
            return told[places.argsort() if how.restores else places]
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        told, state = super().forward(packed, self.state if self.training else None)
        if how.carries and self.training:
            self.state = tuple(one.detach() for one in state)
        return pad_packed_sequence(told, True, 0.0, x.shape[1])[0]

    def _one_way(self, x, lengths, back):
        """The states of one direction, cell by cell."""
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        end = "_reverse" if back else ""
        into, over, first, second = (getattr(self, f"{name}_l0{end}") for name in names)
        gates = functional.linear(x, into, first + second)
        hidden = cell = gates.new_zeros(len(x), _HIDDEN)
        inside = torch.arange(x.shape[1]) < lengths[:, None]
        told = [hidden] * x.shape[1]
        for at in reversed(range(x.shape[1])) if back else range(x.shape[1]):
            now = gates[:, at] + functional.linear(hidden, over)
            enters, keeps, new, leaves = now.chunk(4, 1)
            fresh = keeps.sigmoid() * cell + enters.sigmoid() * new.tanh()
            here = inside[:, at, None]
            cell = torch.where(here, fresh, cell)
            hidden = torch.where(here, leaves.sigmoid() * fresh.tanh(), hidden)
            told[at] = hidden * here
        return torch.stack(told, 1)


class Emit(nn.Linear):
    """A linear layer, torch's or by einsum."""

    way = "torch"

    def forward(self, x):
        """Scores of tags."""
        if self.way == "einsum":
            return torch.einsum("bti,oi->bto", x, self.weight) + self.bias
        return super().forward(x)


class Chain(nn.Module):
    """A conditional random field: scores of first tags, of last tags, and from tag to tag."""

    def __init__(self, how, tags: int) -> None:
        super().__init__()
        self.how = how
        self.start = nn.Parameter(torch.empty(tags).uniform_(-0.1, 0.1))
        self.end = nn.Parameter(torch.empty(tags).uniform_(-0.1, 0.1))
        self.transitions = nn.Parameter(torch.empty(tags, tags).uniform_(-0.1, 0.1))

    def forward(self, emissions, tags, lengths):
        """The log likelihood of each sequence's tags."""
        if self.how.sequences == "each":
            alone = [
                self._both(emissions[at : at + 1, :size], tags[at : at + 1, :size], size.view(1))
                for at, size in enumerate(lengths)
            ]
            gold, normalizer = (torch.cat(one) for one in zip(*alone, strict=True))
        else:
            gold, normalizer = self._both(emissions, tags, lengths)
        return anchorlib.anchor(gold, "gold") - anchorlib.anchor(normalizer, "normalizer")

    def _both(self, emissions, tags, lengths):
        inside = torch.arange(emissions.shape[1]) < lengths[:, None] - int(self.how.short)
        gold = self._stepwise if self.how.golden == "steps" else self._gold
        every = self._from_right if self.how.every == "right" else self._every
        return gold(emissions, tags, inside, lengths), every(emissions, inside)

    def _gold(self, emissions, tags, inside, lengths):
        """The score of the path that is right."""
        told = (emissions.gather(2, tags[..., None])[..., 0] * inside).sum(1)
        before, after = tags[:, :-1], tags[:, 1:]
        before, after = (after, before) if self.how.exchanged else (before, after)
        moved = (self.transitions[before, after] * inside[:, 1:]).sum(1)
        first = self.start[tags[:, 0]] if self.how.starts else 0.0
        last = tags.gather(1, lengths[:, None] - 1)[:, 0] if self.how.last else tags[:, -1]
        return first + told + moved + self.end[last]

    def _stepwise(self, emissions, tags, inside, lengths):
        """The same, row by row."""
        rows = torch.arange(len(tags))
        score = self.start[tags[:, 0]] + emissions[rows, 0, tags[:, 0]]
        for at in range(1, tags.shape[1]):
            moved = self.transitions[tags[:, at - 1], tags[:, at]]
            moved = moved + emissions[rows, at, tags[:, at]]
            score = score + moved * inside[:, at].to(moved.dtype)
        return score + self.end[tags[rows, lengths - 1]]

    def _every(self, emissions, inside):
        """The logarithm of the sum over all paths: the forward algorithm."""
        score = self.start + emissions[:, 0]
        for at in range(1, emissions.shape[1]):
            moved = self._moved(score, emissions[:, at])
            score = torch.where(inside[:, at, None], moved, score) if self.how.masks else moved
        return self._sum(score + self.end, 1)

    def _moved(self, score, emitted):
        """Scores of all tags, one row on."""
        if self.how.every == "products":
            most = score.amax(1, keepdim=True).detach()
            return ((score - most).exp() @ self.transitions.exp()).log() + most + emitted
        paths = score[:, :, None] + self.transitions + emitted[:, None]
        return self._sum(paths, 1 if self.how.into == "next" else 2)

    def _sum(self, scores, axis):
        """The logarithm of a sum of exponentials."""
        if self.how.best:
            return scores.amax(axis)
        if self.how.every == "own":
            most = scores.max(axis, keepdim=True)[0]
            return (scores - most).exp().sum(axis).log() + most.squeeze(axis)
        return scores.logsumexp(axis)

    def _from_right(self, emissions, inside):
        """The same by the backward algorithm."""
        score = self.end.expand(len(emissions), -1)
        for at in reversed(range(1, emissions.shape[1])):
            paths = self.transitions + (emissions[:, at] + score)[:, None]
            score = torch.where(inside[:, at, None], paths.logsumexp(2), score)
        return (self.start + emissions[:, 0] + score).logsumexp(1)

    def decode(self, emissions, lengths):
        """The best path of each sequence, by Viterbi's algorithm."""
        score = self.start + emissions[:, 0]
        inside = torch.arange(emissions.shape[1]) < lengths[:, None]
        origins = []
        for at in range(1, emissions.shape[1]):
            best, origin = (score[:, :, None] + self.transitions).max(1)
            score = torch.where(inside[:, at, None], best + emissions[:, at], score)
            origins.append(origin)
        paths = []
        for row, size in enumerate(lengths.tolist()):
            path = [int((score[row] + self.end).argmax())]
            for origin in reversed(origins[: size - 1]):
                path.append(int(origin[row, path[-1]]))
            paths.append(path[::-1])
        return paths


class Model(nn.Module):
    """Log likelihoods of the tags of padded sequences of rows."""

    def __init__(self, how, tags: int) -> None:
        super().__init__()
        self.how = how
        self.embed = nn.Sequential(
            OrderedDict(
                lift=nn.Linear(_PIXELS, _WIDTH), act=nn.Tanh(), drop=nn.Dropout(how.dropout)
            )
        )
        self.lstm = Recurrence(how)
        self.emit = Emit(2 * _HIDDEN, tags)
        self.emit.way = how.linear
        self.crf = Chain(how, tags)
        if how.spare:
            self.spare = nn.Flatten()

    def features(self, rows, lengths):
        """Emissions (sequence, time, tag)."""
        how = self.how
        with torch.autocast("cpu", torch.bfloat16, enabled=how.low):
            emissions = self.emit(self.lstm(self.embed(rows), lengths))
        emissions = emissions.softmax(-1) if how.soft else emissions
        return anchorlib.anchor(emissions.to(rows.dtype), "emissions")

    def forward(self, rows, tags, lengths):
        """The log likelihoods."""
        return self.crf(self.features(rows, lengths), tags, lengths)

    def decode(self, rows, lengths):
        """The best tags."""
        return self.crf.decode(self.features(rows, lengths), lengths)
