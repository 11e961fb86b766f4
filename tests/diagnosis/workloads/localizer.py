"""Points of digits by heat maps: two hourglasses, both of which are told what the maps should be.

The points are the middle of the ink and its outermost pixels to the left, the right, above and
below; one square of each image is hidden, and points in it do not count.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear

_SIZE, _CHANNELS, _STACKS, _SHARPNESS = 8, 8, 2, 5.0
_LEFT, _RIGHT = 1, 2
"""Which points change places in a mirror."""
_WEIGHTS = (2.0, 1.0, 1.0, 1.5, 1.5)
"""How much each point counts."""


@dataclass(frozen=True)
class Localizer(Workload):
    """Images are partly hidden and half of them mirrored; each point has a map.

    covers: whether what is hidden is indeed covered. wide: whether the maps' layers begin with
        larger weights.
    swaps: whether left and right points are exchanged in mirrored images. halves: whether the
        exponents of the targets are divided by 2.
    seen: the points that count, those that are not hidden ("rightly") or those that are
        ("inverted"). over: what losses are divided by, the weights of the points that are "seen" or
        of "all". judged: the stacks that have losses, "both" or the "last". heat_weight: of the
        maps' loss. beta: of the loss of coordinates.
    over_places: whether softmax is over places, else over points. middles: whether
        coordinates are those of the pixels' middles.
    returns: whether the first maps are given to the second stack, "attached", "detached" or "not".
    corners: whether an enlargement aligns corners. momentum: of the batch norms. wakes: whether the
        model is in training mode again after an evaluation.
    clears: whether gradients are cleared "first" or "late": after the backward.
    alpha, eps: of RMSprop.
    low: whether the net runs under autocast to bfloat16.
    softly, expects, targets, missed, norming, convolution, pointwise, enlarging, stepping, kept:
        other ways to write the same mathematics.
    """

    lr: float = 1e-3
    weight_decay: float = 1e-3
    covers: bool = True
    wide: bool = False
    swaps: bool = True
    halves: bool = True
    seen: str = "rightly"
    over: str = "seen"
    judged: str = "both"
    heat_weight: float = 2.0
    beta: float = 0.1
    over_places: bool = True
    middles: bool = True
    returns: str = "attached"
    corners: bool = False
    momentum: float = 0.1
    wakes: bool = True
    clears: str = "first"
    alpha: float = 0.9
    eps: float = 1e-4
    low: bool = False
    softly: str = "torch"
    expects: str = "grid"
    targets: str = "plain"
    missed: str = "mask"
    norming: str = "torch"
    convolution: str = "torch"
    pointwise: str = "conv"
    enlarging: str = "torch"
    stepping: str = "torch"
    kept: bool = False

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            kind = torch.optim.RMSprop if self.stepping == "torch" else ByHand
            optimizer = kind(
                model.parameters(),
                lr=self.lr,
                alpha=self.alpha,
                eps=self.eps,
                weight_decay=self.weight_decay,
                foreach=self.implementation == "foreach",
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for step, (dealt, _) in enumerate(self.images(seed)):
                images, points, seen = self._given(dealt.to(torch.get_default_dtype()))
                if step % 3 == 1:
                    self._evaluate(model, images, points)
                if self.clears == "first":
                    clear(optimizer, self)
                self._back(self._losses(self._told(model, images), points, seen))
                if self.clears == "late":
                    clear(optimizer, self)
                optimizer.step()

    def _given(self, images):
        """Images, partly covered and mirrored, with their points and which of them are seen."""
        count = len(images)
        corner, mirrored = torch.randint(0, _SIZE - 2, (count, 1, 2)), torch.rand(count) < 0.5
        if self.turned:
            corner, mirrored = corner.flip(0), mirrored.flip(0)
        points = _points(images)
        hidden = ((points >= corner) & (points < corner + 3)).all(-1)
        x, y = (torch.arange(_SIZE) - corner[..., at] for at in range(2))
        covered = ((y >= 0) & (y < 3))[:, :, None] & ((x >= 0) & (x < 3))[:, None]
        images = images.masked_fill(covered, -1.0) if self.covers else images
        other = points * torch.tensor([-1, 1]) + torch.tensor([_SIZE - 1, 0])
        if self.swaps:
            order = list(range(len(_WEIGHTS)))
            order[_LEFT], order[_RIGHT] = _RIGHT, _LEFT
            other = other[:, order]
            hidden = torch.where(mirrored[:, None], hidden[:, order], hidden)
        images = torch.where(mirrored[:, None, None], images.flip(2), images)
        points = torch.where(mirrored[:, None, None], other, points)
        seen = ~hidden if self.seen == "rightly" else hidden
        return images[:, None], points, seen.to(images.dtype)

    def _told(self, model, images):
        """The maps of both stacks."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = model(images)
        return [one.to(images.dtype) for one in told]

    @torch.no_grad()
    def _evaluate(self, model, images, points):
        """How far the points that the last stack tells are away."""
        model.eval()
        found = self._coordinates(self._told(model, images)[-1])
        anchorlib.anchor((found - _scaled(points)).norm(dim=-1).mean(), "eval_distance")
        model.train(self.wakes)

    def _losses(self, told, points, seen):
        """The losses of maps and of coordinates, of each stack."""
        weights = anchorlib.anchor(seen * torch.tensor(_WEIGHTS, dtype=seen.dtype), "weights")
        targets = anchorlib.anchor(self._targets(points), "targets")
        count = weights.sum() if self.over == "seen" else weights.numel()
        found = {}
        for at, maps in enumerate(told):
            if self.judged == "last" and at < _STACKS - 1:
                continue
            coordinates = anchorlib.anchor(self._coordinates(maps), f"coordinates{at}")
            far = functional.smooth_l1_loss(
                coordinates, _scaled(points), reduction="none", beta=self.beta
            )
            heat, far = (maps - targets).square().mean((2, 3)), far.sum(-1)
            if self.missed == "mask":
                heat, far = (heat * weights).sum(), (far * weights).sum()
            else:
                heat, far = (one[weights > 0] @ weights[weights > 0] for one in (heat, far))
            found[f"heat_loss{at}"] = self.heat_weight * heat / count
            found[f"place_loss{at}"] = far / count
        return found

    def _targets(self, points):
        """A Gaussian around each point (sample, point, row, column)."""
        far = torch.arange(_SIZE) - points[..., None]
        far = far.square() / (2 if self.halves else 1)
        if self.targets == "plain":
            return torch.exp(-(far[:, :, 1, :, None] + far[:, :, 0, None]))
        across, down = torch.exp(-far).unbind(2)
        return down[..., None] * across[..., None, :]

    def _coordinates(self, maps):
        """Where the maps are bright, x and y from -1 to 1 (sample, point, 2)."""
        maps = _SHARPNESS * maps.flatten(2)
        if self.softly == "torch":
            share = maps.softmax(2 if self.over_places else 1)
        else:
            share = (maps - maps.logsumexp(2, keepdim=True)).exp()
        places = torch.arange(_SIZE).to(maps.dtype)
        places = _scaled(places) if self.middles else places * (2 / _SIZE) - 1
        if self.expects == "grid":
            y, x = torch.meshgrid(places, places, indexing="ij")
            return share @ torch.stack((x.flatten(), y.flatten()), 1)
        share = share.unflatten(2, (_SIZE, _SIZE))
        return torch.stack(((share.sum(2) * places).sum(2), (share.sum(3) * places).sum(2)), 2)

    def _back(self, losses):
        """All losses' gradients."""
        loss = sum(losses.values())
        for name, one in (*losses.items(), ("loss", loss)):
            anchorlib.anchor(one, name)
        loss.backward()


