"""A table whose rows are digits' features: attention over columns tells a class and a number."""

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
from tests.diagnosis.workloads.table import Table

_SIZES = (8, 8, 8)
"""How many names each column of names has."""
_SHOWN = 12
"""Rows that the evaluation sees."""


@dataclass(frozen=True)
class Tabular(Workload):
    """Columns are how bright rows of pixels are, and where an image is brightest.

    divides: whether numbers are divided by their columns' spreads. apart: whether each column of
        names has embeddings of its own. reads: the token that is read at the end, "first" or
        "last". root: of whose size scores are divided by, the "head"'s or the "width"'s. over:
        what softmax is over, "keys" or "queries". returns: whether heads are moved back behind the
        places. norm_eps: of the norms. adds: what attention is added to, the "plain" tokens or the
        "normed" ones. gates: the half that is bent. bent: by "gelu" or "relu". dropout: its share.
        flows: whether the number's gradient reaches the tokens.
    weighs: whether classes have weights. squeezes: whether the numbers told lose their last axis.
        delta: of the Huber loss.
    parts: micro-batches a step. shares: what their losses are divided by, the whole "batch", or
        each by its own "part". schedules: the rate changes each "step" or "part".
    all_decay: whether biases, norms and embeddings decay too. warmup: steps of rising rate.
    wakes: whether the model is in training mode again after an evaluation.
    low: whether the net runs under autocast to bfloat16.
    tokens, norming, attention, packing, gelu, keeps, classes, huber, backward, scale: other ways
        to write the same mathematics.
    """

    lr: float = 5e-3
    weight_decay: float = 0.1
    divides: bool = True
    apart: bool = True
    reads: str = "first"
    root: str = "head"
    over: str = "keys"
    returns: bool = True
    norm_eps: float = 1e-5
    adds: str = "plain"
    gates: str = "first"
    bent: str = "gelu"
    dropout: float = 0.1
    flows: bool = True
    weighs: bool = True
    squeezes: bool = True
    delta: float = 0.7
    parts: int = 2
    shares: str = "batch"
    schedules: str = "step"
    all_decay: bool = False
    warmup: int = 3
    wakes: bool = True
    low: bool = False
    tokens: str = "plain"
    norming: str = "torch"
    attention: str = "own"
    packing: str = "apart"
    gelu: str = "torch"
    keeps: str = "all"
    classes: str = "torch"
    huber: str = "torch"
    backward: str = "once"
    scale: float = 1.0

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            images, labels = digits()
            model = Table(self, _numbers(images), _SIZES)
            optimizer = self.adam(self._groups(model))
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 8)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            shown = _columns(images[:_SHOWN], labels[:_SHOWN])
            for step, batch in enumerate(self.images(seed)):
                if step % 2 == 0:
                    self._evaluate(model, shown)
                columns = _columns(*batch)
                clear(optimizer, self)
                for part in cut(self.parts, *columns):
                    self._learn(model, part, columns)
                    if self.schedules == "part":
                        schedule.step()
                for parameter in model.parameters():
                    if self.scale != 1:
                        parameter.grad.div_(self.scale)
                optimizer.step()
                if self.schedules == "step":
                    schedule.step()

    def _groups(self, model):
        """What decays, and what does not: biases, norms and all that makes tokens."""
        named = [
            (one.ndim > 1 and not name.startswith("tokens"), one)
            for name, one in model.named_parameters()
        ]
        still = self.weight_decay if self.all_decay else 0.0
        return [
            {
                "params": [one for deep, one in named if deep is decays],
                "weight_decay": self.weight_decay if decays else still,
            }
            for decays in (True, False)
        ]

    @torch.no_grad()
    def _evaluate(self, model, shown):
        """The losses of rows that are not learnt from."""
        model.eval()
        losses = self._losses(self._told(model, shown), shown, shown)
        anchorlib.anchor(sum(losses), "eval_loss")
        model.train(self.wakes)

    def _told(self, model, columns):
        numbers, names, *_ = columns
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = model(numbers, names)
        return [one.to(numbers.dtype) for one in told]

    def _learn(self, model, part, batch):
        """The gradients of one micro-batch."""
        named, missed = self._losses(self._told(model, part), part, batch)
        loss = named + missed
        for one, name in ((named, "class_loss"), (missed, "number_loss"), (loss, "loss")):
            anchorlib.anchor(one, name)
        if self.backward == "once":
            (loss * self.scale).backward()
        else:
            (named * self.scale).backward(retain_graph=True)
            (missed * self.scale).backward()

    def _losses(self, told, part, batch):
        """A part's share of both losses."""
        *_, labels, wanted = part
        logits, number = told
        weights = torch.linspace(0.5, 2.0, 10, dtype=logits.dtype)
        weights = weights if self.weighs else torch.ones_like(weights)
        whole = batch if self.shares == "batch" else part
        if self.classes == "torch":
            named = functional.cross_entropy(logits, labels, weights, reduction="sum")
        else:
            costs = logits.logsumexp(1) - logits.gather(1, labels[:, None])[:, 0]
            named = (weights[labels] * costs).sum()
        missed = self._missed(number[:, 0] if self.squeezes else number, wanted)
        return named / weights[whole[2]].sum(), missed * (len(wanted) / len(whole[2]))

    def _missed(self, number, wanted):
        """The Huber loss."""
        if self.huber == "torch":
            return functional.huber_loss(number, wanted, delta=self.delta)
        return self.delta * functional.smooth_l1_loss(number, wanted, beta=self.delta)


