"""A net that learns to learn digits from few: it is adapted by steps that are differentiable."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import (
    UPDATES,
    Case,
    EndedError,
    Start,
    Workload,
    clear,
    digits,
    warmed,
)
from tests.diagnosis.workloads.learner import Learner

_WAYS, _SHOTS, _ASKED = 3, 3, 4


@dataclass(frozen=True)
class Meta(Workload):
    """Each task names three digits anew; a net that saw three of each is asked about four others.

    tasks: how many a step. inner_steps: of adaptation. inner: the logarithm of the rates at first.
    asks: of the "query" set or, mistakenly, of the "support" set. renames: whether the queries'
        labels are the task's own.
    order_of: "second" derivatives, or the "first" ones alone. carries: adapted parameters are
        "attached" or "detached" before the next step. begins: each step goes on from the one
        "before" or from the "start". sign: of the adaptation. bends: rates are "exp" of what is
        learnt, or the "plain" number. rates: "learnt" or "detached". leaves: what is not adapted.
    softmax: whether the net ends in one. rests: whether batch norms use running statistics.
        padding: of convolutions.
    shared: what support losses are, a "mean" or a "sum". weights: of the query losses after each
        step. over: tasks are a "mean" or a "sum".
    keeps: whether gradients stay from step to step. clip, clips: of gradients, by their "torch"
        norm, their "own" norm or each "value".
    fast: the factor of the rates' own learning rate. decays: whether rates decay too. warmup: steps
        of rising rate.
    low: whether the net runs under autocast to bfloat16.
    convolution, norming, act, linear, costs, adapting, backward, scale: other ways to write the
        same mathematics.
    """

    steps: int = 4
    lr: float = 1e-2
    weight_decay: float = 0.1
    tasks: int = 2
    inner_steps: int = 2
    inner: float = -1.5
    asks: str = "query"
    renames: bool = True
    order_of: str = "second"
    carries: str = "attached"
    begins: str = "before"
    sign: float = -1.0
    bends: str = "exp"
    rates: str = "learnt"
    leaves: str = "nothing"
    softmax: bool = False
    rests: bool = False
    padding: str = "zeros"
    shared: str = "mean"
    weights: tuple[float, ...] = (0.3, 0.7)
    over: str = "mean"
    keeps: bool = False
    clip: float = 0.5
    clips: str = "torch"
    fast: float = 0.5
    decays: bool = False
    warmup: int = 2
    low: bool = False
    convolution: str = "torch"
    norming: str = "torch"
    act: str = "torch"
    linear: str = "torch"
    costs: str = "torch"
    adapting: str = "plain"
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
            model = Learner(self, _WAYS)
            model.train(not self.rests)
            optimizer = self.adam(self._groups(model))
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 8)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for tasks in self._dealt(seed):
                if not self.keeps:
                    clear(optimizer, self)
                self._learn(model, tasks)
                self._bound(model)
                optimizer.step()
                schedule.step()

    def _groups(self, model):
        """The net's parameters, and the rates."""
        return [
            {"params": list(model.net.parameters())},
            {
                "params": list(model.rates.values()),
                "lr": self.lr * self.fast,
                "weight_decay": self.weight_decay if self.decays else 0.0,
            },
        ]

    def _dealt(self, seed):
        """The tasks of each step: images and labels to learn from, and to be asked about."""
        images, labels = digits()
        dealing = torch.Generator().manual_seed(91 + 1000 * seed + self.order)
        for step in range(self.steps):
            tasks = [self._task(images, labels, dealing) for _ in range(self.tasks)]
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield tasks

    def _task(self, images, labels, dealing):
        chosen = torch.randperm(10, generator=dealing)[:_WAYS]
        found = []
        for digit in chosen:
            places = (labels == digit).nonzero()[:, 0]
            mixed = torch.randperm(len(places), generator=dealing)[: _SHOTS + _ASKED]
            found.append(images[places[mixed]])
        both = torch.stack(found)[:, :, None]
        support, query = both[:, :_SHOTS].flatten(0, 1), both[:, _SHOTS:].flatten(0, 1)
        own = torch.arange(_WAYS)
        named = own if self.renames else chosen.argsort().argsort()
        names = own.repeat_interleave(_SHOTS), named.repeat_interleave(_ASKED)
        dealt = support, names[0], query, names[1]
        return tuple(one.flip(0) for one in dealt) if self.turned else dealt

    def _learn(self, model, tasks):
        """The gradients of all tasks."""
        losses = []
        for task in tasks:
            loss = anchorlib.anchor(self._asked(model, *task), "task_loss")
            loss = loss / len(tasks) if self.over == "mean" else loss
            if self.backward == "each":
                (loss * self.scale).backward()
            losses.append(loss)
        loss = anchorlib.anchor(sum(losses), "loss")
        if self.backward == "once":
            (loss * self.scale).backward()

    def _asked(self, model, support, names, query, wanted):
        """The query losses after each step of adaptation, weighted."""
        start = {f"net.{name}": one for name, one in model.net.named_parameters()}
        fast, losses = start, []
        asked, wanted = (query, wanted) if self.asks == "query" else (support, names)
        for _ in range(self.inner_steps):
            loss = self._missed(self._told(model, fast, support), names)
            loss = loss * len(names) if self.shared == "sum" else loss
            fast = self._adapted(model, start, fast, anchorlib.anchor(loss, "support_loss"))
            loss = self._missed(self._told(model, fast, asked), wanted)
            losses.append(anchorlib.anchor(loss, "query_loss"))
        return sum(weight * loss for weight, loss in zip(self.weights, losses, strict=True))

    def _told(self, model, parameters, images):
        """Logits of a net with these parameters."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = functional_call(model, parameters, (images,))
        return told.to(model.net.head.weight.dtype)

    def _missed(self, told, wanted):
        """The mean of cross-entropies."""
        if self.costs == "torch":
            return functional.cross_entropy(told, wanted)
        right = functional.one_hot(wanted, _WAYS).to(told.dtype)
        return (told.logsumexp(1) - (told * right).sum(1)).mean()

    def _adapted(self, model, start, fast, loss):
        """Parameters, one step further."""
        adapted = {name: one for name, one in fast.items() if not name.startswith(self.leaves)}
        slopes = torch.autograd.grad(
            loss, list(adapted.values()), create_graph=self.order_of == "second"
        )
        found = dict(fast)
        for (name, one), slope in zip(adapted.items(), slopes, strict=True):
            rate = model.rates[name.replace(".", "_")]
            rate = rate.detach() if self.rates == "detached" else rate
            rate = rate.exp() if self.bends == "exp" else rate
            before = one if self.begins == "before" else start[name]
            before = before.detach() if self.carries == "detached" else before
            if self.adapting == "plain":
                found[name] = before + self.sign * (rate * slope)
            elif self.adapting == "minus":
                found[name] = before - rate * slope
            else:
                found[name] = torch.addcmul(before, rate, slope, value=self.sign)
        return found

    @torch.no_grad()
    def _bound(self, model):
        """Gradients, unscaled and clipped."""
        grads = [one.grad for one in model.parameters() if one.grad is not None]
        if self.scale != 1:
            for grad in grads:
                grad.div_(self.scale)
        if self.clips == "value":
            nn.utils.clip_grad_value_(model.parameters(), self.clip / 20)
        elif self.clips == "own":
            length = torch.cat([grad.flatten() for grad in grads]).square().sum().sqrt()
            for grad in grads:
                grad.mul_((self.clip / (length + 1e-6)).clamp(max=1))
        else:
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)


_ADAPTED = ("net.convs.0@value", "net.norms.0@value")
_OUTER = ("net.*@*grad", "net@grad", "output@grad", "support_loss@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_DETACHED = r"detach|gradients come back"
_LACKS = r"(lacks|alone|without|no longer).{0,80}Backward"
CASES = [
    Case(
        "first order",
        "bug",
        {"order_of": "first"},
        _OUTER,
        rf"{_DETACHED}|create_graph|second (derivative|order)|[Dd]ouble_?[Bb]ackward|{_LACKS}",
    ),
    Case(
        "adapted from detached parameters",
        "bug",
        {"carries": "detached"},
        _OUTER,
        rf"{_DETACHED}|{_LACKS}",
    ),
    Case(
        "rates detached",
        "bug",
        {"rates": "detached"},
        ("rates*@*",),
        rf"{_DETACHED}|rates\S* .{{0,40}}\bno grad|\bno gradient\b.{{0,40}}rates|{_LACKS}",
    ),
    Case(
        "each step from the start",
        "bug",
        {"begins": "start"},
        _ADAPTED,
        rf"computes it from|{_GIVEN}|\bAdd(Backward|\b)|\bSub(Backward|\b)",
    ),
    Case(
        "adapted upwards",
        "bug",
        {"sign": 1.0},
        _ADAPTED,
        rf"other sign|\b(Sub|Add|Mul)(Backward|\b)|\balpha\b|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "rates without exp",
        "bug",
        {"bends": "plain"},
        _ADAPTED,
        rf"\b[Ee]xp(Backward|\b)|\bMul\w* (self|other)|{_TIMES}",
    ),
    Case(
        "head not adapted",
        "bug",
        {"leaves": "net.head"},
        ("net.head@value", "net@value", "output@value"),
        rf"\bAdd(Backward|\b)|\bSub(Backward|\b)|computes it from|{_GIVEN}|{_LACKS}",
    ),
    Case(
        "asked about what it saw",
        "bug",
        {"asks": "support"},
        ("input@value", "net.convs.0@value", "query_loss@*"),
        r"\bshapes?\b|\binput@value|\b9, ?1, ?8, ?8\b|targets? differ",
    ),
    Case(
        "queries named otherwise",
        "bug",
        {"renames": False},
        ("query_loss@*",),
        rf"targets? differ|nll\w* .{{0,60}}target|{_GIVEN}",
    ),
    Case(
        "softmax before the loss",
        "bug",
        {"softmax": True},
        ("net@value", "output@value"),
        r"\b[Ss]oftmax",
    ),
    Case(
        "norms at rest",
        "bug",
        {"rests": True},
        ("net.norms.0@value", "net.norms.0.running*@value", "net.norms.0.num*@value"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
    ),
    Case(
        "padding by reflection",
        "bug",
        {"padding": "reflect"},
        ("net.convs.0@value",),
        r"\bpadding|[Rr]eflect|\bpad\b",
    ),
    Case(
        "support losses summed",
        "bug",
        {"shared": "sum"},
        ("support_loss@*",),
        rf"\bMul(Backward|tipli|\b)|reduction|{_TIMES}",
    ),
    Case(
        "weights of the steps exchanged",
        "bug",
        {"weights": (0.7, 0.3)},
        ("task_loss@*", "query_loss@grad"),
        rf"\bMul(Backward|tipli|\b)|{_TIMES}",
    ),
    Case(
        "tasks summed",
        "bug",
        {"over": "sum"},
        ("loss@*", "task_loss@grad"),
        rf"\bDiv(Backward|ide|\b)|{_TIMES}",
        reference={"clip": 2.0},
    ),
    Case(
        "gradients kept",
        "bug",
        {"keeps": True},
        ("*@grad",),
        r"zero_grad|accumulat|not cleared|(step|gradient)s? before|(earlier|previous) (step|grad)",
        step=1,
    ),
    Case("each value clipped", "bug", {"clips": "value"}, ("*@grad",), r"\bclip|clamp"),
    Case("rates decay", "bug", {"decays": True}, UPDATES, r"weight_decay"),
    Case("adapted by addcmul", "benign", {"adapting": "addcmul"}),
    Case("convolutions of patches", "benign", {"convolution": "patches"}),
    Case("own batch norm", "benign", {"norming": "own"}),
    Case("head by einsum", "benign", {"linear": "einsum"}),
    Case("losses by logsumexp", "benign", {"costs": "own"}),
    Case("softplus by logaddexp", "benign", {"act": "logaddexp"}),
    Case("a backward for each task", "benign", {"backward": "each"}),
    Case("loss scaled, gradients unscaled", "benign", {"scale": 1000.0}),
    Case("norm of gradients at once", "benign", {"clips": "own"}),
    Case("samples turned", "benign", {"turned": True}),
    Case("fused AdamW", "benign", {"implementation": "fused"}),
    Case(
        "convolutions of patches, low precision",
        "benign",
        {"convolution": "patches"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("adapted by minus", "equal", {"adapting": "minus"}),
    Case("died", "incomplete", {"ends_at": 2}),
]
