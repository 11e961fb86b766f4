"""Co-teaching: digits with partly wrong labels; each of two nets chooses for the other one."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

import torch
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import Case, EndedError, Start, Workload, clear, digits
from tests.diagnosis.workloads.coteacher_net import Peers

_KNOWN = 1500
"""Digits that are learnt from, with labels of which some are wrong; later ones stay clean."""
_SHOWN = 24
"""Clean digits that the evaluation sees."""
_WRONG = 0.3
"""The share of labels that are those of the next digit."""


@dataclass(frozen=True)
class CoTeacher(Workload):
    """Small losses are likely those of right labels: a net learns where its peer's are small.

    alike: whether both nets begin with the same parameters. dropout: its share of channels.
        averages: what the head is given the mean of, "pixels" or "channels".
    learns: the samples of whose choice, the "peer"'s or its "own". forget: the share that is
        forgotten at last. gradual: the steps in which that share rises from nothing, 1: at once.
    over: kept losses are divided by their number, "kept", or by that of the "batch".
    loss: the cross-entropy that is learnt by, "bootstrapped" or "generalized". belief: how much of
        a bootstrapped target is the label. target: whether a net's own part of it is "detached" or
        "attached". q: of the generalized one. divides: whether it is divided by q.
    clears: whose gradients are forgotten before a step, "both" nets' or the "first" one's.
    nesterov: the nets whose momentum looks ahead, "both" or the "first". holds: steps before the
        learning rate falls.
    wakes: the nets in training mode again after an evaluation, "both" or the "first".
    convolution, norming, ranking, choosing, boot, power, backward: other ways to write the same
        mathematics.
    """

    batch: int = 32
    lr: float = 0.05
    weight_decay: float = 1e-3
    alike: bool = False
    dropout: float = 0.2
    averages: str = "pixels"
    learns: str = "peer"
    forget: float = 0.3
    gradual: int = 4
    over: str = "kept"
    loss: str = "bootstrapped"
    belief: float = 0.8
    target: str = "detached"
    q: float = 0.7
    divides: bool = True
    clears: str = "both"
    nesterov: str = "both"
    holds: int = 3
    wakes: str = "both"
    convolution: str = "torch"
    norming: str = "torch"
    ranking: str = "argsort"
    choosing: str = "index"
    boot: str = "target"
    power: str = "pow"
    backward: str = "each"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Peers(self)
            optimizers = [self._optimizer(model.one), self._optimizer(model.two, "second")]
            schedules = [
                torch.optim.lr_scheduler.LambdaLR(optimizer, self._rate) for optimizer in optimizers
            ]
            session.watch(model, tensors="*", optimizer=optimizers)
            torch.manual_seed(seed)
            for step, (images, labels, right) in enumerate(self._dealt(seed)):
                if step % 2 == 0:
                    self._evaluate(model)
                told = model(images)
                chosen = self._chosen(told, labels, right, self._count(step))
                self._learn(optimizers, self._losses(told, labels, chosen))
                for schedule in schedules:
                    schedule.step()

    def _optimizer(self, net, which="first"):
        """SGD that looks ahead."""
        return self.sgd(
            net.parameters(),
            nesterov=self.nesterov in ("both", which),
            fused=self.implementation == "fused",
        )

    def _rate(self, step):
        """The factor of the learning rate: one, then it falls as a line."""
        return min(1.0, (self.steps + 1 - step) / (self.steps + 1 - self.holds))

    def _count(self, step):
        """How many samples of a batch are remembered: all at first, as nets learn the right ones
        before they learn the wrong ones by heart."""
        rises = [self.forget * at / max(self.gradual - 1, 1) for at in range(self.gradual)]
        rate = rises[step] if step < self.gradual > 1 else self.forget
        return int((1 - rate) * self.batch)

    def _dealt(self, seed):
        """A batch of digits a step, their labels, and which of these are right."""
        images, truth = digits()
        images = images.to(torch.get_default_dtype())
        erring = torch.Generator().manual_seed(7)
        wrong = torch.rand(len(truth), generator=erring, dtype=torch.float32) < _WRONG
        labels = torch.where(wrong, (truth + 1) % 10, truth)
        dealing = torch.Generator().manual_seed(61 + 1000 * seed + self.order)
        for step in range(self.steps):
            chosen = torch.randperm(_KNOWN, generator=dealing)[: self.batch]
            chosen = chosen.flip(0) if self.turned else chosen
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield images[chosen], labels[chosen], ~wrong[chosen]

    @torch.no_grad()
    def _evaluate(self, model):
        """The loss of both nets on digits whose labels are right."""
        model.eval()
        images, labels = (one[_KNOWN : _KNOWN + _SHOWN] for one in digits())
        told = model(images.to(torch.get_default_dtype()))
        anchorlib.anchor(
            sum(functional.cross_entropy(logits, labels) for logits in told) / 2, "clean_loss"
        )
        model.train()
        if self.wakes == "first":
            model.two.eval()

    @torch.no_grad()
    def _chosen(self, told, labels, right, count):
        """What either net is given to learn from: where the other one has small losses."""
        chosen = []
        for logits, name in zip(told, ("costs_one", "costs_two"), strict=True):
            costs = functional.cross_entropy(logits, labels, reduction="none")
            anchorlib.anchor(costs, name)
            if self.choosing == "mask":
                chosen.append(costs <= costs.kthvalue(count).values)
            elif self.ranking == "argsort":
                chosen.append(costs.argsort()[:count])
            else:
                chosen.append(costs.topk(count, largest=False).indices)
        # Of what is chosen, the share whose labels are right: the figure that all runs are told by.
        pure = [right[kept].to(told[0].dtype).mean() for kept in chosen]
        anchorlib.anchor(sum(pure) / 2, "pure")
        return chosen[::-1] if self.learns == "peer" else chosen

    def _losses(self, told, labels, chosen):
        """The loss of either net where it learns."""
        losses = []
        for logits, kept, name in zip(told, chosen, ("loss_one", "loss_two"), strict=True):
            if self.choosing == "index":
                loss = self._costs(logits[kept], labels[kept]).mean()
            else:
                mask = kept.to(logits.dtype)
                total = mask.sum() if self.over == "kept" else len(mask)
                loss = (self._costs(logits, labels) * mask).sum() / total
            losses.append(anchorlib.anchor(loss, name))
        return losses

    def _costs(self, logits, labels):
        """Each sample's loss, by a cross-entropy that wrong labels move less."""
        if self.loss == "bootstrapped":
            return self._bootstrapped(logits, labels)
        if self.power == "pow":
            missed = 1 - logits.softmax(1).gather(1, labels[:, None])[:, 0] ** self.q
        else:
            missed = -torch.expm1(
                -self.q * functional.cross_entropy(logits, labels, reduction="none")
            )
        return missed / self.q if self.divides else missed

    def _bootstrapped(self, logits, labels):
        """The cross-entropy to the label, and in part to what the net believes itself."""
        own = logits.softmax(1)
        own = own.detach() if self.target == "detached" else own
        if self.boot == "terms":
            named = functional.cross_entropy(logits, labels, reduction="none")
            believed = -(own * logits.log_softmax(1)).sum(1)
            return self.belief * named + (1 - self.belief) * believed
        hot = functional.one_hot(labels, logits.shape[1]).to(logits.dtype)
        target = self.belief * hot + (1 - self.belief) * own
        if self.boot == "logsumexp":  # a target sums to one
            return logits.logsumexp(1) - (target * logits).sum(1)
        return -(target * logits.log_softmax(1)).sum(1)

    def _learn(self, optimizers, losses):
        """A step of either net."""
        if self.backward == "at once":  # the nets share nothing, so that no gradient is summed
            for optimizer in optimizers:
                clear(optimizer, self)
            sum(losses).backward()
            for optimizer in optimizers:
                optimizer.step()
            return
        for at, (optimizer, loss) in enumerate(zip(optimizers, losses, strict=True)):
            if at == 0 or self.clears == "both":
                clear(optimizer, self)
            loss.backward()
            optimizer.step()


