"""A radiance field: density and colour of points in space, and the colours of rays through it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

LABELS, CODE, NEAR, FAR, PLACES = 10, 6, 0.5, 2.5, 8
_WIDTH, _WAVES, _VIEW_WAVES = 32, 4, 2


class Waves(nn.Module):
    """Coordinates, with their sines and cosines at frequencies that double."""

    def __init__(self, how, count: int) -> None:
        super().__init__()
        self.how, self.count = how, count

    def forward(self, x):
        """x (..., 3) and its waves (..., 3 + 6 count)."""
        how = self.how
        if how.encoding == "doubled":
            sines, cosines = [(x * how.unit).sin()], [(x * how.unit).cos()]
            for _ in range(1, self.count):
                sine, cosine = sines[-1], cosines[-1]
                sines.append(2 * sine * cosine)
                cosines.append(1 - 2 * sine * sine)
            waves = [one for pair in zip(sines, cosines, strict=True) for one in pair]
            return torch.cat((x, *waves), -1)
        places = range(self.count)
        rates = [2.0**at if how.frequencies == "double" else at + 1.0 for at in places]
        waves = [(x * (how.unit * rate)).sin() for rate in rates]
        others = [(x * (how.unit * rate)).cos() for rate in rates]
        if how.waves == "sines first":
            return torch.cat((x, *waves, *others), -1)
        return torch.cat(
            (x, *(one for pair in zip(waves, others, strict=True) for one in pair)), -1
        )


class Layer(nn.Linear):
    """A linear layer of two parts, which are joined or multiplied apart."""

    way = "joined"

    def forward(self, one, other=None):
        """The layer's output."""
        if other is None:
            return super().forward(one)
        if self.way == "joined":
            return super().forward(torch.cat((one, other), -1))
        first, second = self.weight.split((one.shape[-1], other.shape[-1]), 1)
        return functional.linear(one, first, self.bias) + functional.linear(other, second)


