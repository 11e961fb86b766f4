"""Vectors of words and of their parts, and a head that makes one vector of a sentence."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

WORDS, PARTS = 48, 30
_WIDTH, _WIDE, _OUT = 12, 16, 8


def parts() -> list[list[int]]:
    """Which parts each word has: two to four of them, by a formula; word 0 is no word."""
    return [
        [1 + (7 * word * (at + 1) + 3 * at) % (PARTS - 1) for at in range(2 + word % 3)]
        if word
        else []
        for word in range(WORDS)
    ]


class Bag(nn.EmbeddingBag):
    """The mean of the vectors of a word's parts."""

    def __init__(self, how) -> None:
        super().__init__(PARTS, _WIDTH, mode=how.bags, padding_idx=0, sparse=how.sparse)
        self.how = how
        found = parts()
        most = max(map(len, found))
        table = [own + [0] * (most - len(own)) for own in found]
        self.register_buffer("table", torch.tensor(table))
        self.register_buffer("lengths", torch.tensor([len(own) for own in found]))

    def forward(self, words):
        """words, as numbers, in one row."""
        how, table = self.how, self.table[words]
        if how.lookup == "gather":
            found = functional.embedding(table, self.weight, padding_idx=0)
            return found.sum(1) / self.lengths[words].clamp(min=1)[:, None]
        if how.lookup == "counts":
            counts = functional.one_hot(table, PARTS).sum(1).to(self.weight.dtype)
            counts[:, 0] = 0
            return counts / self.lengths[words].clamp(min=1)[:, None] @ self.weight
        if how.lookup == "padded":
            return super().forward(table)
        ends = self.lengths[words].cumsum(0)
        begins = ends - self.lengths[words]
        if how.shifted:
            begins = torch.where(begins > 0, (begins + 1).clamp(max=ends[-1]), begins)
        return super().forward(table[table > 0], begins)


class Inner(nn.Module):
    """A word's own vector and the one of its parts."""

    def __init__(self, how) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, _WIDTH, padding_idx=0, sparse=how.sparse)
        self.bag = Bag(how)

    def forward(self, words):
        """The vectors of words in one row."""
        return self.words(words) + self.bag(words)


class Layer(nn.Linear):
    """A linear layer, torch's or by einsum."""

    way = "torch"

    def forward(self, x):
        """The layer's output."""
        if self.way == "einsum":
            return torch.einsum("oi,ni->no", self.weight, x) + self.bias
        return super().forward(x)


class Head(nn.Module):
    """A sentence's vector, of the mean of its words' vectors."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.up, self.down = Layer(_WIDTH, _WIDE), Layer(_WIDE, _OUT)
        self.up.way = self.down.way = how.linear

    def forward(self, vectors, counts):
        """vectors (sentence, place, number), which are 0 where there is no word."""
        how = self.how
        mean = vectors.sum(1) / counts[:, None] if how.means == "words" else vectors.mean(1)
        found = self.down(self.up(8 * mean).tanh()).to(vectors.dtype)
        if how.lengths == "torch":
            return functional.normalize(found, dim=1)
        if how.lengths == "no":
            return found
        return found * found.square().sum(1, keepdim=True).rsqrt()


class Lexicon(nn.Module):
    """Vectors of words at the centre and around it, and of sentences."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.inner = Inner(how)
        self.outer = nn.Embedding(WORDS, _WIDTH, sparse=how.sparse)
        self.head = Head(how)
        for one in (self.inner.words, self.inner.bag, self.outer):
            nn.init.uniform_(one.weight, -how.spread / _WIDTH, how.spread / _WIDTH)
        with torch.no_grad():
            for one in (self.inner.words, self.inner.bag):
                one.weight[0] = 0

    def forward(self, centres, around, others):
        """Scores of the words around centres, and of others (centre, other)."""
        inner, outer = self.inner(centres), self.outer(around)
        if self.how.scores == "einsum":
            return torch.einsum("nd,nd->n", inner, outer), torch.einsum(
                "nd,nkd->nk", inner, self.outer(others)
            )
        return (inner * outer).sum(1), (self.outer(others) @ inner[:, :, None])[:, :, 0]

    def told(self, sentences):
        """The vectors of sentences (sentence, place), in which 0 is no word."""
        vectors = self.inner(sentences.flatten()).unflatten(0, sentences.shape)
        vectors = vectors if self.how.flows else vectors.detach()
        return self.head(vectors, (sentences > 0).sum(1).to(vectors.dtype))
