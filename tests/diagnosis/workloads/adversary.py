"""A net that names digits, and whose features should not tell which of two domains they are of."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, digits, renamed

_CHANNELS = (8, 12)
_HIDDEN = 24
_WHOLE = 10
"""Steps after which a training would be over: all schedules are made for these."""
_SHOWN = 24
"""Images of the other domain that the evaluation sees."""


class Conv(nn.Conv2d):
    """A 3 × 3 convolution, torch's or as a product with patches."""

    def __init__(self, how, into: int, out: int) -> None:
        super().__init__(into, out, 3, padding=1, bias=False)
        self.how = how

    def forward(self, x):
        """The convolution."""
        if self.how.convolution == "torch":
            return super().forward(x)
        patches = functional.unfold(x, 3, padding=1)
        return (self.weight.flatten(1) @ patches).unflatten(2, x.shape[2:])


class Norm(nn.BatchNorm2d):
    """A batch norm, torch's or by its formula."""

    def __init__(self, how, channels: int) -> None:
        super().__init__(channels)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "torch" or not self.training:
            return super().forward(x)
        wide = x.to(self.weight.dtype)
        spread, mean = torch.var_mean(wide, (0, 2, 3), correction=0)
        count = x.numel() // x.shape[1]
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(spread * (count / (count - 1)), self.momentum)
        factor = self.weight * (spread + self.eps).rsqrt()
        shift = self.bias - mean * factor
        return (wide * factor[:, None, None] + shift[:, None, None]).to(x.dtype)


class _Reversal(torch.autograd.Function):
    """Nothing in forward; the gradient times a negative number in backward."""

    @staticmethod
    def forward(ctx, x, weight, sign):
        ctx.weight, ctx.sign = weight, sign
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return ctx.sign * ctx.weight * grad, None, None


class Reverse(nn.Module):
    """A gradient reversal, as a function of its own or by a detached sum."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x, weight: float):
        """x itself, in value."""
        if self.how.reversal == "sum":
            return ((1 + weight) * x).detach() - weight * x
        return _Reversal.apply(x, weight, -1 if self.how.reverses else 1)


class Features(nn.Module):
    """Two convolutions, each with a norm, an activation and a pool."""

    def __init__(self, how) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            Conv(how, into, out) for into, out in zip((3, *_CHANNELS), _CHANNELS, strict=False)
        )
        self.norms = nn.ModuleList(
            Norm(how, count) if how.norm == "batch" else nn.GroupNorm(4, count)
            for count in _CHANNELS
        )
        self.act, self.pool, self.drop = nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(how.dropout)

    def forward(self, x):
        """What is seen in images (sample, 3, 8, 8), flat."""
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = self.pool(self.act(norm(conv(x))))
        return self.drop(x).flatten(1)


class Net(nn.Module):
    """Features, what classifies them, and what tells their domains apart."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.features, self.reverse = Features(how), Reverse(how)
        wide = 4 * _CHANNELS[1]
        self.classifier = nn.Sequential(
            nn.Linear(wide, _HIDDEN), nn.ReLU(), nn.Dropout(how.dropout), nn.Linear(_HIDDEN, 10)
        )
        self.domain = nn.Sequential(nn.Linear(wide, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, 1))
        if how.spare:
            self.spare = nn.BatchNorm1d(wide)

    def forward(self, x, weight: float = 0.0):
        """Logits of classes, and of being of the other domain."""
        seen = self.features(x)
        named = self.classifier(seen)
        told = self.domain(self.reverse(seen if self.how.flows else seen.detach(), weight))
        return named.softmax(1) if self.how.softmax else named, told[:, 0]


