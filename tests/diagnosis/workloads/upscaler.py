"""Super-resolution of digits: residual blocks with attention to channels, and pixels shuffled."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut, digits

_CHANNELS, _SQUEEZED, _FEATURES = 12, 4, 6
_SHARE = 0.3
"""The factor of what a block adds."""
_SHOWN = 12
"""Digits that the averaged net is judged by."""


@dataclass(frozen=True)
class Upscaler(Workload):
    """Digits are made half as large; a net makes them large again.

    shrinks: how digits are made small, by the "mean" of pixels or by "every second". still: whether
        the last convolution begins at zero.
    pools: what attention sees of a channel, its "mean" or its "max". bounds: whether attention lies
        between 0 and 1. shuffles: how channels become pixels, by "torch", by "reshape", or
        "transposed" inside each square. enlarges: the interpolation that the net's output is added
        to. clamps: whether outputs are clamped.
    eps: of the Charbonnier loss. squares: whether its eps is squared. perceives: whether the
        gradient goes through the features. rests: whether the features' norm uses its statistics.
    feature_weight, rough_weight: of the losses of features and of total variation. axes: along
        which variation is taken.
    parts: micro-batches a step. divides: whether their losses are divided by how many there are.
    decay: of the averaged weights. averages: when they are averaged, "after" or "before" the
        optimizer's step. exchanged: whether old and new weights are exchanged in it.
    drops: the steps after which the learning rate is halved.
    low: whether the net runs under autocast to bfloat16.
    convolution, hypot, squeeze, sigmoid, adds, distance, variation, averaging, backward, parted:
        other ways to write the same mathematics.
    """

    lr: float = 2e-3
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.05
    shrinks: str = "mean"
    still: bool = False
    pools: str = "mean"
    bounds: bool = True
    shuffles: str = "torch"
    enlarges: str = "bicubic"
    clamps: bool = False
    eps: float = 3e-2
    squares: bool = True
    perceives: bool = True
    rests: bool = True
    feature_weight: float = 0.2
    rough_weight: float = 0.01
    axes: tuple[int, int] = (2, 3)
    parts: int = 2
    divides: bool = True
    decay: float = 0.9
    averages: str = "after"
    exchanged: bool = False
    drops: int = 2
    low: bool = False
    convolution: str = "torch"
    hypot: bool = False
    squeeze: str = "conv"
    sigmoid: str = "torch"
    adds: str = "plain"
    distance: str = "torch"
    variation: str = "mean"
    averaging: str = "plain"
    backward: str = "loss"
    parted: bool = False

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model, features = Net(self), self._features()
            averaged = copy.deepcopy(model).requires_grad_(False)
            optimizer = self.adam(self._groups(model))
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, self.drops, 0.5)
            session.watch(model, tensors="*", optimizer=optimizer)
            session.watch(averaged, tensors="*", prefix="averaged")
            session.watch(features, tensors="*", prefix="features")
            shown, _ = digits()
            for step, (images, _) in enumerate(self.images(seed)):
                large = images[:, None].to(torch.get_default_dtype())
                if step % 2 == 0:
                    self._evaluate(averaged, shown[:_SHOWN, None].to(large.dtype))
                clear(optimizer, self)
                for (part,) in cut(self.parts, large):
                    self._learn(model, features, part)
                if self.averages == "before":
                    self._average(averaged, model)
                optimizer.step()
                schedule.step()
                if self.averages == "after":
                    self._average(averaged, model)

    def _groups(self, model):
        """All parameters, or the same in two groups with the same options."""
        found = list(model.parameters())
        return [{"params": found[:5]}, {"params": found[5:]}] if self.parted else found

    def _features(self):
        """A small frozen net, whose norm has seen all digits."""
        found = nn.Sequential(
            nn.Conv2d(1, _FEATURES, 3, padding=1),
            nn.BatchNorm2d(_FEATURES, momentum=None),
            nn.ReLU(),
            nn.Conv2d(_FEATURES, _FEATURES, 3, padding=1),
        )
        with torch.no_grad():
            found(digits()[0][:, None].to(torch.get_default_dtype()))
        return found.requires_grad_(False).train(not self.rests)

    def _shrunk(self, large):
        """Digits of half the size."""
        if self.shrinks == "mean":
            return functional.avg_pool2d(large, 2)
        return large[..., ::2, ::2]

    def _told(self, model, large):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = model(self._shrunk(large))
        told = told.to(large.dtype)
        return told.clamp(-1, 1) if self.clamps else told

    @torch.no_grad()
    def _evaluate(self, averaged, large):
        """The mean square that the averaged net is off by."""
        for name, one in averaged.named_parameters():
            anchorlib.anchor(one, f"average.{name}")
        told = self._told(averaged, large)
        anchorlib.anchor((told - large).square().mean(), "eval_loss")

    def _learn(self, model, features, large):
        """The gradients of one micro-batch."""
        told = anchorlib.anchor(self._told(model, large), "told")
        losses = {
            "pixel_loss": self._charbonnier(told, large),
            "feature_loss": self.feature_weight * self._felt(features, told, large),
            "rough_loss": self.rough_weight * self._rough(told),
        }
        count = self.parts if self.divides else 1
        losses = {name: loss / count for name, loss in losses.items()}
        loss = sum(losses.values())
        for name, one in (*losses.items(), ("loss", loss)):
            anchorlib.anchor(one, name)
        if self.backward == "loss":
            loss.backward()
        else:
            for one in losses.values():
                one.backward(retain_graph=True)

    def _charbonnier(self, told, large):
        """The mean of a smooth absolute difference."""
        missed = told - large
        if self.hypot:
            return torch.hypot(missed, torch.tensor(self.eps, dtype=missed.dtype)).mean()
        eps = self.eps**2 if self.squares else self.eps
        return (missed.square() + eps).sqrt().mean()

    def _felt(self, features, told, large):
        """How far the features of what is told are from those of the digits."""
        told = told if self.perceives else told.detach()
        found, wanted = features(told), features(large)
        if self.distance == "torch":
            return functional.mse_loss(found, wanted)
        return torch.linalg.vector_norm(found - wanted).square() / wanted.numel()

    def _rough(self, told):
        """The total variation."""
        steps = [told.diff(dim=axis).abs() for axis in self.axes]
        if self.variation == "mean":
            return sum(one.mean() for one in steps)
        return torch.stack([sum(one[at].mean() for one in steps) for at in range(len(told))]).mean()

    @torch.no_grad()
    def _average(self, averaged, model):
        """Move the averaged weights towards the net's."""
        kept = 1 - self.decay if self.exchanged else self.decay
        for old, new in zip(averaged.parameters(), model.parameters(), strict=True):
            if self.averaging == "lerp":
                old.lerp_(new, 1 - kept)
            else:
                old.mul_(kept).add_(new, alpha=1 - kept)


