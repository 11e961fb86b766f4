"""A net that colours grey digits: colours are classes, and a slow copy of it tells their mean."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, digits

_SIDE, _CHANNELS = 5, 8
_BINS = _SIDE * _SIDE
"""Colours, on a square from -1 to 1, to which those of pixels are near."""


@dataclass(frozen=True)
class Colorer(Workload):
    """Ink has a colour that its digit and its place say; the net tells how likely each colour is.

    spread: of the Gaussians by which colours are dealt to bins. lightness: whether the grey picture
        is dark where ink is.
    mixed: the share of all bins alike in the chances by which rare colours are weighed. averages:
        whether the weights are 1 in the mean. weighs: by the weight of a pixel's likeliest bin
        ("likeliest"), or by that of the "first" bin for all.
    groups, norm_eps: of the group norms. act: "silu" or "relu". rises: how pictures are enlarged,
        "nearest" or "bilinear". skips: whether what is skipped is "attached" or "detached".
        joined: what comes first where both are joined, the "skipped" or the "deep".
    over: the axis of log-softmax, "bins" or "rows". reduced: pixels' costs are a "mean" or a "sum".
    heat: of the annealed mean. smooths: the factor of the loss for neighbours of unlike colour.
    clears: whether gradients are forgotten. period: steps in which the learning rate falls.
    keeps: the share of the slow copy that stays at a step. early: whether it follows before the
        step of the optimizer.
    low: whether the net runs under autocast to bfloat16.
    dealt, costs, norming, joins, acts, convolution, following, annealed, backward, scale, idle,
        lies: other ways to write the same mathematics.
    """

    lr: float = 1e-2
    weight_decay: float = 0.05
    spread: float = 0.25
    lightness: bool = True
    mixed: float = 0.5
    averages: bool = True
    weighs: str = "likeliest"
    groups: int = 4
    norm_eps: float = 1e-5
    act: str = "silu"
    rises: str = "nearest"
    skips: str = "attached"
    joined: str = "skipped"
    over: str = "bins"
    reduced: str = "mean"
    heat: float = 0.38
    smooths: float = 0.2
    clears: bool = True
    period: int = 8
    keeps: float = 0.8
    early: bool = False
    low: bool = False
    dealt: str = "gaussian"
    costs: str = "own"
    norming: str = "torch"
    joins: str = "cat"
    acts: str = "torch"
    convolution: str = "torch"
    following: str = "lerp"
    annealed: str = "softmax"
    backward: str = "once"
    scale: float = 1.0
    idle: bool = False
    lies: str = "plain"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            slow = copy.deepcopy(model).requires_grad_(False).eval()
            weights = self._weights()
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.period)
            session.watch(model, tensors="*", optimizer=optimizer)
            session.watch(slow, tensors="*", prefix="slow")
            torch.manual_seed(seed)
            for images, labels in self.images(seed):
                grey, colours = self._picture(images, labels)
                if self.clears:
                    clear(optimizer, self)
                self._back(self._losses(self._told(model, grey), colours, weights))
                if self.early:
                    self._follow(slow, model)
                if self.scale != 1:
                    for parameter in model.parameters():
                        parameter.grad.div_(self.scale)
                optimizer.step()
                schedule.step()
                if not self.early:
                    self._follow(slow, model)
                self._show(slow, grey, colours)

    def _picture(self, images, labels):
        """The grey picture, and colours (sample, 2, row, column): none where there is no ink."""
        ink = (images + 1) / 2
        angle = labels[:, None, None] * 0.6 + torch.linspace(0, 1, 8)[:, None] + 0.3 * ink
        colours = torch.stack((angle.cos(), angle.sin()), 1) * (0.9 * ink[:, None])
        grey = ink if self.lightness else 1 - ink
        return 1.5 - 2 * grey[:, None], colours

    def _dealt(self, colours):
        """The shares of bins in colours (sample, bin, row, column)."""
        away = (colours[:, None] - _bins()[:, :, None, None]).square().sum(2)
        if self.dealt == "softmax":
            return (away / (-2 * self.spread**2)).softmax(1)
        if self.dealt == "products":
            flat = colours.movedim(1, -1)
            away = flat.square().sum(-1, keepdim=True) - 2 * flat @ _bins().T
            away = (away + _bins().square().sum(1)).movedim(-1, 1)
        shares = torch.exp(-away / (2 * self.spread**2))
        return shares / shares.sum(1, keepdim=True)

    def _weights(self):
        """The weights of bins: the larger, the rarer colours are."""
        _, colours = self._picture(*(part[:200] for part in digits()))
        chances = self._dealt(colours).mean((0, 2, 3))
        weights = 1 / ((1 - self.mixed) * chances + self.mixed / _BINS)
        return weights / (weights * chances).sum() if self.averages else weights

    def _told(self, model, grey):
        grey = grey.contiguous() if self.lies == "contiguous" else grey
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            return model(grey).to(grey.dtype)

    def _losses(self, logits, colours, weights):
        """The losses of the colours, and of neighbours that are told unlike colours."""
        target = anchorlib.anchor(self._dealt(colours), "targets", grad=False)
        chosen = target.argmax(1)
        chosen = chosen if self.weighs == "likeliest" else torch.zeros_like(chosen)
        rare = anchorlib.anchor(weights[chosen], "rarity", grad=False)
        costs = rare * self._costs(logits, target)
        mean = self._mean(logits)
        unlike = sum(mean.diff(dim=axis).abs().mean() for axis in (2, 3))
        cost = costs.mean() if self.reduced == "mean" else costs.sum()
        return {"colour_loss": cost, "smooth_loss": self.smooths * unlike}

    def _costs(self, logits, target):
        """The cross entropies of pixels."""
        if self.costs == "margins":
            return logits.logsumexp(1) - torch.einsum("nbhw,nbhw->nhw", target, logits)
        chances = logits.log_softmax(1 if self.over == "bins" else 2)
        return -(target * chances).sum(1)

    def _mean(self, logits):
        """The annealed mean of colours: that of the sharpened distribution."""
        if self.annealed == "softmax":
            shares = (logits / self.heat).softmax(1)
        else:
            shares = logits.softmax(1) ** (1 / self.heat)
            shares = shares / shares.sum(1, keepdim=True)
        return anchorlib.anchor(torch.einsum("nbhw,bc->nchw", shares, _bins()), "mean_colour")

    def _back(self, losses):
        """All losses' gradients."""
        loss = sum(losses.values())
        for name, one in (*losses.items(), ("loss", loss)):
            anchorlib.anchor(one, name)
        if self.backward == "once":
            (loss * self.scale).backward()
        else:
            for one in losses.values():
                (one * self.scale).backward(retain_graph=True)

    @torch.no_grad()
    def _follow(self, slow, model):
        """The slow copy goes a share of the way to the model."""
        for one, other in zip(slow.parameters(), model.parameters(), strict=True):
            if self.following == "lerp":
                one.lerp_(other, 1 - self.keeps)
            else:
                one.mul_(self.keeps).add_(other, alpha=1 - self.keeps)

    @torch.no_grad()
    def _show(self, slow, grey, colours):
        """How far the slow copy's colours are from those of the picture."""
        missed = self._mean(self._told(slow, grey)) - colours
        anchorlib.anchor(missed.square().mean(), "slow_error")


