"""The ranker's model: features of queries and documents, normed by list, and a scorer of them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

FEATURES, QUERIES = 16, 10
_NAMED, _WIDE, _DEEP = 8, 32, 16


class Layer(nn.Linear):
    """A linear layer, torch's or a convolution over documents."""

    way = "torch"

    def forward(self, x):
        """The layer's output."""
        if self.way == "torch":
            return super().forward(x)
        told = functional.conv1d(x.transpose(1, 2), self.weight[..., None], self.bias)
        return told.transpose(1, 2)


class Norm(nn.LayerNorm):
    """A layer norm, torch's or by its formula."""

    way = "torch"

    def forward(self, x):
        """x, normed."""
        if self.way == "torch":
            return super().forward(x)
        wide = x.to(self.weight.dtype)
        spread, mean = torch.var_mean(wide, -1, correction=0, keepdim=True)
        return (wide - mean) * (spread + self.eps).rsqrt() * self.weight + self.bias


class ListNorm(nn.Module):
    """Features less their means over a list's real documents, by their spreads there."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.weight = nn.Parameter(torch.ones(FEATURES))
        self.bias = nn.Parameter(torch.zeros(FEATURES))

    def forward(self, x, real):
        """x (query, document, feature), normed; padding stays zero."""
        real = real[..., None].to(x.dtype)
        counts = real if self.how.pads != "statistics" else torch.ones_like(real)
        count = counts.sum(1, keepdim=True)
        mean = (x * counts).sum(1, keepdim=True) / count
        if self.how.spreads == "differences":
            spread = ((x - mean).square() * counts).sum(1, keepdim=True) / count
        else:
            spread = (x.square() * counts).sum(1, keepdim=True) / count - mean.square()
        normed = (x - mean) / (spread + self.how.list_eps).sqrt()
        return (normed * self.weight + self.bias) * real


class Gelu(nn.Module):
    """A gelu, exact or approximate."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """The activation."""
        return functional.gelu(x, approximate=self.how.gelu)


class Context(nn.Module):
    """Documents beside the mean of their list."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x, real):
        """x (query, document, feature) less a half of the mean over real documents."""
        real = real[..., None].to(x.dtype)
        if self.how.pads == "context":
            mean = x.mean(1, keepdim=True)
        else:
            mean = (x * real).sum(1, keepdim=True) / real.sum(1, keepdim=True)
        return x - 0.5 * (mean.detach() if self.how.context == "detached" else mean)


class Scorer(nn.Module):
    """A score for each document of each list."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.norm, self.query = ListNorm(how), nn.Embedding(QUERIES, _NAMED)
        self.first, self.norm1 = Layer(FEATURES + _NAMED, _WIDE), Norm(_WIDE)
        self.act1, self.drop, self.context = Gelu(how), nn.Dropout(how.dropout), Context(how)
        self.second, self.norm2, self.act2 = Layer(_WIDE, _DEEP), Norm(_DEEP), Gelu(how)
        self.out = Layer(_DEEP, 1)
        for module in self.modules():
            if isinstance(module, Layer):
                module.way = how.linear
            if isinstance(module, Norm):
                module.way = how.norming

    def forward(self, documents, queries, real):
        """Scores (query, document) of features, of what is asked for, and of what is there."""
        how = self.how
        x = documents.log1p() if how.logs else documents
        x = self.norm(x, real)
        asked = self.query(queries)[:, None]
        if how.joins == "cat":
            x = self.first(torch.cat((x, asked.expand(-1, x.shape[1], -1)), 2))
        else:
            of_documents, of_queries = self.first.weight.split((FEATURES, _NAMED), 1)
            asked = functional.linear(asked, of_queries, self.first.bias)
            x = functional.linear(x, of_documents) + asked
        x = self.drop(self.act1(self.norm1(x)))
        x = self.context(x, real)
        return self.out(self.act2(self.norm2(self.second(x))))[..., 0]
