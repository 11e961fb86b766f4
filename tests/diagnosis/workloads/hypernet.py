"""A hypernetwork of four digit tasks: it tells the weights of a small net for each of them."""

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
    cut,
    digits,
    warmed,
)
from tests.diagnosis.workloads.lars import Lars
from tests.diagnosis.workloads.targets import CLASSES, TASKS, Targets

_SHOWN = 16
"""Images that the evaluation sees."""


@dataclass(frozen=True)
class Hypernet(Workload):
    """Tasks name digits otherwise, and see them plain, turned, dark for bright, or mirrored.

    shift: by how many tasks codes are off. ranked: whether products of low rank are made smaller
        by the rank. standing: what weights are standardised over, "inputs", "outputs" or "both".
        centres: whether their means are taken away. eps: of their spread.
    groups: of the norm. film_at: whether modulation stands "behind" the norm or "before" it.
        ones: whether factors are added to one. halves: which half holds them, "factor first" or
        "factor last". cuts: whether modulation is told from what is detached.
    dropout: of the trunk. sleeps: whether it rests in evaluations. spread: of the first weights
        that tell weights.
    smoothing: of labels. mean: losses over "all" samples, or summed over "tasks". heavy: the
        weight of the penalty of the last weights.
    momentum, trust: of LARS. flats: whether biases are excluded from trust and decay. rated:
        whether rates are taken "after" momentum or "before" it. pull, every: of Lookahead.
        slow: its weights, a "copy" or "the same".
    clears: whether gradients are forgotten at each step. warmup: steps of rising rate.
    parts: micro-batches a step. low: whether the net runs under autocast to bfloat16.
    codes, keeps, standard, convolution, film, hidden, losses, moving, lengths, meeting:
        other ways to write the same mathematics.
    """

    batch: int = 32
    lr: float = 0.5
    weight_decay: float = 0.02
    shift: int = 0
    ranked: bool = True
    standing: str = "inputs"
    centres: bool = True
    eps: float = 1e-5
    groups: int = 2
    film_at: str = "behind"
    ones: bool = True
    halves: str = "factor first"
    cuts: bool = False
    dropout: float = 0.1
    sleeps: bool = True
    spread: float = 0.5
    smoothing: float = 0.1
    mean: str = "all"
    heavy: float = 0.02
    momentum: float = 0.9
    trust: float = 0.05
    flats: bool = True
    rated: str = "after"
    pull: float = 0.5
    every: int = 2
    slow: str = "copy"
    clears: bool = True
    warmup: int = 2
    parts: int = 1
    low: bool = False
    codes: str = "torch"
    keeps: str = "all"
    standard: str = "plain"
    convolution: str = "apart"
    film: str = "plain"
    hidden: str = "product"
    losses: str = "torch"
    moving: str = "at once"
    lengths: str = "norm"
    meeting: str = "lerp"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Targets(self)
            optimizer = Lars(self._groups(model), self)
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 8)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            shown = self._tasks(*(one[:_SHOWN] for one in digits()))
            for step, batch in enumerate(self.images(seed)):
                if step % 2:
                    self._evaluate(model, shown)
                if self.clears:
                    clear(optimizer, self)
                for images, labels in self._parts(*self._tasks(*batch)):
                    self._back(self._losses(model, images, labels))
                optimizer.step()
                schedule.step()

    def _groups(self, model):
        """Weights, and biases, which have neither trust nor decay."""
        parameters = list(model.parameters())
        flat = {"trusts": False, "weight_decay": 0.0, "lr": self.lr / 10} if self.flats else {}
        return [
            {"params": [one for one in parameters if one.ndim > 1]},
            {"params": [one for one in parameters if one.ndim < 2], **flat},
        ]

    def _tasks(self, images, labels):
        """Images (task, sample, 8, 8) and their names in each task."""
        if self.turned:  # the same images for each task, in the opposite order
            images, labels = images.flip(0), labels.flip(0)
        images, labels = images.unflatten(0, (TASKS, -1)), labels.unflatten(0, (TASKS, -1))
        seen = [images[0], images[1].rot90(1, (1, 2)), -images[2], images[3].transpose(1, 2)]
        named = [labels[0] % 5, labels[1] // 2, (3 * labels[2] + 1) % 5, labels[3] % 5]
        images, labels = torch.stack(seen), torch.stack(named)
        return (images.flip(1), labels.flip(1)) if self.turned else (images, labels)

    def _parts(self, images, labels):
        """Micro-batches that hold samples of all tasks."""
        parts = cut(self.parts, images.transpose(0, 1), labels.T)
        return [(one.transpose(0, 1), names.T) for one, names in parts]

    def _told(self, model, images):
        """Logits and the last weights."""
        tasks = (torch.arange(TASKS) + self.shift) % TASKS
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            logits, last = model(images, tasks)
        return logits.to(images.dtype), last.to(images.dtype)

    @torch.no_grad()
    def _evaluate(self, model, shown):
        """The loss of images that are not learnt from."""
        model.train(not self.sleeps)
        anchorlib.anchor(sum(self._losses(model, *shown).values()), "eval_loss")
        model.train()

    def _losses(self, model, images, labels):
        """The loss of names, and the penalty of the last weights."""
        logits, last = self._told(model, images)
        return {"name_loss": self._named(logits, labels), "penalty": self._penalty(last)}

    def _named(self, logits, labels):
        """The cross entropy of smoothed names."""
        if self.mean == "tasks":
            return sum(self._entropy(*one) for one in zip(logits, labels, strict=True))
        return self._entropy(logits.flatten(0, 1), labels.flatten())

    def _entropy(self, logits, labels):
        if self.losses != "own":
            return functional.cross_entropy(logits, labels, label_smoothing=self.smoothing)
        logs = logits - logits.logsumexp(1, keepdim=True)
        wanted = functional.one_hot(labels, CLASSES) * (1 - self.smoothing)
        return -((wanted + self.smoothing / CLASSES) * logs).sum() / len(logits)

    def _penalty(self, last):
        """The mean over tasks of the squares of the last weights."""
        return self.heavy * last.square().sum((1, 2)).mean()

    def _back(self, losses):
        """All losses' gradients."""
        losses = {name: loss / self.parts for name, loss in losses.items()}
        loss = sum(losses.values())
        for name, one in (*losses.items(), ("loss", loss)):
            anchorlib.anchor(one, name)
        loss.backward()


_STANDARD = ("standard@value",)
_FILM = ("film@value",)
_NAMES = ("name_loss@*", "output@grad", "output.0@grad")
_TIMES = r"\btimes\b|\bfactor\b|\bscaled?\b"
_ORDER = r"\border\b|arranged|\bplaces?\b|swap|exchang"
CASES = [
    Case(
        "codes of the next task",
        "data",
        {"shift": 1},
        ("codes@value", "input:1@value"),
    ),
    Case(
        "low rank not made smaller",
        "bug",
        {"ranked": False},
        ("kernels*@value", "factors*@value"),
        rf"\b[Dd]iv|{_TIMES}|\brank\b",
    ),
    Case(
        "weights standardised over outputs",
        "bug",
        {"standing": "outputs"},
        _STANDARD,
        r"\bdim\b|\bax[ie]s\b|\b[Vv]ar",
    ),
    Case(
        "weights standardised at once",
        "bug",
        {"standing": "both"},
        _STANDARD,
        r"\bdim\b|\bax[ie]s\b|\b[Vv]ar",
    ),
    Case(
        "weights not centred",
        "bug",
        {"centres": False},
        _STANDARD,
        r"\b[Ss]ub|\bmeans?\b|\b[Mm]ean",
    ),
    Case("eps of weights' spread", "bug", {"eps": 0.1}, _STANDARD, r"\beps\b|\b[Aa]dd"),
    Case("groups of the norm", "bug", {"groups": 3}, ("norm@value",), r"groups?\b"),
    Case(
        "modulation before the norm",
        "bug",
        {"film_at": "before"},
        ("film@value", "norm@value"),
        r"\border\b|\bbefore\b|\bfilm\b|\bnorm\b|group_norm|input",
    ),
    Case(
        "factors not added to one",
        "bug",
        {"ones": False},
        _FILM,
        r"\b[Aa]dd(Backward|\b)|\b[Mm]ul(Backward|\b)|\bones?\b",
    ),
    Case(
        "factors in the other half",
        "bug",
        {"halves": "factor last"},
        _FILM,
        rf"\b[Ss]plit|\b[Cc]hunk|\b[Ss]lice|\b[Mm]ul|\b[Aa]dd|{_ORDER}",
    ),
    Case(
        "modulation detached",
        "bug",
        {"cuts": True},
        ("trunk@grad", "trunk.drop@grad", "trunk.*@*grad"),
        r"detach|gradients? (come|comes|flow|back)",
    ),
    Case(
        "evaluated in training mode",
        "bug",
        {"sleeps": False},
        ("trunk.drop@value", "trunk@value"),
        r"\beval\b|train(ing)? mode|training (True|False)|dropout",
        step=1,
    ),
    Case("labels not smoothed", "bug", {"smoothing": 0.0}, _NAMES, r"smooth"),
    Case(
        "losses of tasks summed",
        "bug",
        {"mean": "tasks"},
        _NAMES,
        rf"\b[Mm]ean|\b[Ss]um|\b[Dd]iv|{_TIMES}|reduction",
    ),
    Case(
        "biases have trust and decay",
        "bug",
        {"flats": False},
        UPDATES,
        r"weight_decay|trust|\blr\b",
    ),
    Case("rates before momentum", "bug", {"rated": "before"}, UPDATES, r"momentum|\blr\b|\brate"),
    Case(
        "slow weights are no copy",
        "bug",
        {"slow": "the same"},
        UPDATES,
        r"\bslow\b|lookahead|\bclone|\bcopy|alias",
    ),
    Case(
        "gradients not forgotten",
        "bug",
        {"clears": False},
        ("*@grad",),
        r"zero_grad|accumulat|\bclear|added to|\bgradients?\b.{0,40}(earlier|before|last|step)",
        step=1,
    ),
    Case("weights standardised by layer norm", "benign", {"standard": "layer norm"}),
    Case("weights standardised by moments", "benign", {"standard": "moments"}),
    Case("convolutions in groups", "benign", {"convolution": "grouped"}),
    Case("modulation by addcmul", "benign", {"film": "addcmul"}),
    Case("factors one after the other", "benign", {"hidden": "factors"}),
    Case("updates in parts", "benign", {"moving": "parts"}),
    Case("lengths by products", "benign", {"lengths": "products"}),
    Case("slow weights by two products", "benign", {"meeting": "products"}),
    Case("convolutions of patches", "benign", {"convolution": "patches"}),
    Case("smoothed names by hand", "benign", {"losses": "own"}),
    Case("2 micro-batches", "benign", {"parts": 2}, reference={"dropout": 0.0}),
    Case(
        "factors one after the other, low precision",
        "benign",
        {"hidden": "factors"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value", "shared@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("codes by indices", "equal", {"codes": "index"}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("trunk computed again", "equal", {"keeps": "edges"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
