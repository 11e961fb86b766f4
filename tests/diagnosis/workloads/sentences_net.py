"""A small variational autoencoder of sentences, and the grammar that its sentences are drawn by."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

PAD, BOS, EOS, UNK = range(4)
_WORDS = (
    "the a every some",
    "old small red quiet happy",
    "cat dog bird child doctor king",
    "sees likes finds follows calls",
    "sleeps runs waits",
    "often never slowly today",
)
"""Determiners, adjectives, nouns, verbs with and without an object, and adverbs."""
_PATTERNS = ((0, 2, 4), (0, 2, 4, 5), (0, 1, 2, 3, 0, 2), (0, 2, 3, 0, 1, 2, 5), (0, 1, 1, 2, 4, 5))
_COUNT, _WORD, _STATE, LATENT = 92, 12, 16, 8


def _kinds():
    """The numbers of the words of each kind; the first ones are special tokens."""
    found, first = [], UNK + 1
    for words in _WORDS:
        found.append(range(first, first + len(words.split())))
        first = found[-1].stop
    return found


VOCABULARY = _kinds()[-1].stop


@cache
def corpus() -> list[torch.Tensor]:
    """Sentences, each from its first token to its last."""
    drawing, kinds = torch.Generator().manual_seed(2016), _kinds()
    found = []
    for _ in range(_COUNT):
        pattern = _PATTERNS[int(torch.randint(len(_PATTERNS), (), generator=drawing))]
        words = [
            int(torch.randint(kinds[kind].start, kinds[kind].stop, (), generator=drawing))
            for kind in pattern
        ]
        found.append(torch.tensor([BOS, *words, EOS]))
    return found


class WordDropout(nn.Module):
    """Words give way to the unknown one by chance, so that the decoder needs the latent."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how, self.p = how, how.dropped

    def forward(self, tokens):
        """Tokens; the special ones stay."""
        if not self.training:
            return tokens
        drops = (torch.rand(tokens.shape) < self.p) & (tokens > UNK)
        if self.how.drops == "where":
            return torch.where(drops, UNK, tokens)
        return tokens.masked_fill(drops, UNK)


class Encoder(nn.Module):
    """What two GRUs know of a sentence, one from its begin and one from its end."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.gru = nn.GRU(_WORD, _STATE, batch_first=True, bidirectional=True)

    def forward(self, words, lengths):
        """The last states of both directions (sentence, 2 × state)."""
        if self.how.encodes == "masked":
            return torch.cat([self._masked(words, lengths, way) for way in ("", "_reverse")], 1)
        packed = pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False)
        _, last = self.gru(packed)
        if not self.how.moves:
            return last.reshape(len(words), -1)
        return last.transpose(0, 1).flatten(1)

    def _masked(self, words, lengths, way):
        """The last state of one direction; pads leave a state as it is."""
        state = words.new_zeros(len(words), _STATE)
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        weights = [getattr(self.gru, name + way) for name in names]
        places = range(words.shape[1])
        for at in reversed(places) if way else places:
            moved = torch.gru_cell(words[:, at], state, *weights)
            state = torch.where((at < lengths)[:, None], moved, state)
        return state


class Posterior(nn.Module):
    """Where a sentence's latent lies."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.logvar = (nn.Linear(2 * _STATE, LATENT) for _ in range(2))

    def forward(self, known):
        """Means, and logarithms of variances."""
        return self.mean(known), self.logvar(known)


class Sample(nn.Module):
    """A latent drawn from its posterior, such that gradients reach the posterior."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, mean, logvar):
        """The latent."""
        std = torch.exp(logvar if self.how.spreads == "variance" else 0.5 * logvar)
        if self.how.samples == "own":
            return mean + torch.randn_like(std) * std
        posterior = torch.distributions.Normal(mean, std)
        return posterior.sample() if self.how.samples == "sample" else posterior.rsample()


class Decoder(nn.GRU):
    """A GRU that sees the words so far and at each of them the latent."""

    def __init__(self, how) -> None:
        super().__init__(_WORD + LATENT, _STATE, batch_first=True)
        self.how = how

    def forward(self, words, latent, state):
        """The states at all places."""
        if self.how.decodes == "gates":
            return self._gates(words, latent, state)
        given = torch.cat((words, latent[:, None].expand(-1, words.shape[1], -1)), 2)
        if self.how.decodes == "torch":
            return super().forward(given, state[None])[0]
        states = []
        for one in given.unbind(1):
            state = torch.gru_cell(one, state, *self.all_weights[0])
            states.append(state)
        return torch.stack(states, 1)

    def _gates(self, words, latent, state):
        """The same by its formula; what the latent adds to the gates is computed once."""
        by_word, by_latent = self.weight_ih_l0.split((_WORD, LATENT), 1)
        given = functional.linear(words, by_word, self.bias_ih_l0)
        given = given + functional.linear(latent, by_latent)[:, None]
        states = []
        for one in given.unbind(1):
            known = functional.linear(state, self.weight_hh_l0, self.bias_hh_l0).chunk(3, 1)
            reset, update, new = one.chunk(3, 1)
            reset, update = (reset + known[0]).sigmoid(), (update + known[1]).sigmoid()
            new = torch.tanh(new + reset * known[2])
            state = new + update * (state - new)
            states.append(state)
        return torch.stack(states, 1)


class SentenceVAE(nn.Module):
    """Encoder, latent and decoder; words have the same vectors when read and when told."""

    def __init__(self, how) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, _WORD, padding_idx=PAD)
        with torch.no_grad():
            self.embed.weight.normal_(0, 0.3)
            self.embed.weight[PAD] = 0
        self.drop = WordDropout(how)
        self.encoder, self.posterior, self.sample = Encoder(how), Posterior(), Sample(how)
        self.start, self.decoder = nn.Linear(LATENT, _STATE), Decoder(how)
        self.project, self.out = nn.Linear(_STATE, _WORD), nn.Linear(_WORD, VOCABULARY)
        self.out.weight = self.embed.weight

    def encode(self, tokens, lengths):
        """The posterior of sentences, of which the first token is not read."""
        return self.posterior(self.encoder(self.embed(tokens[:, 1:]), lengths - 1))

    def decode(self, tokens, latent):
        """Logits of each next token, where the true ones before it are known."""
        words = self.embed(self.drop(tokens[:, :-1]))
        states = self.decoder(words, latent, torch.tanh(self.start(latent)))
        return self.out(self.project(states))

    def forward(self, tokens, lengths):
        """Logits, and the posterior."""
        mean, logvar = self.encode(tokens, lengths)
        return self.decode(tokens, self.sample(mean, logvar)), mean, logvar