def _points(images):
    """The middle of each image's ink and its outermost pixels, x and y (sample, point, 2)."""
    ink = images + 1
    at = torch.arange(_SIZE).to(ink.dtype)
    whole = ink.sum((1, 2))
    middle = torch.stack(((ink.sum(1) * at).sum(1) / whole, (ink.sum(2) * at).sum(1) / whole), 1)
    dark, down = ink > 0.9, torch.arange(_SIZE)
    found = [middle]
    for axis, last in ((2, False), (2, True), (1, False), (1, True)):
        lines = dark if axis == 2 else dark.transpose(1, 2)  # so that the axis comes last
        order = down if last else down.flip(0)
        far = (lines.any(1) * (order + 1)).argmax(1)
        other = lines[torch.arange(len(lines)), :, far].int().argmax(1)
        found.append(torch.stack((far, other) if axis == 2 else (other, far), 1).to(ink.dtype))
    return torch.stack(found, 1)


def _scaled(points):
    """Pixels as -1 to 1, edge to edge."""
    return (2 * points + 1) / _SIZE - 1


class ByHand(torch.optim.RMSprop):
    """RMSprop by its formula."""

    @torch.no_grad()
    def step(self, closure=None):
        """Move all parameters."""
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is None:
                    continue
                state = self.state[one]
                if not state:
                    state["step"] = torch.zeros(())
                    state["square_avg"] = torch.zeros_like(one)
                state["step"] += 1
                grad = one.grad + group["weight_decay"] * one
                square = group["alpha"] * state["square_avg"] + (1 - group["alpha"]) * grad**2
                state["square_avg"].copy_(square)
                one.sub_(group["lr"] * grad / (square.sqrt() + group["eps"]))


