"""A net of clicks: linear terms, a factorization machine, cross layers and a deep tower."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH = 8
_DEEP = (24, 12)


class Lookup(nn.Embedding):
    """Embeddings of all fields in one table, each field's behind those of the field before."""

    def __init__(self, how, sizes, width: int, spread: float) -> None:
        super().__init__(sum(sizes), width, sparse=how.sparse)
        nn.init.normal_(self.weight, std=spread)


class Tags(nn.Embedding):
    """The mean of the embeddings of a row's tags; 0 fills places that no tag takes."""

    def __init__(self, how, count: int) -> None:
        super().__init__(count, WIDTH, sparse=how.sparse)
        nn.init.normal_(self.weight, std=0.3)
        self.how = how

    def forward(self, tags):
        """One embedding a row (row, width)."""
        if self.how.pooling == "bag":
            return functional.embedding_bag(tags, self.weight, mode="mean", padding_idx=0)
        taken = (tags != 0).to(self.weight.dtype)
        summed = (super().forward(tags) * taken[..., None]).sum(1)
        count = taken.sum(1, keepdim=True) if self.how.tags == "taken" else tags.shape[1]
        return summed / count


class Standard(nn.Module):
    """Logarithms of counts, less their means, as multiples of their standard deviations."""

    def __init__(self, how, known) -> None:
        super().__init__()
        self.how = how
        variance, mean = torch.var_mean(known.log1p(), 0)
        self.register_buffer("mean", mean)
        self.register_buffer("variance", variance)

    def forward(self, counts):
        """Numbers of a known size."""
        spread = self.variance.sqrt() if self.how.divisor == "deviation" else self.variance
        return (counts.log1p() - self.mean) / spread


class Wide(nn.Module):
    """A weight for each name and for each number."""

    def __init__(self, how, sizes, numbers: int) -> None:
        super().__init__()
        self.table = Lookup(how, sizes, 1, 0.1)
        self.linear = nn.Linear(numbers, 1)

    def forward(self, rows, numbers):
        """The sum of all weights (row,)."""
        return self.table(rows).sum((1, 2)) + self.linear(numbers)[:, 0]


class Pairs(nn.Module):
    """The second order of a factorization machine: the products of all pairs of vectors."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, vectors):
        """The sum of all pairs' products (row,), of vectors (row, vector, width)."""
        if self.how.pairs == "triangle":
            products = vectors @ vectors.transpose(1, 2)
            return products.triu(1).sum((1, 2))
        axis = 1 if self.how.summed == "vectors" else 2
        return 0.5 * (vectors.sum(axis).square() - vectors.square().sum(axis)).sum(1)


class Cross(nn.Module):
    """A cross layer: the first input times a linear map of the last, added to the last."""

    def __init__(self, how, width: int) -> None:
        super().__init__()
        self.how = how
        self.linear = nn.Linear(width, width)

    def forward(self, first, x):
        """x, one order higher."""
        return (first if self.how.crossed == "first" else x) * self.linear(x) + x


class Crosses(nn.Module):
    """Two cross layers."""

    def __init__(self, how, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Cross(how, width) for _ in range(2))

    def forward(self, first):
        """first, two orders higher."""
        x = first
        for layer in self.layers:
            x = layer(first, x)
        return x


class Deep(nn.Linear):
    """A linear layer without a bias, for a norm follows: of the whole or of parts of its input."""

    def __init__(self, into: int, out: int, way: str = "whole") -> None:
        super().__init__(into, out, bias=False)
        self.way = way

    def forward(self, x):
        """The product."""
        if self.way == "whole":
            return super().forward(x)
        parts = zip(x.split(WIDTH, 1), self.weight.split(WIDTH, 1), strict=True)
        return sum(part @ weight.T for part, weight in parts)


class Norm(nn.BatchNorm1d):
    """A batch norm, torch's or as a scale and a shift."""

    def __init__(self, how, width: int) -> None:
        super().__init__(width)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "torch":
            return super().forward(x)
        spread, mean = self.running_var, self.running_mean
        if self.training:
            spread, mean = torch.var_mean(x, 0, correction=0)
            with torch.no_grad():
                self.num_batches_tracked += 1
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(spread * (len(x) / (len(x) - 1)), self.momentum)
        scale = self.weight * (spread + self.eps).rsqrt()
        return torch.addcmul(self.bias - mean * scale, x, scale)


class Tower(nn.Module):
    """Two layers with batch norm and dropout."""

    def __init__(self, how, width: int) -> None:
        super().__init__()
        self.linears = nn.ModuleList((Deep(width, _DEEP[0], how.deep), Deep(*_DEEP)))
        self.norms = nn.ModuleList(Norm(how, out) for out in _DEEP)
        self.acts = nn.ModuleList(nn.ReLU(inplace=how.inplace) for _ in _DEEP)
        self.drops = nn.ModuleList(nn.Dropout(0.2) for _ in _DEEP)

    def forward(self, x):
        """What the last layer reads."""
        for layers in zip(self.linears, self.norms, self.acts, self.drops, strict=True):
            for layer in layers:
                x = layer(x)
        return x


class DeepFM(nn.Module):
    """The logit of a click, with cross layers beside the deep tower."""

    def __init__(self, how, sizes, tags: int, known) -> None:
        super().__init__()
        self.how = how
        numbers = known.shape[1]
        width = WIDTH * (len(sizes) + 1) + numbers
        self.standard = Standard(how, known)
        self.fields, self.tags = Lookup(how, sizes, WIDTH, 0.3), Tags(how, tags)
        self.factors = nn.Parameter(torch.randn(numbers, WIDTH) * 0.3)
        self.wide, self.pairs = Wide(how, sizes, numbers), Pairs(how)
        self.crosses, self.tower = Crosses(how, width), Tower(how, width)
        self.last = nn.Linear(width + _DEEP[-1], 1)
        behind = sizes[:-1] if how.offsets == "sizes before" else sizes[1:]
        self.offsets = torch.tensor([0, *behind]).cumsum(0)

    def forward(self, names, tags, counts):
        """Logits (row,), and the fields' embeddings (row, field, width)."""
        rows, numbers = names + self.offsets, self.standard(counts)
        fields = self.fields(rows)
        vectors = torch.cat((fields, self.tags(tags)[:, None]), 1)
        x = torch.cat((vectors.flatten(1), numbers), 1)
        vectors = torch.cat((vectors, numbers[..., None] * self.factors), 1)
        if self.how.keeps == "all" or not torch.is_grad_enabled():
            crossed = self.crosses(x)
        else:
            crossed = checkpoint(self.crosses, x, use_reentrant=False)
        deep = self.tower(x if self.how.shares == "attached" else x.detach())
        high = self.last(torch.cat((crossed, deep), 1))[:, 0]
        return self.wide(rows, numbers) + self.pairs(vectors) + high, fields
