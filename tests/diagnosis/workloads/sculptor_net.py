"""An auto-decoder of shapes: a code for each shape, and a net that tells distances from codes."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

_CODE, _WIDTH = 8, 24
_GIVEN = _CODE + 3
"""How many numbers the decoder is given for each point: a code and a place."""

_RADIUS = 0.8
_STRAIGHT = 20
"""Where torch's softplus turns to a straight line."""


class Norm(nn.Module):
    """A weight of known lengths along its rows, which torch has too."""

    def forward(self, lengths, ways):
        """The weight."""
        return ways * (lengths / ways.square().sum(1, keepdim=True).sqrt())

    def right_inverse(self, weight):
        """Lengths and directions as torch begins with them, so that both begin equal."""
        return torch.norm_except_dim(weight, 2, 0), weight


class Layer(nn.Linear):
    """A linear layer of parts that lie side by side."""

    def __init__(self, how, into: int, out: int, factor: float = 1.0) -> None:
        super().__init__(into, out)
        self.how, self.factor = how, factor

    def forward(self, *parts):
        """The layer, as one product or as one for each part."""
        if self.how.joins == "cat":
            return super().forward(torch.cat(parts, 1) * self.factor)
        weights = self.weight.split([part.shape[1] for part in parts], 1)
        products = [part @ weight.mT for part, weight in zip(parts, weights, strict=True)]
        return sum(products) * self.factor + self.bias


class Act(nn.Module):
    """A smooth ramp: its second derivative is needed, as slopes are learnt."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """The activation."""
        steep = self.how.beta
        if self.how.act == "torch":
            return functional.softplus(x, steep)
        bent = (steep * x).clamp(max=_STRAIGHT).exp().log1p() / steep
        return torch.where(steep * x > _STRAIGHT, x, bent)


@torch.no_grad()
def _rounded(*layers):
    """Begin with about a ball, whose slopes have length 1 already."""
    for layer in layers:
        nn.init.normal_(layer.weight, 0.0, math.sqrt(2 / layer.out_features))
        nn.init.zeros_(layer.bias)
    last = layers[-1]
    nn.init.normal_(last.weight, math.sqrt(math.pi / last.in_features), 1e-4)
    nn.init.constant_(last.bias, -_RADIUS)


class Decoder(nn.Module):
    """Four layers with normed weights; the third one is given codes and places once more."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        factor = 1 / math.sqrt(2) if how.root else 1.0
        layers = (
            Layer(how, _GIVEN, _WIDTH),
            Layer(how, _WIDTH, _WIDTH - _GIVEN),
            Layer(how, _WIDTH, _WIDTH, factor),
            Layer(how, _WIDTH, 1),
        )
        _rounded(*layers)
        self.layers = nn.ModuleList(self._normed(layer) for layer in layers)
        self.acts = nn.ModuleList(Act(how) for _ in range(3))

    def _normed(self, layer):
        if self.how.norming == "torch":
            return parametrizations.weight_norm(layer)
        parametrize.register_parametrization(layer, "weight", Norm())
        return layer

    def forward(self, codes, points):
        """Signed distances (point, 1)."""
        x = self._bent(0, codes, points)
        x = self._bent(1, x)
        x = self._bent(2, x, codes, points)
        return self.layers[3](x)

    def _bent(self, number, *parts):
        if self.how.checkpointed and torch.is_grad_enabled():
            return checkpoint(self._layer, number, *parts, use_reentrant=False)
        return self._layer(number, *parts)

    def _layer(self, number, *parts):
        return self.acts[number](self.layers[number](*parts))


class Sculptor(nn.Module):
    """The codes of all shapes, none longer than the bound, and the decoder that they share."""

    def __init__(self, how, shapes: int) -> None:
        super().__init__()
        self.how = how
        bound = how.bound if how.bounds == "torch" else None
        self.codes = nn.Embedding(shapes, _CODE, max_norm=bound)
        nn.init.normal_(self.codes.weight, 0.0, how.bound / math.sqrt(_CODE))
        self.decoder = Decoder(how)

    def forward(self, shapes, points):
        """Distances of each shape's points (shape, point, 3), and the code of each point."""
        count = points.shape[1]
        if self.how.bounds == "own":
            self._bound(shapes)
        codes = self.codes(shapes)
        if self.how.repeats == "each":
            codes = codes.repeat_interleave(count, 0)
        else:
            codes = codes.repeat(count, 1)
        return self.decoder(codes, points.flatten(0, 1)).view(points.shape[:2]), codes

    @torch.no_grad()
    def _bound(self, shapes):
        """Shorten the codes that are looked up, where they are too long, as an embedding would."""
        codes = self.codes.weight[shapes]
        lengths = codes.square().sum(1, keepdim=True).sqrt()
        shorter = codes * (self.how.bound / (lengths + 1e-7))
        self.codes.weight[shapes] = torch.where(lengths > self.how.bound, shorter, codes)
