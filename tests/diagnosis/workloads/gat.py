"""A graph attention net: softmax over the edges that reach a node, in several heads."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

FEATURES, BETWEEN, CLASSES = 3, 3, 10
_HEADS, _WIDTH = 2, 6


def scattered(values: torch.Tensor, index: torch.Tensor, count: int, way: str) -> torch.Tensor:
    """Sums of rows by their index."""
    if way == "product":
        shown = functional.one_hot(index, count).to(values.dtype)
        return (shown.T @ values.flatten(1)).view(count, *values.shape[1:])
    if way == "last":
        index, values = index.flip(0), values.flip(0)
    if way == "scatter":
        spread = index.view(-1, *[1] * (values.ndim - 1)).expand_as(values)
        return values.new_zeros(count, *values.shape[1:]).scatter_add(0, spread, values)
    return values.new_zeros(count, *values.shape[1:]).index_add(0, index, values)


class Share(nn.Module):
    """Softmax of edges' scores (edge, head) over those that reach the same node."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        self.of = of

    def forward(self, scores: torch.Tensor, index: torch.Tensor, count: int) -> torch.Tensor:
        """The shares."""
        if self.of.over == "heads":
            return scores.softmax(1)
        if self.of.shares == "double":
            return self._shares(scores.double(), index, count).to(scores.dtype)
        return self._shares(scores, index, count)

    def _shares(self, scores, index, count):
        if self.of.shares == "plain":
            powers = scores.exp()
        else:
            spread = index[:, None].expand_as(scores)
            most = scores.detach().new_full((count, scores.shape[1]), -math.inf)
            most = most.scatter_reduce(0, spread, scores.detach(), "amax")
            powers = (scores - most[index]).exp()
        sums = scattered(powers, index, count, self.of.sums)
        return powers / (sums[index] + self.of.softmax_eps)


class Routed(nn.Module):
    """What nodes tell each other along edges, and what they keep."""

    def __init__(self, of: Any, inner: int, joins: bool) -> None:
        super().__init__()
        self.of, self.joins = of, joins
        outer = _HEADS * _WIDTH if joins else _WIDTH
        self.lift = nn.Linear(inner, _HEADS * _WIDTH, bias=False)
        self.edge = nn.Linear(BETWEEN, _HEADS * _WIDTH, bias=False)
        self.source, self.target, self.between = (
            nn.Parameter(torch.randn(_HEADS, _WIDTH) / 2) for _ in "stb"
        )
        self.bend = nn.LeakyReLU(of.slope)
        self.share = Share(of)
        self.keep = nn.Linear(inner, outer)

    def forward(
        self, nodes: torch.Tensor, source: torch.Tensor, target: torch.Tensor, edges: torch.Tensor
    ) -> torch.Tensor:
        """Tell each other."""
        of, count = self.of, len(nodes)
        lifted = self.lift(nodes).unflatten(1, (_HEADS, _WIDTH))
        scores = self.bend(self._scores(lifted, source, target, edges))
        reached = target if of.over != "leaving" else source
        goal = target if of.reaches == "target" else source
        if of.gathers == "dense":
            full = scores.new_full((count, count, _HEADS), -math.inf)
            shares = full.index_put((target, source), scores).softmax(1)
            told = torch.einsum("tsh,shw->thw", shares, lifted)
        else:
            shares = self.share(scores, reached, count)
            shares = shares if of.flows else shares.detach()
            told = scattered(lifted[source] * shares[..., None], goal, count, of.sums)
        if self.joins:
            told = told.flatten(1)
        else:
            told = told.mean(1) if of.heads == "mean" else told.sum(1)
        return told + self.keep(nodes) if of.keeps else told

    def _scores(self, lifted, source, target, edges):
        if self.of.scores == "joined":
            told = torch.cat(
                (lifted[source], lifted[target], self.edge(edges).view(-1, _HEADS, _WIDTH)), -1
            )
            return (told * torch.cat((self.source, self.target, self.between), -1)).sum(-1)
        if self.of.scores == "einsum":
            one, other = (torch.einsum("nhw,hw->nh", lifted, x) for x in (self.source, self.target))
        else:
            one, other = (lifted * self.source).sum(-1), (lifted * self.target).sum(-1)
        scores = one[source] + other[target]
        if not self.of.minds:
            return scores
        return scores + (self.edge(edges).view(-1, _HEADS, _WIDTH) * self.between).sum(-1)


class Norm(nn.BatchNorm1d):
    """Batch norm over nodes, by torch or written out."""

    way = "torch"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Norm."""
        if self.way == "torch" or not self.training:
            return super().forward(x)
        mean, spread = x.mean(0), x.var(0, correction=0)
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            wide = spread * (len(x) / (len(x) - 1))
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            self.running_var.lerp_(wide.to(self.running_var.dtype), self.momentum)
        return (x - mean) / (spread + self.eps).sqrt() * self.weight + self.bias


class Router(nn.Module):
    """Logits of graphs: two layers of attention, then the mean and the most of each graph."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        self.of = of
        inner = _HEADS * _WIDTH
        self.layers = nn.ModuleList((Routed(of, FEATURES, True), Routed(of, inner, False)))
        self.norms = nn.ModuleList(
            Norm(width, momentum=of.norm_momentum) for width in (inner, _WIDTH)
        )
        for norm in self.norms:
            norm.way = of.norming
        self.hidden = nn.Linear(2 * _WIDTH, 16)
        self.head = nn.Linear(16, CLASSES)

    def forward(
        self, nodes: torch.Tensor, ends: torch.Tensor, edges: torch.Tensor, owners: torch.Tensor
    ) -> torch.Tensor:
        """Tell."""
        if self.of.loops:
            own = torch.arange(len(nodes))
            ends = torch.cat((ends, own.expand(2, -1)), 1)
            edges = torch.cat((edges, edges.new_zeros(len(nodes), BETWEEN)))
        x = nodes
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = functional.elu(norm(layer(x, *ends, edges)))
        return self.head(functional.elu(self.hidden(self._pooled(x, owners))))

    def _pooled(self, x, owners):
        count = int(owners[-1]) + 1
        total = scattered(x, owners, count, self.of.pools)
        sizes = torch.bincount(owners, minlength=count)[:, None]
        mean = total / sizes if self.of.pooled == "mean" else total
        base = x.new_zeros(count, x.shape[1])
        spread = owners[:, None].expand_as(x)
        most = base.scatter_reduce(0, spread, x, "amax", include_self=False)
        return torch.cat((mean, most), 1)