_TOLD = ("output@grad", "output:1@grad", "one@grad", "two@grad", "*.head@grad")
"""The gradients of the logits, by all of their names."""
_LOSS = ("loss_one@*", "loss_two@*", *_TOLD)
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along|other (rows|samples)"
"""Words that name elements or operands which change places."""
_KEPT = r"\bIndex|indices|\bmask|\bcounts?\b|\bshapes?\b|\bsizes?\b|elements"
"""Words that name which samples are kept, or how many."""
CASES = [
    Case(
        "each net learns by its own choice",
        "bug",
        {"learns": "own"},
        _LOSS,
        rf"\bIndex|indices|\bmask|{_ORDER}|{_GIVEN}",
        step=1,
    ),
    Case(
        "forgets from the first step on",
        "bug",
        {"gradual": 1},
        (*_LOSS, "pure@value"),
        rf"{_KEPT}|\bMean|\bDiv|{_GIVEN}",
        step=0,
    ),
    Case(
        "kept losses over the whole batch",
        "bug",
        {"over": "batch"},
        _LOSS,
        rf"\bDiv|\bMean|{_TIMES}",
        step=1,
        reference={"choosing": "mask"},
    ),
    Case(
        "bootstrapped target attached",
        "bug",
        {"target": "attached"},
        _TOLD,
        r"detach|gradients come back|softmax\w* .{0,60}(lacks|alone)|(lacks|alone).{0,60}softmax",
    ),
    Case(
        "generalized loss not divided by q",
        "bug",
        {"divides": False},
        _LOSS,
        rf"\bDiv|\bMul|{_TIMES}",
        reference={"loss": "generalized"},
    ),
    Case(
        "second net's gradients pile up",
        "bug",
        {"clears": "first"},
        ("two.*@grad",),
        r"zero_grad|accumulat|\bclear|zeroed|pile|earlier step|(step|gradient)s? before|"
        r"previous|last step|\bpass_grad",
        step=1,
    ),
    Case(
        "second net without Nesterov",
        "bug",
        {"nesterov": "first"},
        ("two.*@updated", "two.*@delta", "two.*@opt.*"),
        r"nesterov",
    ),
    Case(
        "second net still in eval mode",
        "bug",
        {"wakes": "first"},
        ("two.norms.0@value", "two.norms.0.running*@value"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
    ),
    Case(
        "mean over channels, not pixels",
        "bug",
        {"averages": "channels"},
        ("*.pool@value", "*.head.input@value"),
        r"\bdim\b|\bMean",
    ),
    Case("small losses by a mask", "benign", {"choosing": "mask"}),
    Case("bootstrapping as two terms", "benign", {"boot": "terms"}),
    Case("bootstrapping by logsumexp", "benign", {"boot": "logsumexp"}),
    Case(
        "generalized loss by expm1",
        "benign",
        {"power": "expm1"},
        reference={"loss": "generalized"},
    ),
    Case("own batch norm", "benign", {"norming": "own"}),
    Case("convolutions of patches", "benign", {"convolution": "patches"}),
    Case("fused SGD", "benign", {"implementation": "fused"}),
    Case("samples turned", "benign", {"turned": True}, reference={"dropout": 0.0}),
    Case(
        "both nets begin alike",
        "data",
        {"alike": True},
        ("two.*weight@value", "two.*bias@value"),
    ),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("small losses by topk", "equal", {"ranking": "topk"}),
    Case("one backward for both nets", "equal", {"backward": "at once"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