def _numbers(images):
    return images.mean(2)


def _columns(images, labels):
    """Numbers, names and both targets of rows; a digit's number is how wide its ink lies."""
    names = (
        images[:, :4].sum(1).argmax(1),
        images[:, 4:].sum(1).argmax(1),
        images.sum(2).argmax(1),
    )
    ink = images + 1
    far = (torch.arange(8) - 3.5) ** 2
    wide = (ink.sum(1) * far).sum(1) / ink.sum((1, 2))
    return _numbers(images), torch.stack(names, 1), labels, (wide - 1.7) / 0.4


_MIXED = ("blocks.0.attention.out@value", "blocks.0.attention@value")
_GATE = ("blocks.0.gate@value",)
_CLASS = ("class_loss@*", "loss@*", "eval_loss@*", "output@grad", "name@grad")
_NUMBER = ("number_loss@*", "loss@*", "eval_loss@*", "output:1@grad", "number@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "numbers not divided",
        "bug",
        {"divides": False},
        ("standard@value",),
        rf"\bDiv|{_TIMES}|a factor of its own",
    ),
    Case(
        "names share embeddings",
        "bug",
        {"apart": False},
        ("tokens.names@value",),
        r"\bindices\b|\bzeros\b",
    ),
    Case(
        "last token read",
        "bug",
        {"reads": "last"},
        ("norm@value",),
        rf"\bselect|\bindex|{_ORDER}|{_GIVEN}",
    ),
    Case(
        "root of the whole width",
        "bug",
        {"root": "width"},
        _MIXED,
        rf"\bDiv|{_TIMES}|{_GIVEN}",
    ),
    Case("softmax over queries", "bug", {"over": "queries"}, _MIXED, r"\bdim\b"),
    Case(
        "heads not moved back",
        "bug",
        {"returns": False},
        _MIXED,
        rf"permute|transpose|{_ORDER}|\bview|reshape",
    ),
    Case("eps of norms", "bug", {"norm_eps": 1e-2}, ("blocks.0.norm1@value",), r"\beps\b"),
    Case(
        "added to what is normed",
        "bug",
        {"adds": "normed"},
        ("blocks.0@value", "blocks.0.norm2@value"),
        rf"\bAdd(Backward|\b)|{_GIVEN}|computes it from",
    ),
    Case(
        "other half bent",
        "bug",
        {"gates": "second"},
        _GATE,
        rf"{_ORDER}|\bsplit|\bchunk|\bMul|{_GIVEN}",
    ),
    Case("relu for gelu", "bug", {"bent": "relu"}, _GATE, r"\brelu|\bgelu"),
    Case("dropout of 0.3", "bug", {"dropout": 0.3}, ("blocks.0.drop1@value",), r"\bp\b"),
    Case(
        "classes without weights",
        "bug",
        {"weighs": False},
        _CLASS,
        rf"{_GIVEN}|nll\w* .{{0,40}}\bweight\b|\bDiv",
    ),
    Case(
        "last axis of numbers kept",
        "bug",
        {"squeezes": False},
        _NUMBER,
        r"\bshapes?\b|broadcast|expand|\bselect",
    ),
    Case(
        "each part by itself",
        "bug",
        {"shares": "part"},
        ("class_loss@*", "number_loss@*", "loss@*", "output*@grad"),
        rf"{_TIMES}|\bDiv|\bMul",
    ),
    Case(
        "number detached",
        "bug",
        {"flows": False},
        ("norm@grad", "norm.*@*grad", "blocks.1@grad"),
        rf"{_DETACHED}|\b(add)?mm\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}\b(add)?mm",
    ),
    Case("everything decays", "bug", {"all_decay": True}, UPDATES, r"weight_decay"),
    Case(
        "decay inside the gradient", "bug", {"decoupled": False}, UPDATES, r"decoupled|weight_decay"
    ),
    Case("rate changes at each part", "bug", {"schedules": "part"}, UPDATES, r"\blr\b"),
    Case("no warm-up", "bug", {"warmup": 0}, UPDATES, r"\blr\b"),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("blocks.0.drop1@value",),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
    ),
    Case("attention by torch", "benign", {"attention": "torch"}),
    Case("one projection for three", "benign", {"packing": "joined"}),
    Case("own layer norm", "benign", {"norming": "own"}),
    Case("tokens at once", "benign", {"tokens": "at once"}),
    Case("gelu by erf", "benign", {"gelu": "erf"}),
    Case("class weights by hand", "benign", {"classes": "own"}),
    Case("Huber loss by smooth L1", "benign", {"huber": "smooth"}),
    Case("a backward for each loss", "benign", {"backward": "each"}),
    Case("loss scaled, gradients unscaled", "benign", {"scale": 1000.0}),
    Case("one part for two", "benign", {"parts": 1}, reference={"dropout": 0.0}),
    Case("rows turned", "benign", {"turned": True}, reference={"dropout": 0.0, "parts": 1}),
    Case(
        "attention by torch, low precision",
        "benign",
        {"attention": "torch"},
        reference={"low": True},
    ),
    Case("one projection, low precision", "benign", {"packing": "joined"}, reference={"low": True}),
    Case("own norms, low precision", "benign", {"norming": "own"}, reference={"low": True}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("blocks computed again", "equal", {"keeps": "edges"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
