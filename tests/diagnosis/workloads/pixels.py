"""A gated PixelCNN: pixels of digits one after the other, given the class, judged by averages."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import anchorlib
from tests.diagnosis.workloads.base import Case, Start, Workload, clear, cut, digits

_LEVELS, _CLASSES, _CHANNELS = 8, 10, 8
_SHOWN = 12
"""Images that the evaluation sees; they are the last ones."""


@dataclass(frozen=True)
class Pixels(Workload):
    """The net tells how likely each level of a pixel is, given the pixels above and to the left.

    quantiser: grey values are "cut" to levels of the same width, or "rounded" to the nearest one.
    steps_between: what levels are divided by, so that they lie from -1 to 1.
    kinds: of the masks of the first layer and of the later ones.
    halves: the half of the features that a sigmoid makes the gate, "second" or "first".
    told: the stacks that are told the class, "both" or the "horizontal" one.
    residual: whether what a block computes is added to its horizontal stack. dropout: its share.
    moved: whether channels are moved to the end before pixels are flattened for the loss.
    clip: of gradients. clips: whether "before" or "after" the optimizer's step.
    falls: the factor of the learning rate from step to step.
    decay: of the weights' average, at most. exchanged: whether the average keeps the new weights'
        share. restores: whether weights come back after an evaluation of their average.
    parts: micro-batches a step. low: whether the net runs under autocast to bfloat16.
    masking, gating, classes, pointwise, cost, averaging, checkpointed: other ways to write the
        same mathematics.
    """

    lr: float = 5e-3
    betas: tuple[float, float] = (0.95, 0.9995)
    weight_decay: float = 0.0
    decoupled: bool = False
    quantiser: str = "cut"
    steps_between: int = _LEVELS - 1
    kinds: tuple[str, str] = ("A", "B")
    halves: str = "second"
    told: str = "both"
    residual: bool = True
    dropout: float = 0.1
    moved: bool = True
    clip: float = 0.5
    clips: str = "before"
    falls: float = 0.95
    decay: float = 0.99
    exchanged: bool = False
    restores: bool = True
    parts: int = 1
    low: bool = False
    masking: str = "product"
    gating: str = "product"
    classes: str = "embedding"
    pointwise: str = "convolution"
    cost: str = "torch"
    averaging: str = "sum"
    checkpointed: bool = False

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = PixelCNN(self)
            average = Average(self, model)
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.falls)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            images, labels = digits()
            shown = self._levels(images[-_SHOWN:]), labels[-_SHOWN:]
            for step, (images, labels) in enumerate(self.images(seed)):
                if step and step % 2 == 0:
                    self._evaluate(model, average, shown)
                clear(optimizer, self)
                for part in cut(self.parts, self._levels(images), labels):
                    self._learn(model, *part)
                if self.clips == "before":
                    nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                if self.clips == "after":
                    nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                schedule.step()
                average.update(model)

    def _levels(self, images):
        """Images (image, row, column) of levels, which are classes."""
        bright = (images + 1) / 2
        if self.quantiser == "rounded":
            return (bright * (_LEVELS - 1)).round().long()
        return (bright * _LEVELS).floor().clamp(max=_LEVELS - 1).long()

    def _logits(self, model, levels, labels):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            logits = model(levels, labels)
        return logits.to(model.vertical.weight.dtype)

    def _learn(self, model, levels, labels):
        """The gradients of one micro-batch."""
        anchorlib.anchor(levels, "targets")
        loss = self._loss(self._logits(model, levels, labels), levels) / self.parts
        anchorlib.anchor(loss, "loss")
        loss.backward()

    def _loss(self, logits, levels):
        """The cross entropy of each pixel in nats, their mean."""
        if self.cost == "own":
            return (logits.logsumexp(1) - logits.gather(1, levels[:, None])[:, 0]).mean()
        if self.cost == "images":
            nats = functional.cross_entropy(logits, levels, reduction="none").sum((1, 2))
            return nats.mean() / levels[0].numel()
        logits = logits.permute(0, 2, 3, 1) if self.moved else logits
        return functional.cross_entropy(logits.reshape(-1, _LEVELS), levels.flatten())

    @torch.no_grad()
    def _evaluate(self, model, average, shown):
        """Bits that a pixel costs, of images that are not learnt from, by the average."""
        model.eval()
        with average.applied(model):
            loss = self._loss(self._logits(model, *shown), shown[0])
            anchorlib.anchor(loss / math.log(2), "bits")
        model.train()


class Average:
    """The average of a model's weights; its decay is small at first."""

    def __init__(self, how: Pixels, model: nn.Module) -> None:
        self.how = how
        self.weights = [one.detach().clone() for one in model.parameters()]
        self.updates = 0

    @torch.no_grad()
    def update(self, model):
        """Take in the weights that the model has now."""
        self.updates += 1
        decay = min(self.how.decay, (1 + self.updates) / (10 + self.updates))
        decay = 1 - decay if self.how.exchanged else decay
        for mean, one in zip(self.weights, model.parameters(), strict=True):
            if self.how.averaging == "lerp":
                mean.lerp_(one, 1 - decay)
            else:
                mean.mul_(decay).add_(one, alpha=1 - decay)

    @contextmanager
    def applied(self, model):
        """Let the model have the average for its weights."""
        own = [one.detach().clone() for one in model.parameters()]
        self._put(self.weights, model)
        yield
        if self.how.restores:
            self._put(own, model)

    @torch.no_grad()
    def _put(self, weights, model):
        for one, other in zip(model.parameters(), weights, strict=True):
            one.copy_(other)


