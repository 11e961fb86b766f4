"""A selective state-space model of texts that spell digits: a name, then pixels until the end."""

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
    cut,
    digits,
    warmed,
)
from tests.diagnosis.workloads.selector_net import Model

_PAD, _END, _NAMES, _LEVELS = 0, 1, 2, 12
"""The words: padding, the end, ten names of digits, and five levels of brightness."""
_WORDS = 17
_SHOWN = 12
"""Texts that an evaluation sees."""


@dataclass(frozen=True)
class Selector(Workload):
    """The next word of each text is told; texts end at different places, and padding follows.

    cuts: where the causal convolution is cut to the text's length, at the "end" or the "start".
    biases: how often delta's bias is added before softplus, "once" or "twice". begins: delta's
        biases, so that "softplus" gives rates of 0.01 to 0.3, or "zeros".
    rates: A as minus the "exp" of A_log, or minus the "log" itself. euler: whether the input is
        discretised by delta too. reads: the output is of the state "after" the place, or "before".
    truncates: whether the state is detached every 8 places. carries: whether a batch begins with
        the state that the one before it ended with.
    tied: whether the head's weight is the embedding's, or a copy of it.
    ignores: whether padding is left out of the loss.
    parts: micro-batches a step. trims: whether each is cut to its longest text. shares: what their
        losses are divided by, the tokens of the whole "batch", or each by those of its "part".
    schedules: the rate changes each "step" or "part". warmup: steps of rising rate.
    spares: whether A_log, D, norms and biases do not decay. clip: of the gradients' norm.
    logs: whether perplexity and the norm are kept. evaluates: whether held-out texts are told.
    low: whether the net runs under autocast to bfloat16.
    scan, conv, major, heads, keeps, backward: other ways to write the same mathematics.
    """

    steps: int = 5
    batch: int = 12
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    cuts: str = "end"
    biases: str = "once"
    begins: str = "softplus"
    rates: str = "exp"
    euler: bool = True
    reads: str = "after"
    truncates: bool = False
    carries: bool = False
    tied: bool = True
    ignores: bool = True
    parts: int = 1
    trims: bool = False
    shares: str = "batch"
    schedules: str = "step"
    warmup: int = 2
    spares: bool = True
    clip: float = 1.0
    logs: bool = False
    low: bool = False
    scan: str = "loop"
    conv: str = "torch"
    major: str = "batch"
    heads: str = "all"
    keeps: str = "all"
    backward: str = "torch"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Model(self, _WORDS)
            optimizer = self.adam(self._groups(model))
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 8)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            history = []
            for step, batch in enumerate(self.images(seed)):
                texts = _texts(*batch)
                clear(optimizer, self)
                lost = 0.0
                for (part,) in cut(self.parts, texts):
                    lost += self._learn(model, part, texts).detach()
                    if self.schedules == "part":
                        schedule.step()
                length = nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                if self.schedules == "step":
                    schedule.step()
                if self.logs:
                    history.append({"perplexity": lost.exp().item(), "norm": length.item()})
                if self.evaluates and step % 2 == 1:
                    history.append({"held_out": self._evaluate(model)})

    def _groups(self, model):
        """What decays, and what does not."""
        named = [
            ((one.ndim > 1 and not name.endswith("A_log")) or not self.spares, one)
            for name, one in model.named_parameters()
        ]
        return [
            {
                "params": [one for deep, one in named if deep is decays],
                "weight_decay": self.weight_decay if decays else 0.0,
            }
            for decays in (True, False)
        ]

    def _learn(self, model, part, texts):
        """The gradients of one micro-batch."""
        if self.trims:
            part = part[:, : (part != _PAD).sum(1).max()]
        whole = texts[:, 1:] if self.shares == "batch" else part[:, 1:]
        counted = (whole != _PAD).sum() if self.ignores else whole.numel()
        loss = self._lost(model, part) / counted
        if self.shares == "part":
            loss = loss / self.parts
        anchorlib.anchor(loss, "loss")
        if self.backward == "torch":
            loss.backward()
            return loss
        parameters = list(model.parameters())
        for one, grad in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            one.grad = grad if one.grad is None else one.grad + grad
        return loss

    def _lost(self, model, texts):
        """The sum of all words' cross entropies."""
        tokens, targets = texts[:, :-1], texts[:, 1:]
        real = targets != _PAD
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            logits = model(tokens, real)
        logits = logits.to(model.head.weight.dtype)
        if self.heads == "real":
            return functional.cross_entropy(logits, targets[real], reduction="sum")
        return functional.cross_entropy(
            logits.flatten(0, 1),
            targets.flatten(),
            ignore_index=_PAD if self.ignores else -100,
            reduction="sum",
        )

    @torch.no_grad()
    def _evaluate(self, model) -> float:
        """The loss of texts that are not learnt from."""
        images, labels = digits()
        texts = _texts(images[:_SHOWN], labels[:_SHOWN])
        model.eval()
        lost = self._lost(model, texts) / (texts[:, 1:] != _PAD).sum()
        model.train()
        return lost.item()


