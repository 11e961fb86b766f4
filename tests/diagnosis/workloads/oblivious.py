"""An ensemble of soft oblivious decision trees that tells digits by how bright their parts are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import (
    UPDATES,
    Case,
    Start,
    Workload,
    clear,
    digits,
    renamed,
    warmed,
)
from tests.diagnosis.workloads.trees import Forest

_KNOWN = 64
"""Digits that features' means are taken over; half of them are those of the evaluation."""


@dataclass(frozen=True)
class Oblivious(Workload):
    """Two layers of trees, whose choices of features grow colder.

    heat, cools: the temperature of choices, and its factor from step to step. heats: whether logits
        are "divided" by it or multiplied, "times". over: what choices are among, "features" or
        "trees". halves: whether entmax halves its logits.
    adds: whether thresholds are added. widens: whether margins are multiplied by widths. sharpness:
        of splits. begins: the lowest bit of a leaf's code, "zero" or "one".
    dropout: of what layers are given. detaches: whether later layers' gradients end at what earlier
        ones told. votes: whether trees' answers are a "mean" or a "sum". softmax: whether the
        forest tells chances.
    smoothing: of labels. balance: the weight of the loss of splits that send all samples one way.
        unbalances: whether it has the other sign. among: what its shares are means over, "samples"
        or "trees".
    clip: of gradients. clips: "before" the optimizer's step or "after" it. all_decay: whether all
        parameters decay, not responses alone. warmup: steps of rising rate.
    wakes: whether the forest is in training mode again after an evaluation.
    low: whether the forest runs under autocast to bfloat16.
    logs: whether accuracies are told as numbers. spare: whether there is a norm that is not used.
    names: other names of submodules.
    choice, leaves, balancing: other ways to write the same mathematics.
    """

    batch: int = 32
    lr: float = 2e-2
    betas: tuple[float, float] = (0.95, 0.998)
    weight_decay: float = 0.1
    heat: float = 1.5
    cools: float = 0.8
    heats: str = "divided"
    over: str = "features"
    halves: bool = True
    adds: bool = False
    widens: bool = False
    sharpness: float = 2.0
    begins: str = "zero"
    dropout: float = 0.1
    detaches: bool = False
    votes: str = "mean"
    softmax: bool = False
    smoothing: float = 0.1
    balance: float = 0.1
    unbalances: bool = False
    among: str = "samples"
    clip: float = 0.02
    clips: str = "before"
    all_decay: bool = False
    warmup: int = 2
    wakes: bool = True
    low: bool = False
    logs: bool = False
    spare: bool = False
    names: tuple[tuple[str, str], ...] = ()
    choice: str = "own"
    leaves: str = "product"
    balancing: str = "logs"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            images, names = digits()
            known, names = _features(images[:_KNOWN]), names[: _KNOWN // 2]
            mean, spread = known.mean(0), known.std(0) + 1e-2
            known = (known - mean) / spread
            model = Forest(self, known.shape[1])
            renamed(model, dict(self.names))
            optimizer = self.adam(self._groups(model))
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 8)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            right = []
            for step, (images, labels) in enumerate(self.images(seed)):
                model.heat(max(self.heat * self.cools**step, 0.1))
                features = (_features(images) - mean) / spread
                clear(optimizer, self)
                logits = self._learn(model, features, labels)
                if self.logs:
                    right.append((logits.argmax(1) == labels).float().mean().item())
                if self.clips == "before":
                    nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                if self.clips == "after":
                    nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                schedule.step()
                if step % 2:
                    self._evaluate(model, known[: len(names)], names)

    def _groups(self, model):
        """What decays, and what does not: all but the responses."""
        named = [(name.endswith("response"), one) for name, one in model.named_parameters()]
        still = self.weight_decay if self.all_decay else 0.0
        return [
            {
                "params": [one for leaf, one in named if leaf is decays],
                "weight_decay": self.weight_decay if decays else still,
            }
            for decays in (True, False)
        ]

    def _told(self, model, features):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = model(features)
        return [one.to(features.dtype) for one in told]

    def _learn(self, model, features, labels):
        """The gradients of a batch."""
        logits, right = self._told(model, features)
        named = functional.cross_entropy(logits, labels, label_smoothing=self.smoothing)
        balance = self.balance * self._unbalanced(right)
        balance = -balance if self.unbalances else balance
        loss = named + balance
        for one, name in ((named, "class_loss"), (balance, "balance_loss"), (loss, "loss")):
            anchorlib.anchor(one, name)
        loss.backward()
        return logits.detach()

    def _unbalanced(self, right):
        """By how much splits send all samples one way: the cross entropy of a half."""
        shares = right.mean(0 if self.among == "samples" else 1)
        if self.balancing == "torch":
            return functional.binary_cross_entropy(shares, torch.full_like(shares, 0.5))
        return -(0.5 * shares.log() + 0.5 * (1 - shares).log()).mean()

    @torch.no_grad()
    def _evaluate(self, model, features, labels):
        """The loss of digits that are not learnt from."""
        model.eval()
        logits, _ = self._told(model, features)
        anchorlib.anchor(functional.cross_entropy(logits, labels), "eval_loss")
        if self.wakes:
            model.train()


