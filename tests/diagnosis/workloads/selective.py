"""A selective state-space model learns to copy letters from among noise, token by token."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import (
    UPDATES,
    Case,
    EndedError,
    Start,
    Workload,
    clear,
    cut,
    warmed,
)
from tests.diagnosis.workloads.selective_net import Mamba

_PAD, _START, _COPY, _END, _NOISE, _LETTERS, _TOKENS = 0, 1, 2, 3, 4, 5, 15
_LENGTH = 20


@dataclass(frozen=True)
class Selective(Workload):
    """Each sequence shows letters among noise, then the letters alone; what is short is padded.

    grows: whether states grow where they should decay. discretizes: what is multiplied by delta,
        "both" the decays and the input or the "decay" alone. biased: whether delta's bias is added
        "once" or "twice". inverts: whether that bias begins as softplus's inverse of the sizes
        meant. carries: whether a state is "attached" or "detached" from chunk to chunk. begins:
        the state that a sequence begins with, "zero" or the "last" batch's.
    keeps: the places of the padded convolution that are kept, the "first" or the "last".
    over: what the norms' mean is over, "channels" or "all" places too.
    shift: how many places on the targets lie. ignores: whether padding has no loss.
    parts: micro-batches a step. shares: what their losses are divided by, the tokens of the whole
        "batch", or each by its own "part"'s.
    decays: what has weight decay, the "products'" weights or each "matrix", of which A_log is one.
    warmup: steps of rising rate. clip: of gradients' norm. clips: gradients are clipped when they
        are "unscaled" or still "scaled".
    low: whether the net runs under autocast to bfloat16.
    scan, base, projects, convolution, norming, remembers, tells, optimizer, scale: other ways to
        write the same mathematics.
    """

    steps: int = 5
    batch: int = 8
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    grows: bool = False
    discretizes: str = "both"
    biased: str = "once"
    inverts: bool = True
    carries: str = "attached"
    begins: str = "zero"
    keeps: str = "first"
    over: str = "channels"
    shift: int = 1
    ignores: bool = True
    parts: int = 1
    shares: str = "batch"
    decays: str = "products"
    warmup: int = 2
    clip: float = 1.0
    clips: str = "unscaled"
    low: bool = False
    scan: str = "loop"
    base: str = "e"
    projects: str = "once"
    convolution: str = "torch"
    norming: str = "own"
    remembers: str = "all"
    tells: str = "all"
    optimizer: str = "torch"
    scale: float = 1.0

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Mamba(self, _TOKENS, _PAD)
            optimizer = self._optimizer(model)
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 8)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            unseen = _sequences(4, torch.Generator().manual_seed(5))
            for step, batch in enumerate(self._batches(seed)):
                if self.evaluates and step % 2 == 1:
                    self._evaluate(model, unseen)
                clear(optimizer, self)
                for (part,) in cut(self.parts, batch):
                    loss = anchorlib.anchor(self._loss(model, part, batch), "loss")
                    (loss * self.scale).backward()
                self._bound(model)
                optimizer.step()
                schedule.step()

    def _batches(self, seed):
        """A batch of sequences a step."""
        dealing = torch.Generator().manual_seed(91 + 1000 * seed + self.order)
        for step in range(self.steps):
            found = _sequences(self.batch, dealing)
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield found.flip(0) if self.turned else found

    def _optimizer(self, model):
        """AdamW; neither A_log, D, norms nor biases decay."""
        still = ("norm.weight", "bias", "D", *(["A_log"] if self.decays == "products" else []))
        named = [(not name.endswith(still), one) for name, one in model.named_parameters()]
        groups = [
            {
                "params": [one for deep, one in named if deep is decays],
                "weight_decay": self.weight_decay if decays else 0.0,
            }
            for decays in (True, False)
        ]
        if self.optimizer == "torch":
            return self.adam(groups)
        return OwnAdamW(groups, {"lr": self.lr, "betas": self.betas, "eps": self.adam_eps})

    @torch.no_grad()
    def _evaluate(self, model, sequences):
        """The loss of sequences that are not learnt from."""
        model.eval()
        self._loss(model, sequences, sequences)
        model.train()

    def _loss(self, model, part, batch):
        """A micro-batch's share of the cross entropy of the next tokens."""
        shown = part[:, :-1]
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            logits = model(shown)
        logits = logits.to(model.embed.weight.dtype)
        wanted = self._targets(part)
        wanted = wanted.flatten() if self.tells == "all" else wanted[shown != _PAD]
        ignored = _PAD if self.ignores else -100
        missed = functional.cross_entropy(
            logits.view(-1, _TOKENS), wanted, ignore_index=ignored, reduction="sum"
        )
        if self.shares == "part":
            return missed / (self._targets(part) != ignored).sum() / self.parts
        return missed / (self._targets(batch) != ignored).sum()

    def _targets(self, sequences):
        """The tokens that follow."""
        return functional.pad(sequences[:, self.shift :], (0, self.shift - 1), value=_PAD)

    @torch.no_grad()
    def _bound(self, model):
        """Gradients, unscaled and clipped."""
        if self.clips == "scaled":
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)
        if self.scale != 1:
            for parameter in model.parameters():
                parameter.grad.div_(self.scale)
        if self.clips == "unscaled":
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)