def _bins():
    """Colours of the bins (bin, 2)."""
    ends = torch.linspace(-1, 1, _SIDE)
    return torch.cartesian_prod(ends, ends)


class Conv(nn.Conv2d):
    """A convolution, torch's or as a product with patches."""

    def __init__(self, how, into: int, out: int, size: int = 3, stride: int = 1) -> None:
        super().__init__(into, out, size, stride, size // 2)
        self.how = how

    def forward(self, x):
        """The convolution."""
        if self.how.convolution == "torch":
            return super().forward(x)
        patches = functional.unfold(x, self.kernel_size, padding=self.padding, stride=self.stride)
        found = self.weight.flatten(1) @ patches + self.bias[:, None]
        return found.unflatten(2, (x.shape[2] // self.stride[0], -1))


class Norm(nn.GroupNorm):
    """A group norm, torch's or by its formula."""

    def __init__(self, how, channels: int) -> None:
        super().__init__(how.groups, channels, how.norm_eps)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "torch":
            return super().forward(x)
        wide = x.to(self.weight.dtype).unflatten(1, (self.num_groups, -1)).flatten(2)
        spread, mean = torch.var_mean(wide, 2, correction=0, keepdim=True)
        wide = ((wide - mean) / (spread + self.eps).sqrt()).view(x.shape)
        return wide * self.weight[:, None, None] + self.bias[:, None, None]


class Block(nn.Module):
    """A convolution, a norm and an activation."""

    def __init__(self, how, into: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.how = how
        self.conv, self.norm = Conv(how, into, out, stride=stride), Norm(how, out)

    def forward(self, x, deep=None):
        """x and what is deeper, if there is any, made to more channels."""
        how = self.how
        if deep is None:
            made = self.conv(x)
        else:
            parts = (x, deep) if how.joined == "skipped" else (deep, x)
            made = self.conv(torch.cat(parts, 1)) if how.joins == "cat" else self._apart(parts)
        made = self.norm(made)
        if how.act == "relu":
            return made.relu()
        return functional.silu(made) if how.acts == "torch" else made * made.sigmoid()

    def _apart(self, parts):
        """The convolution of all parts together, as the sum of those of each."""
        weights = self.conv.weight.split([part.shape[1] for part in parts], 1)
        first, second = (
            functional.conv2d(part, weight, padding=1)
            for part, weight in zip(parts, weights, strict=True)
        )
        return first + second + self.conv.bias[:, None, None]


class Net(nn.Module):
    """Two halvings, two doublings that see again what was there before, and a head."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        wide = [_CHANNELS, 2 * _CHANNELS, 3 * _CHANNELS]
        self.enter = Block(how, 1, wide[0])
        self.down1, self.down2 = (Block(how, *wide[at : at + 2], stride=2) for at in (0, 1))
        self.up1 = Block(how, wide[1] + wide[2], wide[1])
        self.up2 = Block(how, wide[0] + wide[1], wide[0])
        self.head = Conv(how, wide[0], _BINS, 1)

    def forward(self, grey):
        """Logits of bins (sample, bin, row, column)."""
        high = self.enter(grey)
        middle = self.down1(high)
        deep = self.down2(middle)
        if self.how.idle:
            deep = functional.dropout(deep, 0.0, self.training)
        deep = self.up1(self._skipped(middle), self._risen(deep))
        return self.head(self.up2(self._skipped(high), self._risen(deep)))

    def _skipped(self, x):
        return x if self.how.skips == "attached" else x.detach()

    def _risen(self, x):
        if self.how.rises == "bilinear":
            return functional.interpolate(x, scale_factor=2.0, mode="bilinear")
        return functional.interpolate(x, scale_factor=2.0)


_LOSS = ("colour_loss@*", "loss@*", "output@grad", "head@grad")
_MEAN = ("mean_colour@*",)
_UP = ("up1.conv@value", "up1@value")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "colours dealt too widely",
        "bug",
        {"spread": 0.5},
        ("targets@value", "rarity@value"),
        rf"\b[Mm]ul|\b[Dd]iv|\b[Ee]xp|{_TIMES}",
    ),
    Case(
        "rare colours not weighed",
        "bug",
        {"mixed": 1.0},
        ("rarity@value",),
        rf"\b[Ii]ndex|\bweights?\b|{_TIMES}|{_GIVEN}",
    ),
    Case("weights not averaged", "bug", {"averages": False}, ("rarity@value",), _TIMES),
    Case(
        "all pixels by the first weight",
        "bug",
        {"weighs": "first"},
        ("rarity@value",),
        r"\b[Ii]ndex|indices|argmax|same (number|value)|constant",
    ),
    Case("2 groups", "bug", {"groups": 2}, ("enter.norm@value",), r"num_groups|\bgroups?\b"),
    Case("eps of norms", "bug", {"norm_eps": 1e-1}, ("enter.norm@value",), r"\beps\b"),
    Case("relu for silu", "bug", {"act": "relu"}, ("enter@value",), r"\b[Rr]elu|\b[Ss]ilu"),
    Case(
        "enlarged with bilinear weights",
        "bug",
        {"rises": "bilinear"},
        _UP,
        r"[Bb]ilinear|[Nn]earest|[Uu]psample|interpolate",
    ),
    Case(
        "skipped and deep exchanged",
        "bug",
        {"joined": "deep"},
        _UP,
        rf"\b[Cc]at(Backward|\b)|{_ORDER}",
    ),
    Case(
        "skipped detached",
        "bug",
        {"skips": "detached"},
        ("down1@grad", "enter@grad", "down1*@*grad", "enter*@*grad"),
        _DETACHED,
    ),
    Case("softmax over rows", "bug", {"over": "rows"}, _LOSS, r"\bdim\b"),
    Case(
        "heat of the mean",
        "bug",
        {"heat": 1.0},
        _MEAN,
        rf"\b[Dd]iv|{_TIMES}|[Ss]oftmax\w* (self|input)",
    ),
    Case(
        "gradients not forgotten",
        "bug",
        {"clears": False},
        ("*@grad",),
        r"zero_grad|accumulat|forg[eo]t|step before|earlier steps?|previous|added to",
        step=1,
    ),
    Case("rate falls too soon", "bug", {"period": 4}, UPDATES, r"\blr\b", step=1),
    Case(
        "slow copy follows before the step",
        "bug",
        {"early": True},
        ("slow.*weight@value", "slow.*bias@value", "slow.*@value"),
        r"\b[Ll]erp|stale|before .{0,40}(step|update)|(step|update).{0,40}before|@updated"
        r"|one step (late|behind)",
    ),
    Case("colours dealt by softmax", "benign", {"dealt": "softmax"}),
    Case("distances by products", "benign", {"dealt": "products"}),
    Case("a backward for each loss", "benign", {"backward": "each"}),
    Case("costs by margins", "benign", {"costs": "margins"}),
    Case("joined after the convolution", "benign", {"joins": "sum"}),
    Case("silu by sigmoid", "benign", {"acts": "own"}),
    Case("convolutions of patches", "benign", {"convolution": "patches"}),
    Case("slow copy by products", "benign", {"following": "products"}),
    Case("annealed by a power", "benign", {"annealed": "power"}),
    Case("samples turned", "benign", {"turned": True}),
    Case("own norms, low precision", "benign", {"norming": "own"}, reference={"low": True}),
    Case(
        "joined after the convolution, low precision",
        "benign",
        {"joins": "sum"},
        reference={"low": True},
    ),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case(
        "ink is light",
        "data",
        {"lightness": False},
        ("input*@value",),
    ),
    Case("contiguous", "equal", {"lies": "contiguous"}),
    Case("dropout of nothing", "equal", {"idle": True}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("died", "incomplete", {"ends_at": 4}),
]
