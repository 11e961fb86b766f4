"""An MLP-Mixer on digits: mixed images, soft labels, stochastic depth, and averaged weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import (
    UPDATES,
    Case,
    Start,
    Workload,
    clear,
    digits,
    warmed,
)
from tests.diagnosis.workloads.mixing import Mixer

_SHOWN = 12
"""Images that the averaged weights are evaluated on."""


@dataclass(frozen=True)
class Mixing(Workload):
    """Images are mixed in pairs; every second step the average of the weights is evaluated.

    mixes: what a layer along places mixes, "places" or by mistake "channels". pool: what is
        averaged before the head, "places" or "channels"; or the places' "sum", or their "product"
        with equal shares.
    gelu: "none" or "tanh" of its approximations, or by "erf". norm_eps: of the norms.
    gamma: what the factors of branches begin as. rates: how often branches of each block are left
        out. apart: whether each sample is left out by itself. grows: whether what is left grows.
    smoothing: of the labels. shares: whether labels have the "images'" shares, the "other" ones, or
        whether the "first" label has all.
    decay: of the average of the weights. averages: "after" an optimizer's step or "before" it.
    sleeps: whether the averaged model is in eval mode.
    warmup: steps of rising rate. length: steps of the cosine. all_decay: whether biases, norms and
        factors decay too.
    low: whether the nets run under autocast to bfloat16.
    patching, norming, along, path, keeps, blend, soft, average: other ways to write the same
        mathematics.
    """

    lr: float = 1e-2
    weight_decay: float = 0.1
    mixes: str = "places"
    pool: str = "places"
    gelu: str = "none"
    norm_eps: float = 1e-6
    gamma: float = 0.1
    rates: tuple[float, float] = (0.1, 0.3)
    apart: bool = True
    grows: bool = True
    smoothing: float = 0.1
    shares: str = "images"
    decay: float = 0.9
    averages: str = "after"
    sleeps: bool = True
    warmup: int = 2
    length: int = 8
    all_decay: bool = False
    low: bool = False
    patching: str = "torch"
    norming: str = "torch"
    along: str = "torch"
    path: str = "quotient"
    keeps: str = "all"
    blend: str = "sum"
    soft: str = "losses"
    average: str = "lerp"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model, average = Mixer(self, seed), Mixer(self, seed + 500)
            average.load_state_dict(model.state_dict())
            average.requires_grad_(False).train(not self.sleeps)
            optimizer = self.adam(self._groups(model))
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, self.length)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            session.watch(average, tensors="*", prefix="average")
            sharing = torch.Generator().manual_seed(19 + 1000 * seed)
            shown = [part[:_SHOWN] for part in digits()]
            for step, (images, labels) in enumerate(self.images(seed)):
                if step % 2 == 0:
                    self._evaluate(average, *shown)
                share = 0.55 + 0.4 * torch.rand((), generator=sharing).item()
                clear(optimizer, self)
                logits = self._told(model, self._mixed(images, share))
                loss = anchorlib.anchor(self._loss(logits, labels, share), "loss")
                loss.backward()
                if self.averages == "before":
                    self._follow(average, model)
                optimizer.step()
                schedule.step()
                if self.averages == "after":
                    self._follow(average, model)

    def _groups(self, model):
        """What decays, and what does not: biases, norms and factors."""
        small = self.weight_decay if self.all_decay else 0.0
        parameters = list(model.parameters())
        return [
            {"params": [one for one in parameters if one.ndim > 1]},
            {"params": [one for one in parameters if one.ndim < 2], "weight_decay": small},
        ]

    def _told(self, model, images):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            logits = model(images[:, None])
        return logits.to(images.dtype)

    @torch.no_grad()
    def _evaluate(self, average, images, labels):
        """The loss of the averaged weights."""
        loss = functional.cross_entropy(self._told(average, images), labels)
        anchorlib.anchor(loss, "eval_loss")

    def _mixed(self, images, share):
        """Each image with a share of the one at the other end of the batch."""
        if self.blend == "lerp":
            return images.flip(0).lerp(images, share)
        return share * images + (1 - share) * images.flip(0)

    def _loss(self, logits, labels, share):
        """The cross entropy with the labels of both images."""
        share = {"images": share, "other": 1 - share, "first": 1.0}[self.shares]
        if self.soft == "losses":
            own, other = (
                functional.cross_entropy(logits, wanted, label_smoothing=self.smoothing)
                for wanted in (labels, labels.flip(0))
            )
            return share * own + (1 - share) * other
        wanted = functional.one_hot(labels, 10).to(logits.dtype)
        wanted = wanted * (1 - self.smoothing) + self.smoothing / 10
        wanted = share * wanted + (1 - share) * wanted.flip(0)
        return -(wanted * logits.log_softmax(1)).sum(1).mean()

    @torch.no_grad()
    def _follow(self, average, model):
        """Move the averaged weights."""
        for own, one in zip(average.parameters(), model.parameters(), strict=True):
            if self.average == "lerp":
                own.lerp_(one, 1 - self.decay)
            else:
                own.mul_(self.decay).add_(one, alpha=1 - self.decay)


_LOSS = ("loss@*", "output@grad", "head@grad")
_BRANCH = ("blocks.0.path1@value",)
_AVERAGE = ("average.*weight@value", "average.*bias@value", "average.*gamma@value")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
CASES = [
    Case(
        "labels not smoothed",
        "bug",
        {"smoothing": 0.0},
        _LOSS,
        r"label_smoothing|smooth",
        step=0,
    ),
    Case(
        "labels' shares exchanged",
        "bug",
        {"shares": "other"},
        _LOSS,
        rf"\bMul|{_TIMES}|{_GIVEN}",
        step=0,
    ),
    Case(
        "labels not mixed",
        "bug",
        {"shares": "first"},
        _LOSS,
        rf"\bMul|{_TIMES}|{_GIVEN}",
        step=0,
    ),
    Case(
        "branches do not grow",
        "bug",
        {"grows": False},
        _BRANCH,
        rf"\bDiv|{_TIMES}",
        step=0,
    ),
    Case(
        "one draw for the whole batch",
        "bug",
        {"apart": False},
        ("blocks.*.path*@value",),
        rf"\bshapes?\b|broadcast|expand|\brand|\bmask|dropout|\bzeros?\b|{_GIVEN}|\bMul",
        step=0,
    ),
    Case(
        "rates of depth the other way round",
        "bug",
        {"rates": (0.3, 0.1)},
        _BRANCH,
        rf"\brates?\b|\bp\b|\bDiv|dropout|{_TIMES}|\bzeros?\b",
        step=0,
    ),
    Case(
        "channels mixed for places",
        "bug",
        {"mixes": "channels"},
        ("blocks.0.gather*@value", "average.blocks.0.gather*@value"),
        rf"transpose|permute|\bshapes?\b|{_ORDER}",
        step=0,
    ),
    Case(
        "pool over channels",
        "bug",
        {"pool": "channels"},
        ("head*@value", "average.head*@value", "output@value", "average.output@value"),
        rf"\bdim\b|\bMean|{_GIVEN}",
        step=0,
    ),
    Case(
        "factors of branches begin as one",
        "data",
        {"gamma": 1.0},
        ("blocks.*.scale*.gamma@value", "average.blocks.*.scale*.gamma@value"),
        step=0,
    ),
    Case(
        "eps of norms",
        "bug",
        {"norm_eps": 1e-2},
        ("blocks.0.norm1@value", "average.blocks.0.norm1@value"),
        r"\beps\b",
        step=0,
    ),
    Case(
        "gelu by tanh",
        "bug",
        {"gelu": "tanh"},
        ("blocks.0.act1@value", "average.blocks.0.act1@value"),
        r"approximate|\btanh\b|\bgelu",
        step=0,
    ),
    Case(
        "average that moves too slowly",
        "bug",
        {"decay": 0.99},
        _AVERAGE,
        r"\blerp|decay|momentum|average|\btimes\b|moves?\b",
        step=1,
    ),
    Case(
        "average moved before the weights",
        "bug",
        {"averages": "before"},
        _AVERAGE,
        r"\blerp|before|behind|late|earlier|average|moves?\b|\bsteps?\b.{0,30}\border",
        step=1,
    ),
    Case(
        "average in training mode",
        "bug",
        {"sleeps": False},
        ("average.blocks.*.path*@value",),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        step=0,
    ),
    Case("no warm-up", "bug", {"warmup": 0}, UPDATES, r"\blr\b", step=0),
    Case("cosine too short", "bug", {"length": 5}, UPDATES, r"\blr\b", step=3),
    Case("everything decays", "bug", {"all_decay": True}, UPDATES, r"weight_decay", step=0),
    Case(
        "second beta of 0.95", "bug", {"betas": (0.9, 0.95)}, UPDATES, r"\bbetas?\b|beta2", step=0
    ),
    Case("soft labels at once", "benign", {"soft": "labels"}),
    Case("images mixed by lerp", "benign", {"blend": "lerp"}),
    Case("places mixed by einsum", "benign", {"along": "einsum"}),
    Case("places mixed by a convolution", "benign", {"along": "convolution"}),
    Case("patches by a product", "benign", {"patching": "product"}),
    Case("branches times weights", "benign", {"path": "weights"}),
    Case("average by a sum", "benign", {"average": "sum"}),
    Case("pool by a product", "benign", {"pool": "product"}),
    Case("gelu by erf", "benign", {"gelu": "erf"}),
    Case("batch turned", "benign", {"turned": True}),
    Case(
        "places mixed by einsum, low precision",
        "benign",
        {"along": "einsum"},
        reference={"low": True},
    ),
    Case("own norms, low precision", "benign", {"norming": "own"}, reference={"low": True}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("layers along channels computed again", "equal", {"keeps": "edges"}),
    Case("pool by a sum", "equal", {"pool": "sum"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