class OwnAdamW(torch.optim.Optimizer):
    """AdamW whose corrections of the averages are taken into the rate and into epsilon."""

    @torch.no_grad()
    def step(self, closure=None):
        """Change the parameters."""
        for group in self.param_groups:
            first, second = group["betas"]
            for one in group["params"]:
                state = self.state[one]
                if not state:
                    state |= {
                        "step": 0,
                        "exp_avg": torch.zeros_like(one),
                        "exp_avg_sq": torch.zeros_like(one),
                    }
                state["step"] += 1
                state["exp_avg"].mul_(first).add_(one.grad, alpha=1 - first)
                state["exp_avg_sq"].mul_(second).addcmul_(one.grad, one.grad, value=1 - second)
                root = math.sqrt(1 - second ** state["step"])
                size = state["exp_avg_sq"].sqrt().add_(group["eps"] * root)
                rate = group["lr"] * root / (1 - first ** state["step"])
                one.mul_(1 - group["lr"] * group["weight_decay"])
                one.addcdiv_(state["exp_avg"], size, value=-rate)


def _sequences(count, dealing):
    """Letters among noise, and the letters again, padded to one length."""
    rows = torch.full((count, _LENGTH), _PAD)
    for row in rows:
        letters, noise = (
            int(torch.randint(low, high, (), generator=dealing)) for low, high in ((3, 6), (2, 7))
        )
        text = torch.randint(_LETTERS, _TOKENS, (letters,), generator=dealing)
        mixed = torch.full((letters + noise,), _NOISE)
        mixed[torch.randperm(letters + noise, generator=dealing)[:letters].sort().values] = text
        told = [_START, *mixed.tolist(), _COPY, *text.tolist(), _END]
        row[: len(told)] = torch.tensor(told)
    return rows


_MIXER = "blocks.0.mixer"
_SCAN = (f"{_MIXER}.scan@value",)
_LOSS = ("loss@*", "output@grad", "head@grad")
_TIMES = r"is -?[\d.e-]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES: tuple[Case, ...] = (
    Case(
        "states grow",
        "bug",
        {"grows": True},
        _SCAN,
        rf"\bNeg|other sign|is -1(\.0)? times|\bExp\w* .{{0,60}}(self|result)|{_GIVEN}",
    ),
    Case(
        "input not discretized",
        "bug",
        {"discretizes": "decay"},
        _SCAN,
        rf"\bMul|{_GIVEN}",
    ),
    Case(
        "bias of delta twice",
        "bug",
        {"biased": "twice"},
        (f"{_MIXER}.dt@value",),
        rf"\bAdd(Backward|\b)|\bbias\b|{_GIVEN}",
    ),
    Case(
        "state detached between chunks",
        "bug",
        {"carries": "detached"},
        ("blocks.1.mixer.scan*@*grad", "blocks.1.mixer.*@grad"),
        rf"{_DETACHED}|\b(Mul|Add)\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}\b(Mul|Add)",
    ),
    Case(
        "state of the last batch",
        "bug",
        {"begins": "last"},
        _SCAN,
        rf"\bMul|\bAdd(Backward|\b)|\bstates?\b|zeros|\bcached?\b|{_GIVEN}",
        step=1,
    ),
    Case(
        "convolution sees what follows",
        "bug",
        {"keeps": "last"},
        (f"{_MIXER}.conv@value",),
        rf"\bSlice|\bpad|\bindex|{_ORDER}|\bstart\b|\bshift",
    ),
    Case(
        "norm over all places",
        "bug",
        {"over": "all"},
        ("blocks.0.norm@value",),
        r"\bdims?\b|\bMean|\bax[ie]s\b",
    ),
    Case(
        "targets shifted twice",
        "bug",
        {"shift": 2},
        _LOSS,
        rf"{_GIVEN}|{_ORDER}|\bSlice|\bshift",
    ),
    Case(
        "padding has a loss",
        "bug",
        {"ignores": False},
        _LOSS,
        rf"ignore_index|\bpadd|\bnll\w* .{{0,60}}-100|total_weight|\bDiv|{_GIVEN}",
    ),
    Case(
        "each part by its own tokens",
        "bug",
        {"shares": "part"},
        _LOSS,
        rf"\bDiv|{_TIMES}",
        reference={"parts": 2},
    ),
    Case(
        "A_log decays",
        "bug",
        {"decays": "matrix"},
        ("*A_log@updated", "*A_log@delta", "*A_log@opt.*"),
        r"weight_decay",
    ),
    Case(
        "clipped while scaled",
        "bug",
        {"clips": "scaled"},
        ("*@grad", *UPDATES),
        rf"\bclip|{_TIMES}|scale",
        reference={"scale": 1024.0},
    ),
    Case("parallel scan", "benign", {"scan": "parallel"}),
    Case("scan as attention", "benign", {"scan": "dual"}),
    Case("scan with its own backward", "benign", {"scan": "function"}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("logits of real tokens alone", "benign", {"tells": "real"}),
    Case(
        "mixer rewritten",
        "benign",
        {"convolution": "taps", "base": "two", "norming": "torch"},
    ),
    Case("own AdamW", "benign", {"optimizer": "own"}),
    Case(
        "two projections, low precision",
        "benign",
        {"projects": "apart"},
        reference={"low": True},
    ),
    Case(
        "bias of delta not inverted",
        "data",
        {"inverts": False},
        ("*.dt.bias@value",),
    ),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("blocks computed again", "equal", {"remembers": "edges"}),
    Case("evaluated between steps", "equal", {"evaluates": True}),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("died", "incomplete", {"ends_at": 3}),
)