@dataclass(frozen=True)
class Adversary(Workload):
    """Digits have labels, blends of digits with colours have none: the source and the target.

    reverses: whether the gradient of the domains is reversed. reversed_by: what it is multiplied
        by, a "rising" weight or one that "stays" at 1. late: steps that the weight lags behind.
        flows: whether that gradient reaches the features.
    softmax: whether the net returns probabilities. dropout: its share. norm: "batch" or "group".
    other: the domain's label of the target. sigmoid: whether the loss of domains, which takes
        logits, is given chances. over: that loss is a "mean" or a "sum". judged: the domain logits
        that are taken for the target's: the "target"'s or the "source"'s.
    unsure: the factor of the entropy. axis: of the softmax in it.
    fast: the factor of the heads' learning rate. momentum: of SGD. forgets: whether gradients are
        cleared. wakes: whether the model is in training mode again after an evaluation.
    calls: domains are seen one "each" or at "once". spare: whether a module is there unused.
    named: what layers are called, in place of their names.
    low: whether the net runs under autocast to bfloat16.
    convolution, norming, layout, reversal, domains, entropy, classes, backward: other ways to write
        the same mathematics.
    """

    lr: float = 0.02
    weight_decay: float = 1e-3
    reverses: bool = True
    reversed_by: str = "rising"
    late: int = 0
    flows: bool = True
    softmax: bool = False
    dropout: float = 0.2
    norm: str = "batch"
    other: float = 1.0
    sigmoid: bool = False
    over: str = "mean"
    judged: str = "target"
    unsure: float = 0.1
    axis: int = 1
    fast: float = 5.0
    momentum: float = 0.9
    forgets: bool = True
    wakes: bool = True
    calls: str = "each"
    spare: bool = False
    named: tuple[tuple[str, str], ...] = ()
    low: bool = False
    convolution: str = "torch"
    norming: str = "torch"
    layout: torch.memory_format = torch.contiguous_format
    reversal: str = "function"
    domains: str = "torch"
    entropy: str = "own"
    classes: str = "torch"
    backward: str = "once"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self).to(memory_format=self.layout)
            renamed(model, dict(self.named))
            optimizer = self._optimizer(model)
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: (1 + 10 * step / _WHOLE) ** -0.75
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            dealing = torch.Generator().manual_seed(31 + 1000 * seed + self.order)
            shown, answers = digits()[0][:_SHOWN], digits()[1][:_SHOWN]
            shown = self._target(shown, torch.Generator().manual_seed(5))
            for step, (images, labels) in enumerate(self.images(seed)):
                source, target = self._domains(images, dealing)
                if self.forgets:
                    clear(optimizer, self)
                self._learn(model, source, labels, target, self._weight(step))
                optimizer.step()
                schedule.step()
                if step % 2 == 1:
                    self._evaluate(model, shown, answers)

    def _optimizer(self, model):
        """SGD with momentum, by which the heads learn faster than the features."""
        groups = [
            {"params": list(part.parameters()), "lr": self.lr * factor}
            for part, factor in (
                (model.features, 1.0),
                (model.classifier, self.fast),
                (model.domain, self.fast),
            )
        ]
        return torch.optim.SGD(
            groups,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            foreach=self.implementation == "foreach",
            fused=self.implementation == "fused",
        )

    def _weight(self, step):
        """The factor of a reversed gradient, which rises from 0 to 1."""
        if self.reversed_by == "stays":
            return 1.0
        return 2 / (1 + math.exp(-10 * max(step - self.late, 0) / _WHOLE)) - 1

    def _domains(self, images, dealing):
        """Images of the source, with some noise, and as many of the target."""
        chosen = torch.randint(0, len(digits()[0]), (len(images),), generator=dealing)
        noise = 0.05 * torch.randn(len(images), 3, 8, 8, generator=dealing)
        target = self._target(digits()[0][chosen], dealing)
        if self.turned:
            noise, target = noise.flip(0), target.flip(0)
        return images[:, None] + noise, target

    def _target(self, images, dealing):
        """Digits, as differences from patches of other colours."""
        coarse = torch.rand(len(images), 3, 3, 3, generator=dealing)
        patches = functional.interpolate(coarse, (8, 8), mode="bilinear")
        return 2 * ((images[:, None] + 1) / 2 - patches).abs() - 1

    @torch.no_grad()
    def _evaluate(self, model, shown, answers):
        """The loss of images of the target, whose labels are not learnt from."""
        model.eval()
        (named, _), _ = self._told(model, shown, None, 0.0)
        anchorlib.anchor(functional.cross_entropy(named, answers), "eval_loss")
        model.train(self.wakes)

    def _told(self, model, source, target, weight):
        """The logits of each domain."""
        given = [one for one in (source, target) if one is not None]
        if self.calls == "once" and len(given) == 2:
            given = [torch.cat(given)]
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = [model(one.contiguous(memory_format=self.layout), weight) for one in given]
        told = [[part.to(source.dtype) for part in parts] for parts in told]
        if self.calls == "once" and target is not None:
            return list(zip(*(part.chunk(2) for part in told[0]), strict=True))
        return told if target is not None else [told[0], None]

    def _learn(self, model, source, labels, target, weight):
        """The gradients of a batch."""
        (named, here), (unnamed, there) = self._told(model, source, target, weight)
        there = there if self.judged == "target" else here
        losses = {
            "class_loss": self._named(named, labels),
            "domain_loss": self._apart(here, there),
            "entropy_loss": self.unsure * self._entropy(unnamed),
        }
        loss = sum(losses.values())
        for name, one in (*losses.items(), ("loss", loss)):
            anchorlib.anchor(one, name)
        if self.backward == "once":
            loss.backward()
        else:
            for one in losses.values():
                one.backward(retain_graph=True)

    def _named(self, logits, labels):
        """The cross-entropy, with smoothed labels."""
        if self.classes == "torch":
            return functional.cross_entropy(logits, labels, label_smoothing=0.1)
        wanted = functional.one_hot(labels, 10).to(logits.dtype)
        return -((0.9 * wanted + 0.01) * logits.log_softmax(1)).sum(1).mean()

    def _apart(self, here, there):
        """The loss of telling the domains apart."""
        if self.domains == "softplus":
            return (functional.softplus(here).mean() + functional.softplus(-there).mean()) / 2
        if self.sigmoid:
            here, there = here.sigmoid(), there.sigmoid()
        missed = [
            functional.binary_cross_entropy_with_logits(
                logits, torch.full_like(logits, label), reduction=self.over
            )
            for logits, label in ((here, 0.0), (there, self.other))
        ]
        return (missed[0] + missed[1]) / 2

    def _entropy(self, logits):
        """How unsure the net is of the target's classes."""
        if self.entropy == "torch":
            return torch.distributions.Categorical(logits=logits).entropy().mean()
        chances, told = logits.softmax(self.axis), logits.log_softmax(self.axis)
        return -(chances * told).sum(1).mean()


