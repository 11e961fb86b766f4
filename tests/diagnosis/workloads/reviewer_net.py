"""The net of a document's class: attention over the words of sentences, then over sentences."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

import anchorlib

PAD = 0
_EMBEDDED, _HIDDEN, _ATTENDED = 12, 8, 10


class Encoder(nn.GRU):
    """A GRU that reads each sequence in both directions, and nothing beyond its end."""

    def __init__(self, how, into: int) -> None:
        super().__init__(into, _HIDDEN, batch_first=True, bidirectional=True)
        self.how = how

    def forward(self, x, lengths):
        """The states at each place (sequence, place, 2 × hidden), zeros at padding."""
        how = self.how
        if how.recurrence == "packed":
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            told, _ = super().forward(packed)
            return pad_packed_sequence(told, batch_first=True, total_length=x.shape[1])[0]
        if how.recurrence == "padded":
            return super().forward(x)[0]
        read = self._cells if how.recurrence == "cells" else self._turned
        seen = within(lengths, x.shape[1])[..., None]
        return torch.cat((read(x, lengths, False), read(x, lengths, True)), -1) * seen

    def _weights(self, back):
        end = "_l0_reverse" if back else "_l0"
        return [
            getattr(self, name + end) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        ]

    def _cells(self, x, lengths, back):
        """One place after the other; sequences that do not reach it keep their state."""
        into, over, bias_into, bias_over = self._weights(back)
        given = functional.linear(x, into, bias_into).unbind(1)
        seen = within(lengths, x.shape[1])[..., None].unbind(1)
        state, states = x.new_zeros(len(x), _HIDDEN), [x] * len(given)
        for at in reversed(range(len(given))) if back else range(len(given)):
            reset, update, new = given[at].chunk(3, 1)
            kept_reset, kept_update, kept = functional.linear(state, over, bias_over).chunk(3, 1)
            reset, update = (reset + kept_reset).sigmoid(), (update + kept_update).sigmoid()
            moved = torch.lerp((new + reset * kept).tanh(), state, update)
            state = states[at] = torch.where(seen[at], moved, state)
        return torch.stack(states, 1)

    def _turned(self, x, lengths, back):
        """Read with padding behind; for the way back, what is before it is turned."""
        places = torch.arange(x.shape[1]).expand(x.shape[:2])
        last = lengths[:, None] - 1
        turned = torch.where(places <= last, last - places, places)[..., None]
        x = x.take_along_dim(turned, 1) if back else x
        first = x.new_zeros(1, len(x), _HIDDEN)
        told, _ = torch.gru(x, first, self._weights(back), True, 1, 0.0, self.training, False, True)
        return told.take_along_dim(turned, 1) if back else told


class Attention(nn.Module):
    """The mean of states, weighted by how well each agrees with a learnt context."""

    def __init__(self, how, name: str) -> None:
        super().__init__()
        self.how, self.name = how, name
        self.project = nn.Linear(2 * _HIDDEN, _ATTENDED)
        self.context = nn.Linear(_ATTENDED, 1, bias=False)

    def forward(self, states, lengths):
        """One vector of each sequence."""
        scores = self.context(self.project(states).tanh())[..., 0]
        weights = anchorlib.anchor(self._weights(scores, lengths), f"{self.name}_attention")
        return (weights[..., None] * states).sum(1)

    def _weights(self, scores, lengths):
        how = self.how
        seen = within(lengths - how.short, scores.shape[1])
        if how.pooling == "exp":
            powers = (scores - scores.amax(1, keepdim=True).detach()).exp() * seen
            return powers / powers.sum(1, keepdim=True)
        if how.masks:
            scores = scores.masked_fill(~seen, -torch.inf)
        return scores.softmax(how.over)


class Level(nn.Module):
    """Sequences, read in both directions and pooled."""

    def __init__(self, how, name: str, into: int) -> None:
        super().__init__()
        self.encode, self.attend = Encoder(how, into), Attention(how, name)

    def forward(self, x, lengths):
        """One vector of each sequence (sequence, 2 × hidden)."""
        return self.attend(self.encode(x, lengths), lengths)


class Net(nn.Module):
    """Words make sentences, sentences make documents."""

    def __init__(self, how, known: int, classes: int) -> None:
        super().__init__()
        self.how = how
        self.embed = nn.Embedding(known, _EMBEDDED, padding_idx=PAD)
        self.drop = nn.Dropout(how.dropout)
        self.words = Level(how, "word", _EMBEDDED)
        self.drop_sentences = nn.Dropout(how.dropout)
        self.sentences = Level(how, "sentence", 2 * _HIDDEN)
        self.head = nn.Linear(2 * _HIDDEN, classes)

    def forward(self, documents):
        """Logits of documents (document, sentence, word), padded at both levels."""
        lengths = (documents != PAD).sum(2)
        told = self._pooled(self.drop(self.embed(documents)).flatten(0, 1), lengths.flatten())
        count, most = lengths.shape
        if self.how.regroups == "rightly":
            told = told.view(count, most, -1)
        else:
            told = told.view(most, count, -1).transpose(0, 1)
        return self.head(self.sentences(self.drop_sentences(told), (lengths > 0).sum(1)))

    def _pooled(self, embedded, lengths):
        """A vector of each sentence; what it is where there is no sentence is never read."""
        if self.how.rows == "all":
            return self._read(embedded, lengths.clamp(min=1))
        real = lengths > 0
        found = self._read(embedded[real], lengths[real])
        return found.new_zeros(len(lengths), found.shape[1]).index_put((real,), found)

    def _read(self, embedded, lengths):
        if self.how.keeps == "all" or not torch.is_grad_enabled():
            return self.words(embedded, lengths)
        return checkpoint(self.words, embedded, lengths, use_reentrant=False)


def within(lengths: torch.Tensor, most: int) -> torch.Tensor:
    """Which places hold an element (sequence, place)."""
    return torch.arange(most) < lengths[:, None]
