"""Layers of soft oblivious decision trees, each of which is given what those before it told."""

from __future__ import annotations

import torch
from torch import nn

import anchorlib

TREES, DEPTH, CLASSES = 6, 3, 10


class Entmax(torch.autograd.Function):
    """The exact 1.5-entmax along the first axis, by sorting."""

    @staticmethod
    def forward(ctx, x, halves):
        """Shares that sum to one, some of which are zero."""
        x = x / 2 if halves else x
        x = x - x.amax(0)
        shares = (x - _threshold(x)).clamp(min=0).square()
        ctx.save_for_backward(shares)
        return shares

    @staticmethod
    def backward(ctx, grad):
        """The product with the Jacobian."""
        (shares,) = ctx.saved_tensors
        roots = shares.sqrt()
        moved = grad * roots
        return moved - moved.sum(0) / roots.sum(0) * roots, None


def _threshold(x):
    """What is taken from all halved logits before they are squared."""
    ordered = x.sort(0, descending=True).values
    count = torch.arange(1, len(x) + 1, dtype=x.dtype).view(-1, *[1] * (x.ndim - 1))
    mean = ordered.cumsum(0) / count
    spread = count * (ordered.square().cumsum(0) / count - mean.square())
    found = mean - ((1 - spread) / count).clamp(min=0).sqrt()
    support = (found <= ordered).sum(0, keepdim=True)
    return found.gather(0, support - 1)


class Choice(nn.Module):
    """Which feature each split looks at: the shares of all features, the colder the fewer."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.heat = how.heat

    def forward(self, logits):
        """Shares (feature, tree, depth)."""
        how = self.how
        logits = logits * self.heat if how.heats == "times" else logits / self.heat
        if how.over == "trees":
            return Entmax.apply(logits.transpose(0, 1), how.halves).transpose(0, 1)
        if how.choice == "own":
            return Entmax.apply(logits, how.halves)
        logits = logits / 2
        logits = logits - logits.amax(0)
        with torch.no_grad():
            chosen = (logits > _threshold(logits)).to(logits.dtype)
        count = chosen.sum(0)
        mean = (logits * chosen).sum(0) / count
        spread = ((logits - mean).square() * chosen).sum(0)
        threshold = mean - ((1 - spread) / count).sqrt()
        return (logits - threshold).clamp(min=0).square()


class Trees(nn.Module):
    """Trees whose splits at one depth are all the same."""

    def __init__(self, how, number: int, into: int) -> None:
        super().__init__()
        self.how, self.number = how, number
        self.choice = Choice(how)
        self.logits = nn.Parameter(torch.rand(into, TREES, DEPTH))
        self.thresholds = nn.Parameter(torch.randn(TREES, DEPTH) * 0.3)
        self.log_widths = nn.Parameter(torch.full((TREES, DEPTH), -0.7))
        self.response = nn.Parameter(torch.randn(TREES, CLASSES, 2**DEPTH) * 0.5)
        places = torch.arange(DEPTH).flip(0) + (1 if how.begins == "one" else 0)
        self.codes = (torch.arange(2**DEPTH)[:, None] >> places) & 1 == 1

    def forward(self, x):
        """What each tree tells (sample, tree, class), and how far each split goes right."""
        how = self.how
        values = torch.einsum("bi,itd->btd", x, self.choice(self.logits))
        apart = values + self.thresholds if how.adds else values - self.thresholds
        widths = self.log_widths if how.widens else -self.log_widths
        margins = anchorlib.anchor(apart * widths.exp(), f"margins.{self.number}")
        right = (how.sharpness * margins).sigmoid()
        leaves = anchorlib.anchor(self._leaves(right), f"leaves.{self.number}")
        return torch.einsum("btl,tcl->btc", leaves, self.response), right

    def _leaves(self, right):
        """How much of each sample comes to each leaf (sample, tree, leaf)."""
        if self.how.leaves == "levels":
            found = torch.ones_like(right[..., :1])
            for share in right.unbind(-1):
                found = torch.stack((found * (1 - share[..., None]), found * share[..., None]), -1)
                found = found.flatten(2)
            return found
        shares = torch.where(self.codes, right[:, :, None], 1 - right[:, :, None])
        return shares.log().sum(-1).exp() if self.how.leaves == "logs" else shares.prod(-1)


class Forest(nn.Module):
    """Layers of trees."""

    def __init__(self, how, into: int, layers: int = 2) -> None:
        super().__init__()
        self.how = how
        wide = TREES * CLASSES
        self.layers = nn.Sequential(*(Trees(how, at, into + at * wide) for at in range(layers)))
        self.drops = nn.ModuleList(nn.Dropout(how.dropout) for _ in range(layers))
        if how.spare:
            self.norm = nn.LayerNorm(into)

    def heat(self, heat: float) -> None:
        """Let choices be as hot as this."""
        for module in self.modules():
            if isinstance(module, Choice):
                module.heat = heat

    def forward(self, x):
        """Logits of classes, and how far each split goes right (sample, tree, depth)."""
        told, right = [], []
        for layer, drop in zip(self.layers, self.drops, strict=True):
            found, went = layer(drop(x))
            told.append(found)
            right.append(went)
            x = torch.cat((x, (found.detach() if self.how.detaches else found).flatten(1)), 1)
        told = torch.cat(told, 1)
        told = told.sum(1) if self.how.votes == "sum" else told.mean(1)
        return told.softmax(1) if self.how.softmax else told, torch.cat(right, 1)
