"""Two towers that make tokens of queries and documents, a third that follows, and a queue."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

_INTO, _WIDTH, _WIDE, _OUT = 8, 16, 32, 8
_QUEUED = 16
"""Documents in the queue."""
TOKENS = {"query": 4, "document": 8}
"""Tokens of a query and of a document."""


class Norm(nn.LayerNorm):
    """A layer norm, torch's or by its formula."""

    def __init__(self, how) -> None:
        super().__init__(_WIDTH)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "torch":
            return super().forward(x)
        x = x.to(self.weight.dtype)
        spread, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        return (x - mean) * (spread + self.eps).rsqrt() * self.weight + self.bias


class Act(nn.Module):
    """SiLU."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """The activation."""
        return functional.silu(x) if self.how.act == "torch" else x / (1 + torch.exp(-x))


class Places(nn.Module):
    """Adds what a token's place is; places are far apart, and so are similarities of tokens."""

    def __init__(self, how, tokens: int) -> None:
        super().__init__()
        self.how, self.count = how, tokens
        self.weight = nn.Parameter(4 * torch.randn(tokens + 1, _WIDTH))

    def forward(self, x):
        """x, with places."""
        first = self.how.begins
        return x + self.weight[first : first + self.count]


class Unit(nn.Module):
    """Tokens of length one."""

    def __init__(self, how, *, always: bool) -> None:
        super().__init__()
        self.how, self.always = how, always

    def forward(self, x):
        """x, normalised."""
        if not (self.how.units or self.always):
            return x * 1.0
        axis = -1 if self.how.unit_axis == "numbers" else 1
        if self.how.unit == "torch":
            return functional.normalize(x, dim=axis)
        return x * x.square().sum(axis, keepdim=True).clamp(min=1e-24).rsqrt()


class Tower(nn.Module):
    """Tokens of known size for what is told of columns of pixels."""

    def __init__(self, how, kind: str) -> None:
        super().__init__()
        self.how = how
        self.embed, self.places = nn.Linear(_INTO, _WIDTH), Places(how, TOKENS[kind])
        self.norm, self.act = Norm(how), Act(how)
        self.up, self.down = nn.Linear(_WIDTH, _WIDE), nn.Linear(_WIDE, _WIDTH)
        self.out, self.unit = nn.Linear(_WIDTH, _OUT), Unit(how, always=kind == "document")

    def forward(self, x):
        """Tokens (sample, token, number)."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.how.low):
            x = self.places(self.embed(x))
            x = x + self.down(self.act(self.up(self.norm(x))))
            x = self.out(x)
        return self.unit(x.to(self.out.weight.dtype))


class Interaction(nn.Module):
    """Late interaction: each token of a query finds its most similar token of a document."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, queries, documents, there):
        """Similarities (query, document)."""
        if self.how.scored == "at once":
            return self._found(queries, documents, there)
        parts = zip(documents.split(8), there.split(8), strict=True)
        return torch.cat([self._found(queries, *part) for part in parts], 1)

    def _found(self, queries, documents, there):
        how = self.how
        if how.products == "einsum":
            close = torch.einsum("qid,kjd->qkij", queries, documents)
        else:
            close = queries.flatten(0, 1) @ documents.flatten(0, 1).T
            close = close.view(*queries.shape[:2], *documents.shape[:2]).transpose(1, 2)
        close = self._hidden(close, there[:, None])
        if how.maxima == "late":
            return close.sum(-2).amax(-1)
        found = close.amax(-1)
        return found.sum(-1) if how.over == "sum" else found.mean(-1)

    def _hidden(self, close, there):
        if self.how.padding == "nothing":
            return close
        if self.how.hiding == "sum":
            return close + torch.zeros(there.shape).masked_fill(~there, -math.inf)
        return close.masked_fill(~there, -math.inf)


class Temperature(nn.Module):
    """Multiplies by the exponential of what is learnt."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.log = nn.Parameter(torch.tensor(math.log(1 / 0.3)))

    def forward(self, x):
        """x, sharper."""
        log = self.log if self.how.learns else self.log.detach()
        if self.how.temperature == "quotient":
            return x / torch.exp(-log)
        return x * (log.exp() if self.how.temperature == "product" else log)


class Retriever(nn.Module):
    """Scores of queries and documents; a queue of documents that the following tower told."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.query, self.document = Tower(how, "query"), Tower(how, "document")
        self.momentum = Tower(how, "document").requires_grad_(False)
        self.momentum.load_state_dict(self.document.state_dict())
        self._begin()
        self.interaction, self.temperature = Interaction(how), Temperature(how)
        count = TOKENS["document"]
        queue = functional.normalize(torch.randn(_QUEUED, count, _OUT), dim=-1)
        self.register_buffer("queue", queue)
        self.register_buffer("queued", torch.ones(_QUEUED, count, dtype=torch.bool))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.long))

    def forward(self, queries, documents):
        """What both towers tell."""
        told = self.document(documents)
        return self.query(queries), told if self.how.reaches else told.detach()

    @torch.no_grad()
    def _begin(self):
        """Let both towers begin as one, so that a query's token is most similar to its column."""
        own, one = (tower.places.weight.clone() for tower in (self.query, self.document))
        own[: TOKENS["query"]] = one[: TOKENS["document"] : 2]
        self.query.load_state_dict(self.document.state_dict() | {"places.weight": own})

    def scores(self, queries, documents, there):
        """Scores (query, document) of a batch's documents, and of those in the queue."""
        both = (documents, self.queue.clone()), (there, self.queued.clone())
        if self.how.first == "queue":
            both = tuple(one[::-1] for one in both)
        return self.temperature(self.interaction(queries, *map(torch.cat, both)))

    @torch.no_grad()
    def keys(self, documents):
        """What the following tower tells of documents, after it followed."""
        how = self.how
        for own, one in zip(self.momentum.parameters(), self.document.parameters(), strict=True):
            if how.following == "lerp":
                own.lerp_(one, how.follows)
            else:
                own.copy_((1 - how.follows) * own + how.follows * one)
        told = self.momentum(documents)
        return told if how.queues == "momentum" else self.document(documents)

    @torch.no_grad()
    def enqueue(self, keys, there):
        """Forget the oldest documents for these."""
        places = (self.pointer + torch.arange(len(keys))) % _QUEUED
        self.queue[places] = keys
        if self.how.padding != "batch":
            self.queued[places] = there
        if self.how.moves:
            self.pointer.copy_((self.pointer + len(keys)) % _QUEUED)