class Conv(nn.Conv2d):
    """A convolution that keeps the size, torch's or as a product with patches."""

    def __init__(self, how, into: int, out: int) -> None:
        super().__init__(into, out, 3, padding=1)
        self.how = how

    def forward(self, x):
        """The convolution."""
        if self.how.convolution == "torch":
            return super().forward(x)
        found = self.weight.flatten(1) @ functional.unfold(x, 3, padding=1)
        return (found + self.bias[:, None]).unflatten(2, x.shape[2:])


class Attention(nn.Module):
    """A factor for each channel, made of what all channels are like."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.down = nn.Conv2d(_CHANNELS, _SQUEEZED, 1)
        self.up = nn.Conv2d(_SQUEEZED, _CHANNELS, 1)

    def forward(self, x):
        """The factors (sample, channel, 1, 1)."""
        if self.how.squeeze == "conv":
            seen = functional.adaptive_avg_pool2d(x, 1)
            seen = seen if self.how.pools == "mean" else x.amax((2, 3), keepdim=True)
            told = self.up(functional.relu(self.down(seen)))
        else:
            seen = functional.linear(x.mean((2, 3)), self.down.weight[..., 0, 0], self.down.bias)
            told = functional.linear(seen.relu(), self.up.weight[..., 0, 0], self.up.bias)
            told = told[..., None, None]
        if not self.how.bounds:
            return told
        return told.sigmoid() if self.how.sigmoid == "torch" else (1 + (told / 2).tanh()) / 2


class Block(nn.Module):
    """Two convolutions and attention, added to what they were given."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.first, self.second = (Conv(how, _CHANNELS, _CHANNELS) for _ in range(2))
        self.attention = Attention(how)

    def forward(self, x):
        """x, moved."""
        found = self.second(functional.leaky_relu(self.first(x), 0.1))
        seen = self.attention(found)
        if self.how.adds == "addcmul":
            return torch.addcmul(x, found, seen, value=_SHARE)
        return x + _SHARE * (found * seen)


class Shuffle(nn.Module):
    """Channels that become the pixels of squares."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """An image that is twice as large."""
        if self.how.shuffles == "torch":
            return functional.pixel_shuffle(x, 2)
        down, across = (1, 2) if self.how.shuffles == "reshape" else (2, 1)
        x = x.unflatten(1, (2, 2)).permute(0, 3, down, 4, across)
        return x.reshape(len(x), 1, 2 * x.shape[1], -1)


class Enlarged(nn.Module):
    """What interpolation makes of a small image."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """An image that is twice as large."""
        return functional.interpolate(x, scale_factor=2, mode=self.how.enlarges)


class Net(nn.Module):
    """What a small image is, at twice its size."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.head, self.tail = Conv(how, 1, _CHANNELS), Conv(how, _CHANNELS, 4)
        self.blocks = nn.ModuleList(Block(how) for _ in range(2))
        self.shuffle, self.enlarged = Shuffle(how), Enlarged(how)
        if how.still:
            nn.init.zeros_(self.tail.weight)

    def forward(self, x):
        """The large image."""
        found = self.head(x)
        for block in self.blocks:
            found = block(found)
        return self.shuffle(self.tail(found)) + self.enlarged(x)