def _texts(images, labels):
    """Texts of 26 words: a digit's name, its pixels until nearly all ink is read, the end."""
    ink = functional.adaptive_avg_pool2d((images[:, None] + 1) / 2, (6, 4)).flatten(1)
    words = _LEVELS + (5 * ink).long().clamp(max=4)
    read = ink.cumsum(1)
    ends = 2 + (read < 0.85 * read[:, -1:]).sum(1, keepdim=True)
    texts = functional.pad(torch.cat((_NAMES + labels[:, None], words), 1), (0, 1), value=_PAD)
    texts = texts.masked_fill(torch.arange(texts.shape[1]) > ends, _PAD)
    return texts.scatter(1, ends, _END)


_LOSS = ("loss@*", "output@grad", "head@grad")
_SCAN = ("blocks.0.mixer.scan@value",)
_TIMES = r"is -?[\d.]+ times A|a factor of its own"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES: tuple[Case, ...] = (
    Case(
        "convolution cut at its start",
        "bug",
        {"cuts": "start"},
        ("blocks.0.mixer.conv1d@value",),
        rf"\bslice|\bstart\b|\bend\b|\bIndex|{_ORDER}",
    ),
    Case(
        "bias of delta twice",
        "bug",
        {"biases": "twice"},
        ("blocks.0.mixer.softplus@value",),
        rf"\bAdd(Backward|\b)|dt_proj\.bias|{_GIVEN}",
    ),
    Case(
        "A_log taken for A",
        "bug",
        {"rates": "log"},
        _SCAN,
        rf"\b[Ee]xp(Backward|\b)|A_log|{_GIVEN}",
    ),
    Case("input not times delta", "bug", {"euler": False}, _SCAN, rf"\bMul|{_GIVEN}"),
    Case(
        "state read before its update",
        "bug",
        {"reads": "before"},
        _SCAN,
        rf"\bStack|{_ORDER}|{_GIVEN}",
    ),
    Case(
        "state detached every 8 places",
        "bug",
        {"truncates": True},
        (
            *("blocks.1.mixer.scan.A_log@*grad", "blocks.1.mixer.softplus@grad"),
            *("blocks.1.mixer.act@grad", "blocks.1.mixer.x_proj@grad"),
        ),
        _DETACHED,
    ),
    Case(
        "state kept for the next batch",
        "bug",
        {"carries": True},
        _SCAN,
        rf"\bstate|\bcarr|\bcache|\bzeros\b|step before|{_GIVEN}",
        step=1,
    ),
    Case(
        "head is a copy of the embedding",
        "bug",
        {"tied": False},
        ("embedding.weight@*", "head.weight@*", "embedding@grad"),
        r"head\.weight|\btied?\b|shared?\b|\balone\b|\blacks\b",
    ),
    Case(
        "padding counts",
        "bug",
        {"ignores": False},
        _LOSS,
        rf"ignore_index|\bnll|\bDiv|cross_entropy|{_GIVEN}",
    ),
    Case(
        "each part by its own tokens",
        "bug",
        {"shares": "part"},
        _LOSS,
        rf"\bDiv|\bMul|{_TIMES}",
        reference={"parts": 2},
    ),
    Case(
        "rate changes at each part",
        "bug",
        {"schedules": "part"},
        UPDATES,
        r"\blr\b",
        reference={"parts": 2},
    ),
    Case("A_log, D, norms and biases decay", "bug", {"spares": False}, UPDATES, r"weight_decay"),
    Case("scan as attention", "benign", {"scan": "quadratic"}),
    Case("scan with a backward of its own", "benign", {"scan": "function"}),
    Case(
        "scan by doubling, low precision", "benign", {"scan": "parallel"}, reference={"low": True}
    ),
    Case("convolution tap by tap", "benign", {"conv": "taps"}),
    Case("2 micro-batches, each to its longest text", "benign", {"parts": 2, "trims": True}),
    Case("head at real words alone", "benign", {"heads": "real"}),
    Case("places before samples", "benign", {"major": "time"}),
    Case("gradients by autograd.grad", "benign", {"backward": "grad"}),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case(
        "biases of delta set to zero",
        "data",
        {"begins": "zeros"},
        ("blocks.*.mixer.dt_proj.bias@value",),
    ),
    Case("evaluated between steps", "equal", {"evaluates": True}),
    Case("perplexity and norm logged", "equal", {"logs": True}),
    Case("blocks computed again", "equal", {"keeps": "edges"}),
    Case("died", "incomplete", {"ends_at": 3}),
)
