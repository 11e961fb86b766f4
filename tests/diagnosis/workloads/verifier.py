"""A verifier of digits: an angular margin between classes, and centres that draw digits near."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, digits
from tests.diagnosis.workloads.margins import PLACES, Verifier

_SHOWN = 12
"""Digits that the evaluation sees."""


@dataclass(frozen=True)
class Verification(Workload):
    """Digits are placed on a sphere, near the direction of their class and far from all others.

    norms: whether digits are brought to the sphere. axis: along which directions of classes have
        length 1. kind: what the margin is added to, the "angle" or the "cosine". margins: the
        classes that it is added for, the "right" one or "all". nears: whether it is subtracted.
        sine: how sines are found, "wrong" ones of the cosine itself. margin, sharp: its size, and
        the factor of cosines.
    hard: how much hard digits weigh, 0: as all others. prefers: the digits that weigh more, "hard"
        or "easy". waits: whether these weights are "detached". evens: whether they are divided
        by their mean.
    centred: whether centres are of "raw" or of "normed" places. pull: the weight of their loss.
        over: what it is a mean over, "digits" or also "numbers". restores: whether the centres'
        gradients are divided by that weight. forgets: whether they are zeroed. centre_lr: their
        rate.
    moves: whether the last batch norm has a bias that learns. bn_eps: of batch norms.
    all_decay: whether norms and slopes decay too. falls: the steps at which the rate falls.
    wakes: whether the model is in training mode again after an evaluation.
    low: whether the net runs under autocast to bfloat16.
    convolution, norming, act, unit, cosines, picks, distances, entropy, chances: other ways
        to write the same mathematics.
    """

    lr: float = 5e-2
    weight_decay: float = 5e-3
    norms: bool = True
    axis: int = 1
    kind: str = "angle"
    margins: str = "right"
    nears: bool = False
    sine: str = "root"
    margin: float = 0.3
    sharp: float = 12.0
    hard: float = 1.0
    prefers: str = "hard"
    waits: str = "detached"
    evens: bool = True
    centred: str = "raw"
    pull: float = 0.2
    over: str = "digits"
    restores: bool = True
    forgets: bool = True
    centre_lr: float = 0.5
    moves: bool = False
    bn_eps: float = 1e-5
    all_decay: bool = False
    falls: tuple[int, ...] = (2, 4)
    wakes: bool = True
    low: bool = False
    convolution: str = "torch"
    norming: str = "torch"
    act: str = "torch"
    unit: str = "torch"
    cosines: str = "linear"
    picks: str = "where"
    distances: str = "own"
    entropy: str = "torch"
    chances: str = "softmax"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Verifier(self, 10)
            optimizer = self.sgd(self._groups(model))
            centres = self.sgd(
                model.centres.parameters(), lr=self.centre_lr, momentum=0.0, weight_decay=0.0
            )
            schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, self.falls, 0.3)
            session.watch(model, tensors="*", optimizer=[optimizer, centres])
            torch.manual_seed(seed)
            shown = tuple(one[:_SHOWN] for one in digits())
            for step, (images, labels) in enumerate(self.images(seed)):
                if step % 2 == 0:
                    self._evaluate(model, *shown)
                clear(optimizer, self)
                if self.forgets:
                    clear(centres, self)
                self._learn(model, images, labels)
                self._restore(model)
                optimizer.step()
                centres.step()
                schedule.step()

    def _groups(self, model):
        """What decays, and what does not: norms, and slopes of rectifiers."""
        named = [
            one
            for name, one in model.named_parameters()
            if one.requires_grad and not name.startswith("centres")
        ]
        still = self.weight_decay if self.all_decay else 0.0
        return [
            {"params": [one for one in named if one.ndim > 1]},
            {"params": [one for one in named if one.ndim == 1], "weight_decay": still},
        ]

    @torch.no_grad()
    def _evaluate(self, model, images, labels):
        """How much nearer digits lie to their likes than to others."""
        model.eval()
        unit = functional.normalize(self._placed(model, images))
        alike = (labels[:, None] == labels).to(unit.dtype)
        near = unit @ unit.T
        told = (near * alike).sum() / alike.sum() - (near * (1 - alike)).sum() / (1 - alike).sum()
        anchorlib.anchor(told, "nearer")
        model.train(self.wakes)

    def _placed(self, model, images):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            placed = model(images[:, None])
        return anchorlib.anchor(placed.to(images.dtype), "placed")

    def _learn(self, model, images, labels):
        """The gradients of both losses."""
        placed = self._placed(model, images)
        logits, _ = model.sphere(placed, labels)
        costs = anchorlib.anchor(self._costs(logits, labels), "costs")
        named = (self._weights(logits, costs, labels) * costs).mean()
        far = model.centres(placed, labels)
        far = self.pull * (far.mean() if self.over == "digits" else far.mean() / PLACES) / 2
        loss = named + far
        for one, name in ((named, "margin_loss"), (far, "centre_loss"), (loss, "loss")):
            anchorlib.anchor(one, name)
        loss.backward()

    def _costs(self, logits, labels):
        """The cross entropy of each digit."""
        if self.entropy == "torch":
            return functional.cross_entropy(logits, labels, reduction="none")
        own = labels[:, None]
        return logits.logsumexp(1) - logits.gather(1, own)[:, 0]

    def _weights(self, logits, costs, labels):
        """How much each digit counts."""
        if self.chances == "softmax":
            right = logits.softmax(1).gather(1, labels[:, None])[:, 0]
        else:
            right = (-costs).exp()
        right = right.detach() if self.waits == "detached" else right
        weights = (1 - right if self.prefers == "hard" else right) ** self.hard
        weights = anchorlib.anchor(weights, "weights")
        return weights / weights.mean() if self.evens else weights

    @torch.no_grad()
    def _restore(self, model):
        """The gradients of the centres, as if their loss had no weight."""
        if self.restores and self.distances != "scaled":
            model.centres.weight.grad.div_(self.pull)


_LOGITS = ("sphere@value", "sphere:1@value")
_WEIGHTS = ("weights@*",)
_MARGIN = ("margin_loss@*", "costs@grad")
_CENTRE = ("centre_loss@*", "centres@*")
_CENTRES = ("centres.weight@grad", "centres.weight@updated", "centres.weight@delta")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "digits not on the sphere",
        "bug",
        {"norms": False},
        _LOGITS,
        rf"\bDiv|normali[sz]e|\bnorm\b|{_TIMES}|{_GIVEN}|a factor of its own",
    ),
    Case(
        "directions normed across classes",
        "bug",
        {"axis": 0},
        _LOGITS,
        rf"\bdim\b|\bDiv|{_GIVEN}",
    ),
    Case(
        "margin of the cosine",
        "bug",
        {"kind": "cosine"},
        _LOGITS,
        rf"\bSub(Backward|\b)|\bSqrt|\bMul|{_GIVEN}",
    ),
    Case(
        "margin for all classes", "bug", {"margins": "all"}, _LOGITS, rf"\b[Ww]here|\bmask|{_GIVEN}"
    ),
    Case(
        "margin subtracted",
        "bug",
        {"nears": True},
        _LOGITS,
        rf"\bMul|{_GIVEN}|{_TIMES}|other sign|margin",
    ),
    Case(
        "sine without a square",
        "bug",
        {"sine": "wrong"},
        _LOGITS,
        rf"\bPow|\b[Ss]quare|exponent|{_GIVEN}",
    ),
    Case("cosines not scaled", "bug", {"sharp": 1.0}, _LOGITS, rf"\bMul|{_TIMES}"),
    Case(
        "easy digits preferred",
        "bug",
        {"prefers": "easy"},
        _WEIGHTS,
        rf"\b[RS]ub|\bPow|{_GIVEN}|computes it from",
    ),
    Case(
        "weights attached",
        "bug",
        {"waits": "attached"},
        ("costs@grad", "sphere*@grad", "placed@grad", "weights@grad"),
        _DETACHED,
    ),
    Case(
        "weights not divided by their mean",
        "bug",
        {"evens": False},
        _MARGIN,
        rf"\bDiv|{_TIMES}|\bMean|{_GIVEN}",
    ),
    Case(
        "centres of normed digits",
        "bug",
        {"centred": "normed"},
        _CENTRE,
        rf"\bDiv|normali[sz]e|\bnorm\b|{_GIVEN}|computes it from",
    ),
    Case(
        "centre loss averaged over numbers too",
        "bug",
        {"over": "numbers"},
        _CENTRE,
        rf"{_TIMES}|\bMean|\bDiv",
    ),
    Case(
        "centres' gradients keep the weight of the loss",
        "bug",
        {"restores": False},
        _CENTRES,
        rf"{_TIMES}|\bdiv|\bscale",
    ),
    Case(
        "centres' gradients not zeroed",
        "bug",
        {"forgets": False},
        _CENTRES,
        r"zero_grad|zeroed|accumulat|earlier|previous|step before|gradients? of .{0,30}step",
        step=1,
    ),
    Case(
        "centres as slow as the rest",
        "bug",
        {"centre_lr": 0.05},
        ("centres.weight@updated", "centres.weight@delta"),
        r"\blr\b",
    ),
    Case("eps of batch norms", "bug", {"bn_eps": 1e-2}, ("net.norms.0@value",), r"\beps\b"),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("net.norms.0@value", "net.norms.0.running*@*"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
    ),
    Case("rate falls a step late", "bug", {"falls": (3, 5)}, UPDATES, r"\blr\b", step=2),
    Case("cosine of the summed angle", "benign", {"sine": "angle"}),
    Case("sine by factors", "benign", {"sine": "factors"}),
    Case("lengths written out", "benign", {"unit": "own"}),
    Case(
        "cosines by einsum, margin by products", "benign", {"cosines": "einsum", "picks": "product"}
    ),
    Case("distances from a table", "benign", {"distances": "table"}),
    Case("centres scaled inside", "benign", {"distances": "scaled"}),
    Case("chances from costs", "benign", {"chances": "costs"}),
    Case("cross entropy written out", "benign", {"entropy": "own"}),
    Case("own batch norm", "benign", {"norming": "own"}),
    Case("digits turned", "benign", {"turned": True}),
    Case(
        "convolutions of patches, low precision",
        "benign",
        {"convolution": "patches"},
        reference={"low": True},
    ),
    Case("slopes as differences, low precision", "benign", {"act": "own"}, reference={"low": True}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("margin scattered", "equal", {"picks": "scatter"}),
    Case("foreach optimizers", "equal", {"implementation": "foreach"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