class Field(nn.Module):
    """Density and colour of points, as seen from a direction, of the object that a code tells."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.waves, self.views = Waves(how, _WAVES), Waves(how, _VIEW_WAVES)
        place, view = 3 + 6 * _WAVES, 3 + 6 * _VIEW_WAVES
        self.enter, self.deep = Layer(place + CODE, _WIDTH), Layer(_WIDTH, _WIDTH)
        self.again = Layer(_WIDTH + place, _WIDTH)
        self.density, self.told = Layer(_WIDTH, 1), Layer(_WIDTH, _WIDTH // 2)
        self.seen, self.colour = Layer(_WIDTH // 2 + view, _WIDTH // 2), Layer(_WIDTH // 2, 3)
        self.acts = nn.ModuleList(nn.ReLU() for _ in range(4))
        for module in self.modules():
            if isinstance(module, Layer):
                module.way = how.joins

    def forward(self, points, directions, codes):
        """Densities (ray, point) and colours (ray, point, 3)."""
        how = self.how
        if how.views == "unit":
            directions = directions / directions.norm(dim=-1, keepdim=True)
        count = points.shape[1]
        codes, directions = (x[:, None].expand(-1, count, -1) for x in (codes, directions))
        place, view = self.waves(points), self.views(directions)
        h = self.acts[1](self.deep(self.acts[0](self.enter(place, codes))))
        h = self.acts[2](self.again(h, torch.zeros_like(place) if how.skips == "zeros" else place))
        seen = self.acts[3](self.seen(self.told(h), view))
        density = self.density(h)[..., 0].to(points.dtype)
        colour = self.colour(seen).to(points.dtype)
        colour = colour.sigmoid() if how.sigmoid == "torch" else (colour / 2).tanh() / 2 + 0.5
        return self._positive(density + how.shift), colour

    def _positive(self, density):
        if self.how.positive == "relu":
            return density.relu()
        if self.how.softplus == "torch":
            return functional.softplus(density)
        return density.clamp(min=0) + torch.log1p(torch.exp(-density.abs()))


class Renderer(nn.Module):
    """Two fields; the coarse one tells where the fine one looks."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.codes = nn.Embedding(LABELS, CODE)
        self.coarse, self.fine = Field(how), Field(how)

    def forward(self, pixels, labels, jitter):
        """Both colours of rays, the spread of what was met, and the objects' codes.

        pixels: the row and column that each ray passes (ray, 2). jitter: numbers in 0 to 1
        (ray, 2, place), by which places on a ray are moved.
        """
        how = self.how
        origins, directions = self._rays(pixels, labels)
        codes = self.codes(labels)
        moved = jitter[:, 0]
        if how.moves == "alike":
            moved = moved[:1].expand_as(moved)
        elif how.moves == "not":
            moved = torch.full_like(moved, 0.5)
        places = NEAR + (FAR - NEAR) * (torch.arange(PLACES) + moved) / PLACES
        found, told = self._rendered(self.coarse, origins, directions, codes, places)
        weights = found if how.guides == "attached" else found.detach()
        later = self._drawn(places, weights, jitter[:, 1])
        places = torch.cat((places, later), 1)
        places = places.sort(1).values if how.sorts else places
        weights, fine = self._rendered(self.fine, origins, directions, codes, places)
        return told, fine, self._spread(places, weights), codes

    def _rays(self, pixels, labels):
        """Where rays begin and their directions, as the camera is tilted by label."""
        how = self.how
        y, x = pixels.flip(1).unbind(1) if how.exchanged else pixels.unbind(1)
        x, y = ((at + how.centre) / 4 - 1 for at in (x, y))
        tilt, ones = 0.1 * (labels - 4.5), torch.ones_like(x)
        origins = torch.stack((x - 1.5 * tilt, y, -1.5 * ones), -1)
        return origins, torch.stack((tilt, 0.2 * ones, ones), -1)

    def _rendered(self, field, origins, directions, codes, places):
        """How much each place of a ray counts, and the ray's colour."""
        how = self.how
        if how.points == "plain":
            points = origins[:, None] + places[..., None] * directions[:, None]
        else:
            points = torch.addcmul(origins[:, None], places[..., None], directions[:, None])
        densities, colours = field(points, directions, codes)
        apart = torch.cat((places[:, 1:] - places[:, :-1], FAR - places[:, -1:]), 1)
        if how.last == "nothing":
            apart = torch.cat((apart[:, :-1], torch.zeros_like(apart[:, :1])), 1)
        apart = apart * directions.norm(dim=-1, keepdim=True) if how.lengths else apart
        passed = densities * (apart if how.steps_count else 1.0)
        weights = self._weights(passed)
        if how.colours == "einsum":
            colour = torch.einsum("rp,rpc->rc", weights, colours)
        else:
            colour = (weights[..., None] * colours).sum(1)
        if how.behind == "white":
            colour = colour + (1 - weights.sum(1, keepdim=True))
        return weights, colour

    def _weights(self, passed):
        """The share of a ray that ends at each place, of what it passes there."""
        how = self.how
        stopped = 1 - (-passed).exp() if how.alpha == "exp" else -(-passed).expm1()
        if how.through == "sums":
            total = passed.cumsum(1)
            total = total if how.inclusive else total - passed
            return stopped * (-total).exp()
        left = 1 - stopped
        if how.through == "loop":
            found, goes_on = [], torch.ones_like(passed[:, 0])
            for at in range(passed.shape[1]):
                found.append(goes_on * stopped[:, at])
                goes_on = goes_on * left[:, at]
            return torch.stack(found, 1)
        through = left.cumprod(1)
        if not how.inclusive:
            through = torch.cat((torch.ones_like(through[:, :1]), through[:, :-1]), 1)
        return stopped * through

    def _drawn(self, places, weights, at):
        """Places where much was met, by the inverse of the sum of weights."""
        how = self.how
        edges = (places[:, 1:] + places[:, :-1]) / 2
        inner = weights[:, 1:-1] + 0.05
        summed = (inner / inner.sum(1, keepdim=True)).cumsum(1)
        summed = torch.cat((torch.zeros_like(summed[:, :1]), summed), 1)
        at = ((torch.arange(PLACES) + at) / PLACES).contiguous()
        above = torch.searchsorted(summed.detach(), at, right=True)
        above = above.clamp(1, summed.shape[1] - 1)
        (left, right), (low, high) = (
            (x.gather(1, above - 1), x.gather(1, above)) for x in (summed, edges)
        )
        share = (at - left) / (right - left)
        if how.between == "plain":
            return low + share * (high - low)
        return (1 - share) * low + share * high

    def _spread(self, places, weights):
        """How far apart the places are that count: the distortion of mip-NeRF 360."""
        how = self.how
        ends = torch.cat((places, torch.full_like(places[:, :1], FAR)), 1)
        middle, apart = (ends[:, 1:] + ends[:, :-1]) / 2, ends[:, 1:] - ends[:, :-1]
        if how.pairs == "products":
            far = (middle[:, :, None] - middle[:, None]).abs()
            both = (weights[:, :, None] * weights[:, None] * far).sum((1, 2))
        else:
            before = weights.cumsum(1) - weights
            moved = (weights * middle).cumsum(1) - weights * middle
            both = 2 * (weights * (middle * before - moved)).sum(1)
        return both + (weights.square() * apart).sum(1) / 3 if how.own else both