_TOLD = ("told@grad", "output@grad", "loss@*")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_LOW = {"low": True}
CASES = [
    Case(
        "pixels across and down exchanged",
        "bug",
        {"shuffles": "transposed"},
        ("*shuffle@value",),
        rf"permute|transpose|[Pp]ixel_?[Ss]huffle|{_ORDER}",
    ),
    Case(
        "attention to the maximum",
        "bug",
        {"pools": "max"},
        ("*blocks.0.attention@value", "*blocks.0.attention.down@value"),
        r"\b[Aa]max|\b[Mm]ean|avg_?pool",
    ),
    Case(
        "attention without a sigmoid",
        "bug",
        {"bounds": False},
        ("*blocks.0.attention@value",),
        r"[Ss]igmoid",
    ),
    Case(
        "bilinear for bicubic",
        "bug",
        {"enlarges": "bilinear"},
        ("*enlarged@value",),
        r"bilinear|bicubic",
    ),
    Case(
        "eps not squared",
        "bug",
        {"squares": False},
        ("pixel_loss@*", *_TOLD),
        rf"\beps\b|\bAdd(Backward|\b)|\b[Ss]qrt|{_GIVEN}",
    ),
    Case(
        "outputs clamped before the losses",
        "bug",
        {"clamps": True},
        ("told@value", "pixel_loss@*", "eval_loss@*", *_TOLD),
        r"[Cc]lamp|\bclip",
    ),
    Case(
        "features normed by the batch",
        "bug",
        {"rests": False},
        ("features.1@value", "features.1.running*@value"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
    ),
    Case(
        "features weigh ten times as much",
        "bug",
        {"feature_weight": 2.0},
        ("feature_loss@*", "features*@grad", *_TOLD),
        rf"\bMul|{_TIMES}",
    ),
    Case(
        "variation along one axis",
        "bug",
        {"axes": (3, 3)},
        ("rough_loss@*", *_TOLD),
        r"\bdim\b|\bdiff\b|\b[Ss]lice|\b[Nn]arrow|\bSub(Backward|\b)",
    ),
    Case(
        "features of what is detached",
        "bug",
        {"perceives": False},
        ("feature_loss@grad", "features*@grad", *_TOLD),
        r"detach|gradients come back|requires_grad|no_grad|(lacks|alone|without).{0,60}Backward",
    ),
    Case(
        "losses of micro-batches not divided",
        "bug",
        {"divides": False},
        ("pixel_loss@*", "feature_loss@*", "rough_loss@*", "loss@*"),
        rf"\bDiv|{_TIMES}",
    ),
    Case("decay inside the gradient", "bug", {"decoupled": False}, UPDATES, r"decoupled|decay"),
    Case("rate falls too often", "bug", {"drops": 1}, UPDATES, r"\blr\b|step_size", step=1),
    Case(
        "averaged before the step",
        "bug",
        {"averages": "before"},
        ("average.*@value", "averaged.*@value"),
        r"\bbefore the (optimizer|step|update)|updated|earlier|\bone step",
    ),
    Case(
        "old and new exchanged in the average",
        "bug",
        {"exchanged": True},
        ("average.*@value", "averaged.*@value"),
        rf"\b[Mm]ul_?\b|\b[Aa]dd_\b|\balpha\b|\b[Ll]erp|{_TIMES}|average of|0\.[19]\b",
    ),
    Case("convolutions of patches", "benign", {"convolution": "patches"}),
    Case("loss by hypot", "benign", {"hypot": True}),
    Case("attention by linear layers", "benign", {"squeeze": "linear"}),
    Case("sigmoid by tanh", "benign", {"sigmoid": "tanh"}),
    Case("blocks by addcmul", "benign", {"adds": "addcmul"}),
    Case("features' distance by its length", "benign", {"distance": "length"}),
    Case("fused AdamW", "benign", {"implementation": "fused"}),
    Case("variation image by image", "benign", {"variation": "each"}),
    Case("averages by lerp", "benign", {"averaging": "lerp"}),
    Case("digits turned", "benign", {"turned": True}),
    Case("patches, low precision", "benign", {"convolution": "patches"}, reference=_LOW),
    Case("a backward for each loss, low precision", "benign", {"backward": "each"}, reference=_LOW),
    Case("every second pixel", "data", {"shrinks": "every second"}, ("*input*@value",)),
    Case("last convolution begins at zero", "data", {"still": True}, ("*tail.weight@value",)),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("shuffled by reshape", "equal", {"shuffles": "reshape"}),
    Case("parameters in two groups", "equal", {"parted": True}),
    Case("died", "incomplete", {"ends_at": 3}),
]
