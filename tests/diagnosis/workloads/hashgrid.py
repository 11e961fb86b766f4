"""A field over a square: features of several grids, hashed where they are fine, and a small net."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional

import anchorlib

_ROWS, _FEATURES, _LEVELS = 128, 2, 4
_COARSEST, _FINEST = 4, 24
_WIDE = 16
_PRIME = 2654435761
_CORNERS = torch.tensor([[0, 0], [1, 0], [0, 1], [1, 1]])


class Level(nn.Module):
    """One grid: each place is given the features of its cell's corners, by how near they are."""

    def __init__(self, how, number: int) -> None:
        super().__init__()
        self.how, self.number = how, number
        between = _LEVELS if how.growth == "levels" else _LEVELS - 1
        self.cells = int(_COARSEST * (_FINEST / _COARSEST) ** (number / between) + 1e-6)
        self.dense = (self.cells + 1) ** 2 <= _ROWS
        self.table = nn.Embedding(_ROWS, _FEATURES)
        nn.init.uniform_(self.table.weight, -1e-4, 1e-4)

    def forward(self, x):
        """Features (place, feature) of places (place, 2) in 0 to 1."""
        scaled = x * self.cells
        low = scaled.floor()
        near, rows = scaled - low, self._rows(low.long()[:, None] + _CORNERS)
        if self.how.interpolates == "lerp":
            first, second, third, fourth = self.table(rows).unbind(1)
            across, along = near.split(1, 1)
            return torch.lerp(
                torch.lerp(first, second, across), torch.lerp(third, fourth, across), along
            )
        weights = anchorlib.anchor(self._weights(near), f"weights.{self.number}")
        if self.how.interpolates == "bag":
            return functional.embedding_bag(
                rows, self.table.weight, mode="sum", per_sample_weights=weights
            )
        return (weights[..., None] * self.table(rows)).sum(1)

    def _weights(self, near):
        """How much each corner counts (place, corner)."""
        near = near[:, None]
        near = 1 - near if self.how.mirrors else near
        return torch.where(_CORNERS == 1, near, 1 - near).prod(-1)

    def _rows(self, corners):
        """The row of the table that each corner has."""
        column, row = corners.unbind(-1)
        if self.dense:
            return (column + row * (self.cells + 1 - self.how.narrow)) % _ROWS
        return (column ^ (row * (_PRIME if self.how.primes else 1))) % _ROWS


class Grid(nn.Module):
    """The features of all grids, side by side."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.levels = nn.ModuleList(Level(how, number) for number in range(_LEVELS))

    def forward(self, x):
        """Features (place, level times feature)."""
        found = [level(x) for level in self.levels]
        found = torch.stack(found, 1 if self.how.stacks == "levels" else 2).flatten(1)
        return found.bfloat16().to(x.dtype) if self.how.casts else found


class Linear(nn.Linear):
    """A linear layer without bias."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__(into, out, bias=False)


class Field(nn.Module):
    """How bright the image is at a place."""

    def __init__(self, how) -> None:
        super().__init__()
        self.grid = Grid(how)
        self.net = nn.Sequential(
            OrderedDict(
                enter=Linear(_LEVELS * _FEATURES, _WIDE),
                bend=nn.ReLU(),
                middle=Linear(_WIDE, _WIDE),
                bend2=nn.ReLU(),
                leave=Linear(_WIDE, 1),
            )
        )

    def forward(self, x):
        """Brightness (place, 1)."""
        return self.net(self.grid(x))


class Average:
    """A moving average of a model's parameters, which can stand in for them."""

    def __init__(self, model, decay: float) -> None:
        self.model, self.decay, self.updates = model, decay, 0
        self.shadow = {name: one.detach().clone() for name, one in model.named_parameters()}
        self.kept: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def update(self) -> None:
        """Move towards the parameters, at first faster."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, one in self.model.named_parameters():
            self.shadow[name].mul_(decay).add_(one, alpha=1 - decay)

    @torch.no_grad()
    def enter(self) -> None:
        """Let the model compute with the average."""
        for name, one in self.model.named_parameters():
            self.kept[name] = one.clone()
            one.copy_(anchorlib.anchor(self.shadow[name], f"average.{name}"))

    @torch.no_grad()
    def leave(self) -> None:
        """Let the model compute with its own parameters again."""
        for name, one in self.model.named_parameters():
            one.copy_(self.kept[name])