def _features(images):
    """How bright each 2 × 2 pixels are (sample, 16)."""
    return functional.avg_pool2d(images[:, None], 2).flatten(1)


_CHOICE = ("layers.0.choice@value",)
_MARGINS = ("margins.0@value",)
_BALANCE = ("balance_loss@*", "loss@*", "output:1@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "choices among trees",
        "bug",
        {"over": "trees"},
        _CHOICE,
        rf"\bdim\b|\baxis|transpose|permute|{_ORDER}",
        step=0,
    ),
    Case(
        "choices do not cool",
        "bug",
        {"cools": 1.0},
        _CHOICE,
        rf"\bDiv|\bEntmax|{_GIVEN}|{_TIMES}",
        step=1,
    ),
    Case(
        "entmax without halving",
        "bug",
        {"halves": False},
        _CHOICE,
        rf"\bEntmax|\bDiv|{_GIVEN}",
        step=0,
    ),
    Case(
        "thresholds added",
        "bug",
        {"adds": True},
        _MARGINS,
        rf"\bSub(Backward|\b)|\bAdd(Backward|\b)|other sign|\balpha\b|{_GIVEN}",
        step=0,
    ),
    Case(
        "margins times widths",
        "bug",
        {"widens": True},
        _MARGINS,
        rf"\bNeg|\bExp(Backward|\b)|other sign|{_GIVEN}",
        step=0,
    ),
    Case(
        "codes begin at one",
        "bug",
        {"begins": "one"},
        ("leaves.0@value",),
        rf"\b[Ww]here|condition|\bcodes\b|{_GIVEN}|{_ORDER}",
        step=0,
    ),
    Case(
        "votes summed",
        "bug",
        {"votes": "sum"},
        ("output@value",),
        rf"\bMean|\bSum(Backward|\b)|{_TIMES}",
        step=0,
    ),
    Case(
        "chances for logits",
        "bug",
        {"softmax": True},
        ("output@value",),
        r"softmax",
        step=0,
    ),
    Case(
        "answers appended detached",
        "bug",
        {"detaches": True},
        ("layers.0@grad", "drops.1@grad"),
        rf"{_DETACHED}|\bCat\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}\bCat",
        step=0,
    ),
    Case(
        "balance of the other sign",
        "bug",
        {"unbalances": True},
        _BALANCE,
        rf"\bNeg|other sign|{_TIMES}|\bSub(Backward|\b)",
        step=0,
    ),
    Case(
        "balance among trees",
        "bug",
        {"among": "trees"},
        _BALANCE,
        r"\bdim\b|\bMean|\bshapes?\b|\bsizes?\b",
        step=0,
    ),
    Case(
        "gradients clipped too late",
        "bug",
        {"clips": "after"},
        ("*@grad",),
        rf"\bclip|{_TIMES}",
        step=0,
    ),
    Case(
        "betas of the optimizer's default",
        "bug",
        {"betas": (0.9, 0.999)},
        UPDATES,
        r"\bbetas?\b",
        step=0,
    ),
    Case("everything decays", "bug", {"all_decay": True}, UPDATES, r"weight_decay", step=0),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("drops.0@value",),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        step=2,
    ),
    Case("entmax by its formula", "benign", {"choice": "formula"}),
    Case("leaves by logarithms", "benign", {"leaves": "logs"}),
    Case("balance by torch", "benign", {"balancing": "torch"}),
    Case("samples turned", "benign", {"turned": True}, reference={"dropout": 0.0}),
    Case(
        "leaves level by level, low precision",
        "benign",
        {"leaves": "levels"},
        reference={"low": True},
    ),
    Case(
        "other init",
        "data",
        {"init": 1},
        ("layers.*.logits@value", "layers.*.thresholds@value", "layers.*.response@value"),
    ),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("norm that is not used", "equal", {"spare": True}),
    Case("accuracy told as a number", "equal", {"logs": True}),
    Case("layers renamed", "equal", {"names": (("0", "first"), ("1", "second"))}),
    Case("died", "incomplete", {"ends_at": 3}),
]