_SEEN = ("features@grad", "features.drop@grad")
_NAMED = ("class_loss@*", "loss@*", "output@grad", "classifier@grad", "classifier.3@grad")
_APART = ("domain_loss@*", "loss@*", "output:1@grad", "domain@grad", "domain.2@grad")
_UNSURE = ("entropy_loss@*", "loss@*", "output@grad", "classifier@grad", "classifier.3@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "gradient not reversed",
        "bug",
        {"reverses": False},
        _SEEN,
        rf"other sign|\bNeg|reversal|{_TIMES}",
    ),
    Case(
        "weight of the reversal stays",
        "bug",
        {"reversed_by": "stays"},
        _SEEN,
        rf"reversal|{_TIMES}",
        step=0,
    ),
    Case(
        "weight of the reversal lags",
        "bug",
        {"late": 1},
        _SEEN,
        rf"reversal|{_TIMES}",
        step=1,
    ),
    Case(
        "features detached from the domains",
        "bug",
        {"flows": False},
        (*_SEEN, "reverse@grad"),
        rf"{_DETACHED}|reversal\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}reversal",
    ),
    Case("probabilities for logits", "bug", {"softmax": True}, ("output@value",), r"softmax"),
    Case(
        "both domains named the source",
        "bug",
        {"other": 0.0},
        _APART,
        rf"\bfull|\bones|\bzeros|\bfill|{_GIVEN}",
        step=0,
    ),
    Case("a sigmoid before its loss", "bug", {"sigmoid": True}, _APART, r"\bsigmoid", step=0),
    Case(
        "domains' loss summed",
        "bug",
        {"over": "sum"},
        _APART,
        rf"\bMean|\bSum(Backward|\b)|reduction|{_TIMES}",
        step=0,
    ),
    Case(
        "source judged twice",
        "bug",
        {"judged": "source"},
        _APART,
        rf"computes it from|another call|{_GIVEN}",
        step=0,
    ),
    Case(
        "entropy grows",
        "bug",
        {"unsure": -0.1},
        _UNSURE,
        rf"other sign|\bNeg|\bMul|{_TIMES}",
        step=0,
    ),
    Case("entropy over the batch", "bug", {"axis": 0}, _UNSURE, r"\bdim\b|\baxis", step=0),
    Case(
        "gradients not cleared",
        "bug",
        {"forgets": False},
        ("*weight@*grad", "*bias@*grad"),
        r"zero_grad|accumulat|not cleared|left over|(step|gradients?) before|earlier",
        step=1,
    ),
    Case(
        "not in training mode again",
        "bug",
        {"wakes": False},
        ("features.norms.0@value", "features.norms.0.running*@value"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        step=2,
    ),
    Case("momentum of a half", "bug", {"momentum": 0.5}, UPDATES, r"momentum", step=1),
    Case("heads as slow as features", "bug", {"fast": 1.0}, UPDATES, r"\blr\b", step=0),
    Case("reversal by a detached sum", "benign", {"reversal": "sum"}),
    Case("a backward for each loss", "benign", {"backward": "each"}),
    Case("domains' loss by softplus", "benign", {"domains": "softplus"}),
    Case("smoothed labels by hand", "benign", {"classes": "own"}),
    Case("entropy by torch", "benign", {"entropy": "torch"}),
    Case("own batch norm", "benign", {"norming": "own"}),
    Case("convolutions of patches", "benign", {"convolution": "patches"}),
    Case("batches turned", "benign", {"turned": True}, reference={"dropout": 0.0}),
    Case(
        "both domains at once",
        "benign",
        {"calls": "once"},
        reference={"dropout": 0.0, "norm": "group"},
    ),
    Case("fused SGD", "benign", {"implementation": "fused"}),
    Case(
        "convolutions of patches, low precision",
        "benign",
        {"convolution": "patches"},
        reference={"low": True},
    ),
    Case(
        "channels last, low precision",
        "benign",
        {"layout": torch.channels_last},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("a module unused", "equal", {"spare": True}),
    Case("layers renamed", "equal", {"named": (("0", "first"), ("1", "second"), ("3", "last"))}),
    Case("died", "incomplete", {"ends_at": 4}),
]