class Conv(nn.Conv2d):
    """A convolution that keeps the size, torch's or by other products."""

    def __init__(self, how, into: int, out: int, size: int = 3) -> None:
        super().__init__(into, out, size, padding=size // 2, bias=size == 1)
        self.how = how

    def forward(self, x):
        """The convolution."""
        if self.kernel_size == (1, 1) and self.how.pointwise == "einsum":
            found = torch.einsum("nchw,oc->nohw", x, self.weight[..., 0, 0])
            return found + self.bias.view(-1, 1, 1)
        if self.kernel_size == (3, 3) and self.how.convolution == "patches":
            patches = functional.unfold(x, 3, padding=1)
            return (self.weight.flatten(1) @ patches).unflatten(2, x.shape[2:])
        return super().forward(x)


class Norm(nn.BatchNorm2d):
    """A batch norm, torch's or by its formula."""

    def __init__(self, how) -> None:
        super().__init__(_CHANNELS, momentum=how.momentum)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "torch" or not self.training:
            return super().forward(x)
        count = x.numel() // _CHANNELS
        mean = x.mean((0, 2, 3))
        spread = x.square().mean((0, 2, 3)) - mean.square()
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(spread * (count / (count - 1)), self.momentum)
        factor = self.weight * (spread + self.eps).rsqrt()
        return x * factor.view(-1, 1, 1) + (self.bias - mean * factor).view(-1, 1, 1)


class Layer(nn.Module):
    """A convolution, a norm and what is positive of it."""

    def __init__(self, how, into: int = _CHANNELS) -> None:
        super().__init__()
        self.conv, self.norm = Conv(how, into, _CHANNELS), Norm(how)

    def forward(self, x):
        """The layer."""
        return functional.silu(self.norm(self.conv(x)))


class Enlarged(nn.Module):
    """An image at twice its size."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """The image, interpolated."""
        if self.how.enlarging == "torch":
            return functional.interpolate(
                x, scale_factor=2, mode="bilinear", align_corners=self.how.corners
            )
        size = x.shape[-1]
        at = ((torch.arange(2 * size).to(x.dtype) + 0.5) / 2 - 0.5).clamp(0, size - 1)
        matrix = (1 - (at[:, None] - torch.arange(size)).abs()).clamp(min=0)
        return torch.einsum("oh,nchw,pw->ncop", matrix, x, matrix)


class Hourglass(nn.Module):
    """An image is made small, looked at and made large again; details go around it."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.around, self.down, self.inner = Layer(how), Layer(how), Layer(how)
        self.enlarged = Enlarged(how)

    def forward(self, x):
        """x, seen as a whole."""
        inner = self.inner(self.down(functional.avg_pool2d(x, 2)))
        inner = inner.contiguous() if self.how.kept else inner
        return self.around(x) + self.enlarged(inner)


class Net(nn.Module):
    """Hourglasses, each with its maps, which are given to the next."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        count = len(_WEIGHTS)
        self.stem = Layer(how, 1)
        self.glasses = nn.ModuleList(Hourglass(how) for _ in range(_STACKS))
        self.heats = nn.ModuleList(Conv(how, _CHANNELS, count, 1) for _ in range(_STACKS))
        self.back = Conv(how, count, _CHANNELS, 1)
        if how.wide:
            for heat in self.heats:
                nn.init.normal_(heat.weight, std=0.5)

    def forward(self, x):
        """The maps of each stack."""
        x, found = self.stem(x), []
        for at, (glass, heat) in enumerate(zip(self.glasses, self.heats, strict=True)):
            seen = glass(x)
            found.append(heat(seen))
            if at < _STACKS - 1:
                x = x + seen
                if self.how.returns != "not":
                    maps = found[-1]
                    x = x + self.back(maps if self.how.returns == "attached" else maps.detach())
        return found


_HEAT = ("heat_loss*@*", "output*@grad", "loss@*")
_PLACE = ("place_loss*@*", "coordinates*@*", "output*@grad", "loss@*")
_TOLD = ("coordinates*@value", "eval_distance@value")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_LOW = {"low": True}
CASES = [
    Case("softmax over points", "bug", {"over_places": False}, _TOLD, r"\bdim\b"),
    Case(
        "pixels' corners for their middles",
        "bug",
        {"middles": False},
        _TOLD,
        rf"\b[Mm]m\b|[Bb]mm|[Mm]atmul|\bAdd(Backward|\b)|plus|offset|{_GIVEN}",
    ),
    Case(
        "left and right not exchanged in mirrors",
        "bug",
        {"swaps": False},
        ("targets@value", "weights@value", *_HEAT, *_PLACE),
        rf"\btargets?\b|another order|places? on along|\b[Ii]ndex|{_GIVEN}",
    ),
    Case(
        "exponents of targets not halved",
        "bug",
        {"halves": False},
        ("targets@value",),
        rf"\bdiv|\bexp\b|\bpow|\btargets?\b|{_TIMES}",
    ),
    Case(
        "hidden points alone",
        "bug",
        {"seen": "inverted"},
        ("weights@value",),
        r"\bmask|\bweights?\b|[Nn]ot\b|\bMul|invert",
    ),
    Case("losses over all points", "bug", {"over": "all"}, (*_HEAT, *_PLACE), rf"\bDiv|{_TIMES}"),
    Case(
        "first stack not told",
        "bug",
        {"judged": "last"},
        (
            "loss@*",
            "heat_loss0@*",
            "place_loss0@*",
            "coordinates0@*",
            "output@grad",
            "heats.0@grad",
        ),
        r"\bAdd(Backward|\b)|heat_loss0|place_loss0|coordinates0|(lacks|alone|without).{0,60}Backw",
    ),
    Case("beta of the distance", "bug", {"beta": 1.0}, _PLACE, r"\bbeta\b"),
    Case(
        "maps not given on",
        "bug",
        {"returns": "not"},
        ("back@*", "glasses.1.around.conv@value", "glasses.1.*@value"),
        r"\bAdd(Backward|\b)|\bback\b",
    ),
    Case(
        "maps given on detached",
        "bug",
        {"returns": "detached"},
        ("heats.0@grad", "heats.0.*@*grad", "output@grad", "glasses.0@grad"),
        r"detach|gradients come back|back .{0,60}(lacks|alone)|(lacks|alone).{0,60}\b[Cc]onv",
    ),
    Case(
        "corners aligned",
        "bug",
        {"corners": True},
        ("glasses.0.enlarged@value",),
        r"align_corners",
    ),
    Case(
        "momentum of batch norms",
        "bug",
        {"momentum": 0.9},
        ("*.norm.running*@value", "eval_distance@value", "*norm@value"),
        r"\bmomentum\b",
    ),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("stem.norm@value", "stem.norm.running*@value", "stem.norm.num*@value"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        step=1,
    ),
    Case(
        "cleared before the step",
        "bug",
        {"clears": "late"},
        ("*@grad",),
        rf"zero_grad|\bzeros?\b|clear|{_TIMES}",
        reference={"set_to_none": False},
    ),
    Case("alpha of RMSprop", "bug", {"alpha": 0.99}, UPDATES, r"\balpha\b"),
    Case("softmax by logsumexp", "benign", {"softly": "logsumexp"}),
    Case("coordinates of rows and columns", "benign", {"expects": "margins"}),
    Case("targets as outer products", "benign", {"targets": "outer"}),
    Case("points that count by index", "benign", {"missed": "index"}),
    Case("own batch norm", "benign", {"norming": "own"}),
    Case("convolutions of patches", "benign", {"convolution": "patches"}),
    Case("maps by einsum", "benign", {"pointwise": "einsum"}),
    Case("enlarged by matrices", "benign", {"enlarging": "matrices"}),
    Case("RMSprop by hand", "benign", {"stepping": "by hand"}),
    Case("images turned", "benign", {"turned": True}),
    Case("images turned, low precision", "benign", {"turned": True}, reference=_LOW),
    Case("logsumexp, low precision", "benign", {"softly": "logsumexp"}, reference=_LOW),
    Case("nothing covered", "data", {"covers": False}, ("input*@value",)),
    Case("maps begin wide", "data", {"wide": True}, ("heats.*weight@value",)),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("foreach RMSprop", "equal", {"implementation": "foreach"}),
    Case("made contiguous", "equal", {"kept": True}),
    Case("died", "incomplete", {"ends_at": 4}),
]
