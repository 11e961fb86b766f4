"""The bidder's model: embeddings that are crossed, experts behind gates, and a tower a task."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

SIZES = (24, 8, 6)
"""How many ads, campaigns and devices there are."""
PLACES, TOPICS, COLUMNS = 5, 12, 4
"""Places on a page, topics of interest, and columns of numbers."""
_DEEP, _RANK, _EXPERTS, _WIDE = 6, 5, 4, 12
_TASKS = 2
"""The click, and the conversion after it."""


class History(nn.EmbeddingBag):
    """The mean of the ads that were seen before; 0 fills what is empty."""

    def __init__(self, how) -> None:
        filled = 0 if how.pads else None
        super().__init__(SIZES[0], _DEEP, mode="mean", padding_idx=filled, sparse=how.sparse)
        self.how = how

    def forward(self, ads):
        """A vector for each row of ads (row, place)."""
        if self.how.history == "torch":
            return super().forward(ads)
        seen = (ads != 0)[..., None].to(self.weight.dtype)
        found = functional.embedding(ads, self.weight) * seen
        return found.sum(1) / seen.sum(1).clamp(min=1)


class Topics(nn.EmbeddingBag):
    """The topics that a user likes, each times how much; rows have any number of them."""

    def __init__(self, how) -> None:
        super().__init__(TOPICS, _DEEP, mode="sum", sparse=how.sparse)
        self.how = how

    def forward(self, topics, shares, lengths):
        """A vector for each row, of the topics of all rows behind one another."""
        if self.how.topics == "torch":
            before = lengths if self.how.begins == "own" else lengths[:1]
            return super().forward(topics, lengths.cumsum(0) - before, shares)
        rows = torch.arange(len(lengths)).repeat_interleave(lengths)
        hot = shares.new_zeros(len(lengths), TOPICS)
        return hot.index_put((rows, topics), shares, accumulate=True) @ self.weight


class Cross(nn.Module):
    """What is learnt of x, times the features that all began with, added to x."""

    def __init__(self, how, width: int) -> None:
        super().__init__()
        self.how = how
        self.inner = nn.Linear(width, _RANK, bias=False)
        self.outer = nn.Linear(_RANK, width)

    def forward(self, first, x):
        """x, one degree higher."""
        if self.how.crossing == "ranked":
            learnt = self.outer(self.inner(x))
        else:
            whole = self.outer.weight @ self.inner.weight
            learnt = functional.linear(x, whole, self.outer.bias)
        return (first if self.how.crosses == "first" else x) * learnt + x


class Experts(nn.Module):
    """Nets of two layers that all tasks share."""

    def __init__(self, how, width: int) -> None:
        super().__init__()
        self.how = how
        self.up = nn.ModuleList(nn.Linear(width, _WIDE) for _ in range(_EXPERTS))
        self.down = nn.ModuleList(nn.Linear(_WIDE, _WIDE) for _ in range(_EXPERTS))

    def forward(self, x):
        """What each expert makes of x (row, expert, width)."""
        if self.how.experts == "loop":
            told = [down(up(x).relu()) for up, down in zip(self.up, self.down, strict=True)]
            return torch.stack(told, 1).relu()
        x = x.expand(_EXPERTS, *x.shape)
        for layers in (self.up, self.down):
            bias = torch.stack([one.bias for one in layers])[:, None]
            weight = torch.stack([one.weight for one in layers])
            x = torch.baddbmm(bias, x, weight.transpose(1, 2)).relu()
        return x.transpose(0, 1)


class Gate(nn.Module):
    """The mixture of experts for one task."""

    def __init__(self, how, width: int) -> None:
        super().__init__()
        self.how = how
        self.scores = nn.Linear(width, _EXPERTS)

    def forward(self, x, told):
        """What the experts told, mixed as x says."""
        scores = self.scores(x)
        if self.how.mixing == "softmax":
            return torch.einsum("re,rew->rw", scores.softmax(self.how.over), told)
        parts = (scores - scores.detach().amax(1, keepdim=True)).exp()
        return (parts[..., None] * told).sum(1) / parts.sum(1, keepdim=True)


class Tower(nn.Module):
    """One task's logit."""

    def __init__(self, how) -> None:
        super().__init__()
        self.up, self.out = nn.Linear(_WIDE, _WIDE), nn.Linear(_WIDE, 1)
        self.drop = nn.Dropout(how.dropout)

    def forward(self, x):
        """A logit a row."""
        return self.out(self.drop(self.up(x).relu()))[:, 0]


class Bidder(nn.Module):
    """Whether an ad is clicked, and whether the click leads to a purchase."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.fields = nn.ModuleList(nn.Embedding(size, _DEEP, sparse=how.sparse) for size in SIZES)
        self.history, self.topics = History(how), Topics(how)
        self.place = nn.Embedding(PLACES, 1, sparse=how.sparse)
        width = (len(SIZES) + 2) * _DEEP + COLUMNS
        self.numbers = nn.BatchNorm1d(COLUMNS)
        self.crosses = nn.ModuleList(Cross(how, width) for _ in range(2))
        self.experts = Experts(how, width)
        self.gates = nn.ModuleList(Gate(how, width) for _ in range(_TASKS))
        self.towers = nn.ModuleList(Tower(how) for _ in range(_TASKS))
        self.doubts = nn.Parameter(torch.zeros(_TASKS))
        for table in self.tables():
            nn.init.normal_(table.weight, std=0.3)

    def tables(self):
        """All embeddings."""
        kinds = (nn.Embedding, nn.EmbeddingBag)
        return [one for one in self.modules() if isinstance(one, kinds)]

    def forward(self, names, places, history, topics, shares, lengths, numbers):
        """The logits of a click, and of a purchase after it."""
        found = [field(names[:, at]) for at, field in enumerate(self.fields)]
        found += [self.history(history), self.topics(topics, shares, lengths)]
        first = x = torch.cat((*found, self.numbers(numbers)), 1)
        for cross in self.crosses:
            x = cross(first, x)
        if self.how.keeps == "all" or not torch.is_grad_enabled():
            told = self.experts(x)
        else:
            told = checkpoint(self.experts, x, use_reentrant=False)
        click, purchase = (
            tower(gate(first, told)) for gate, tower in zip(self.gates, self.towers, strict=True)
        )
        return click + self.place(places)[:, 0], purchase