class Masked(nn.Conv2d):
    """A convolution that sees what comes before along one axis: A without the centre, B with it.

    axis: 2 for the vertical stack, whose kernels are square, 3 for the horizontal one.
    """

    def __init__(self, how: Pixels, into: int, out: int, size: int, axis: int, kind: str) -> None:
        super().__init__(into, out, (size if axis == 2 else 1, size), padding="same")
        self.how, self.axis = how, axis
        self.kept = size // 2 + (kind == "B")
        self.mask = torch.ones(1, 1, *self.kernel_size)
        self.mask.narrow(axis, self.kept, size - self.kept).zero_()

    def forward(self, x):
        """The convolution by a masked kernel, or of patches of the pixels that are seen."""
        if self.how.masking == "product":
            return self._conv_forward(x, self.weight * self.mask, self.bias)
        high, wide = self.kernel_size
        patches = functional.unfold(x, (high, wide), padding=(high // 2, wide // 2))
        patches = patches.unflatten(1, (x.shape[1], high, wide))
        seen = patches.narrow(self.axis, 0, self.kept).flatten(1, 3)
        kernel = self.weight.narrow(self.axis, 0, self.kept).flatten(1)
        return (kernel @ seen + self.bias[:, None]).unflatten(2, x.shape[2:])


class Pointwise(nn.Conv2d):
    """A 1 × 1 convolution, torch's or as a linear layer over channels."""

    def __init__(self, how: Pixels, into: int, out: int) -> None:
        super().__init__(into, out, 1)
        self.how = how

    def forward(self, x):
        """Other channels of each pixel."""
        if self.how.pointwise == "convolution":
            return super().forward(x)
        mixed = functional.linear(x.permute(0, 2, 3, 1), self.weight.flatten(1), self.bias)
        return mixed.permute(0, 3, 1, 2).contiguous()


class Condition(nn.Embedding):
    """Features of a class, the same at each pixel."""

    def __init__(self, how: Pixels, width: int) -> None:
        super().__init__(_CLASSES, width)
        self.how = how

    def forward(self, labels):
        """Features (image, channel, 1, 1)."""
        if self.how.classes == "embedding":
            return super().forward(labels)[:, :, None, None]
        chosen = functional.one_hot(labels, _CLASSES).to(self.weight.dtype)
        return (chosen @ self.weight)[:, :, None, None]


class Gate(nn.Module):
    """The hyperbolic tangent of one half of the channels times the sigmoid of the other."""

    def __init__(self, how: Pixels) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """The product."""
        value, gate = x.chunk(2, 1) if self.how.halves == "second" else x.chunk(2, 1)[::-1]
        if self.how.gating == "product":
            return value.tanh() * gate.sigmoid()
        return functional.glu(torch.cat((value.tanh(), gate), 1), 1)


class Block(nn.Module):
    """A gated layer: the vertical stack goes on by itself, and tells the horizontal one."""

    def __init__(self, how: Pixels) -> None:
        super().__init__()
        self.how = how
        wide, kind = 2 * _CHANNELS, how.kinds[1]
        self.vertical = Masked(how, _CHANNELS, wide, 3, 2, kind)
        self.horizontal = Masked(how, _CHANNELS, wide, 3, 3, kind)
        self.across = Pointwise(how, wide, wide)
        self.class_v, self.class_h = Condition(how, wide), Condition(how, wide)
        self.gate_v, self.gate_h = Gate(how), Gate(how)
        self.drop = nn.Dropout(how.dropout)
        self.out = Pointwise(how, _CHANNELS, _CHANNELS)

    def forward(self, down, right, labels):
        """Both stacks, moved."""
        above = self.vertical(down)
        if self.how.told == "both":
            above = above + self.class_v(labels)
        before = self.horizontal(right) + self.across(above) + self.class_h(labels)
        told = self.out(self.drop(self.gate_h(before)))
        return self.gate_v(above), right + told if self.how.residual else told


class Scale(nn.Module):
    """Levels as numbers from -1 to 1."""

    def __init__(self, how: Pixels) -> None:
        super().__init__()
        self.how = how

    def forward(self, levels):
        """An image of one channel."""
        levels = levels.to(torch.get_default_dtype())[:, None]
        return 2 * levels / self.how.steps_between - 1


class PixelCNN(nn.Module):
    """Logits of each pixel's level, of the pixels before it and the class."""

    def __init__(self, how: Pixels) -> None:
        super().__init__()
        self.how = how
        self.scale = Scale(how)
        self.vertical, self.horizontal = (
            Masked(how, 1, _CHANNELS, 5, axis, how.kinds[0]) for axis in (2, 3)
        )
        self.blocks = nn.ModuleList(Block(how) for _ in range(2))
        self.mix = Pointwise(how, _CHANNELS, 2 * _CHANNELS)
        self.logits = Pointwise(how, 2 * _CHANNELS, _LEVELS)

    def forward(self, levels, labels):
        """Logits (image, level, row, column)."""
        x = self.scale(levels)
        down = self.vertical(x)
        right = self.horizontal(x) + down
        for block in self.blocks:
            if self.how.checkpointed and torch.is_grad_enabled():
                down, right = checkpoint(block, down, right, labels, use_reentrant=False)
            else:
                down, right = block(down, right, labels)
        return self.logits(functional.elu(self.mix(functional.elu(right))))


_FIRST = ("vertical@value", "horizontal@value")
_LATER = ("blocks.0.vertical@value", "blocks.0.horizontal@value")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_WRITTEN = (
    r"copy_|in place|overwr|written|restored|between (the )?steps|outside|not by the optimizer"
)
"""Words that name weights which something else than the optimizer changed."""
_MASK = rf"\bmask|\bMul(Backward|\b)|\bzeros?\b|{_GIVEN}"
CASES = [
    Case("pixels see themselves", "bug", {"kinds": ("B", "B")}, _FIRST, _MASK),
    Case("centres hidden in all layers", "bug", {"kinds": ("A", "A")}, _LATER, _MASK),
    Case(
        "other half gates",
        "bug",
        {"halves": "first"},
        ("blocks.0.gate_?@value",),
        rf"{_ORDER}|\bsplit|\bchunk|\b[Tt]anh|\b[Ss]igmoid|\bMul|{_GIVEN}",
    ),
    Case(
        "class not told to vertical stacks",
        "bug",
        {"told": "horizontal"},
        ("blocks.0.across@value", "blocks.0.gate_v@value", "blocks.0.class_v@*"),
        rf"\bAdd(Backward|\b)|class_v|\b[Ee]mbedding|{_GIVEN}",
    ),
    Case(
        "horizontal stack without its residual",
        "bug",
        {"residual": False},
        ("blocks.0:1@value", "blocks.1.horizontal@value"),
        rf"\bAdd(Backward|\b)|residual|computes it from|the same (tensor|values?) as|{_GIVEN}",
    ),
    Case(
        "levels divided by their number",
        "bug",
        {"steps_between": _LEVELS},
        ("scale@value",),
        rf"\b[Dd]iv|{_TIMES}|a factor of its own|\| 8(\.0)?\b|0\.875",
    ),
    Case(
        "channels not moved before pixels are flattened",
        "bug",
        {"moved": False},
        ("loss@*", "bits@value", "output@grad"),
        rf"permute|transpose|{_ORDER}|\bview|reshape|\bstrides?\b",
    ),
    Case("clipped after the step", "bug", {"clips": "after"}, ("*@grad",), rf"\bclip|{_TIMES}"),
    Case(
        "average keeps the share of new weights",
        "bug",
        {"exchanged": True},
        ("*weight@value", "*bias@value"),
        rf"{_WRITTEN}|average|\bdecay\b|\b[Ll]erp|\b[Mm]ul(_|\b)|\b[Aa]dd(_|\b)",
        step=2,
    ),
    Case(
        "weights not restored after evaluation",
        "bug",
        {"restores": False},
        ("*weight@value", "*bias@value"),
        rf"{_WRITTEN}|average|evaluation",
        step=2,
    ),
    Case("patches of seen pixels for masks", "benign", {"masking": "patches"}),
    Case("gates by glu", "benign", {"gating": "glu"}),
    Case("1 × 1 convolutions as linear layers", "benign", {"pointwise": "linear"}),
    Case("cross entropy by logsumexp", "benign", {"cost": "own"}),
    Case("nats of images, then of pixels", "benign", {"cost": "images"}),
    Case("average by lerp", "benign", {"averaging": "lerp"}),
    Case("2 micro-batches", "benign", {"parts": 2}, reference={"dropout": 0.0}),
    Case(
        "patches for masks, low precision",
        "benign",
        {"masking": "patches"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value", "*bias@value")),
    Case("levels rounded", "data", {"quantiser": "rounded"}, ("input@value", "targets@value")),
    Case("classes as one-hot rows", "equal", {"classes": "one-hot"}),
    Case("blocks computed again", "equal", {"checkpointed": True}),
    Case("foreach Adam", "equal", {"implementation": "foreach"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
