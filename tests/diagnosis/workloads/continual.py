"""Tasks that are learnt one after the other: elastic weight consolidation and a replay buffer."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

import torch
from torch.nn import functional
from torch.nn.utils import parameters_to_vector

import anchorlib
from tests.diagnosis.workloads.base import (
    UPDATES,
    Case,
    EndedError,
    Start,
    Workload,
    clear,
    digits,
)
from tests.diagnosis.workloads.continual_net import Net, Reservoir

_TASKS, _WAYS = 3, 3
"""Tasks, and how many digits each of them tells apart."""
_CAPACITY = 10
_REPLAYED = 8
_KNOWN = 8
"""Samples of a task that its Fisher information is estimated from."""
_SHOWN = 12
"""Samples of a task that the evaluation sees."""


@dataclass(frozen=True)
class Continual(Workload):
    """Digits 0 to 8 in three tasks: the trunk is held where earlier tasks need it.

    dropout: its share. low: whether the net runs under autocast to bfloat16.
    strength: λ of the penalty. remembers: whether old parameters are a "clone" or an "alias".
    holds: the tasks whose penalties count, "all" earlier ones or the "last".
    pulls: whether the penalty's gradient reaches the parameters.
    squares: what is squared, the gradient of "each" sample or of their "mean". pools: how squares
        are pooled, by their "mean" or "sum". axis: of the softmax that likelihoods come from.
        rests: whether the model is in eval mode while the Fisher information is estimated.
    among: what the reservoir draws slots among. own_heads: whether replayed samples are told by
        the head of their own task, else by the current one's. replay: the weight of the replayed
        samples' loss. over: whether it is a "mean" or a "sum".
    falls: the factor of the learning rate from step to step. resets: whether each task begins with
        the first rate.
    evaluates: whether tasks that are not yet learnt are evaluated too.
    heads, penalty, replays, fisher, norming, checkpointed: other ways to write the same
        mathematics.
    """

    batch: int = 12
    lr: float = 0.05
    weight_decay: float = 0.0
    dropout: float = 0.1
    low: bool = False
    strength: float = 100.0
    remembers: str = "clone"
    holds: str = "all"
    pulls: bool = True
    squares: str = "each"
    pools: str = "mean"
    axis: int = 1
    rests: bool = True
    among: str = "seen"
    own_heads: bool = True
    replay: float = 0.5
    over: str = "mean"
    falls: float = 0.5
    resets: bool = True
    heads: str = "chosen"
    penalty: str = "each"
    replays: str = "together"
    fisher: str = "together"
    norming: str = "torch"
    checkpointed: bool = False

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self, _TASKS, _WAYS)
            optimizer = self.sgd(model.parameters())
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            buffer = Reservoir(_CAPACITY, 91 + 1000 * seed, self.among)
            memories = []
            dealing = torch.Generator().manual_seed(77 + 1000 * seed + self.order)
            streams = [_deal(task, dealing) for task in range(_TASKS)]
            length = self.steps // _TASKS
            for task, (images, labels) in enumerate(streams):
                for at in range(length):
                    self._end(task * length + at)
                    self._slow(optimizer, at if self.resets else task * length + at)
                    part = slice(at * self.batch, (at + 1) * self.batch)
                    batch = (images[part], labels[part], torch.full((self.batch,), task))
                    clear(optimizer, self)
                    self._learn(model, batch, buffer, memories)
                    optimizer.step()
                    buffer.add(*batch)
                memories.append(self._consolidate(model, images[:_KNOWN], labels[:_KNOWN], task))
                known = _TASKS if self.evaluates else task + 1
                self._evaluate(model, streams[:known])

    def _end(self, step):
        """Die, if told to."""
        if step == self.ends_at:
            raise EndedError
        if step == self.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def _slow(self, optimizer, steps):
        """The rate after so many steps."""
        for group in optimizer.param_groups:
            group["lr"] = self.lr * self.falls**steps

    def _told(self, model, images):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            return model(images).to(images.dtype)

    def _learn(self, model, batch, buffer, memories):
        """The gradients of a step: of new samples, of replayed ones, and of the penalty."""
        parts = [batch]
        if buffer.kept:
            images, labels, tasks = buffer.draw(_REPLAYED)
            tasks = tasks if self.own_heads else torch.full_like(tasks, int(batch[2][0]))
            parts.append((images, labels, tasks))
        costs = self._costs(model, parts)
        loss = anchorlib.anchor(costs[0].mean(), "task_loss")
        for cost in costs[1:]:
            replayed = cost.mean() if self.over == "mean" else cost.sum()
            loss = loss + self.replay * anchorlib.anchor(replayed, "replay_loss")
        memories = memories if self.holds == "all" else memories[-1:]
        if memories:
            loss = loss + anchorlib.anchor(self._penalty(model.trunk, memories), "penalty")
        anchorlib.anchor(loss, "loss").backward()
        if self.penalty == "by hand":
            self._pull(model.trunk, memories)

    def _costs(self, model, parts):
        """The cross-entropies of each part's samples."""
        if self.replays == "apart":
            return [
                self._missed(self._told(model, images), labels, tasks)
                for images, labels, tasks in parts
            ]
        sizes = [len(images) for images, *_ in parts]
        images, labels, tasks = (torch.cat(one) for one in zip(*parts, strict=True))
        if self.turned:
            told = self._told(model, images.flip(0))
            costs = self._missed(told, labels.flip(0), tasks.flip(0))
            return costs.split(sizes[::-1])[::-1]
        return self._missed(self._told(model, images), labels, tasks).split(sizes)

    def _missed(self, told, labels, tasks):
        """The cross-entropies of samples, each among the digits of its task."""
        if self.heads == "chosen":
            chosen = told[torch.arange(len(told)), tasks]
            return functional.cross_entropy(chosen, labels, reduction="none")
        others = torch.arange(_TASKS * _WAYS) // _WAYS != tasks[:, None]
        logits = told.flatten(1).masked_fill(others, -torch.inf)
        return functional.cross_entropy(logits, labels + _WAYS * tasks, reduction="none")

    def _penalty(self, trunk, memories):
        """What it costs to leave the parameters of earlier tasks."""
        if self.penalty == "by hand":
            with torch.no_grad():
                return self._summed(trunk, memories)
        if self.penalty == "flat":
            vector = parameters_to_vector(trunk.parameters())
            moved = [
                (vector - parameters_to_vector(old.values()), parameters_to_vector(fisher.values()))
                for fisher, old in memories
            ]
            return self.strength / 2 * sum(far @ (fisher * far) for far, fisher in moved)
        if self.penalty == "stacked":
            costs = []
            for name, parameter in trunk.named_parameters():
                fisher, old = (
                    torch.stack([memory[part][name] for memory in memories]) for part in (0, 1)
                )
                costs.append((fisher * (parameter - old) ** 2).sum())
            return self.strength / 2 * torch.stack(costs).sum()
        return self._summed(trunk, memories)

    def _summed(self, trunk, memories):
        """The penalty, task by task and parameter by parameter."""
        cost = 0.0
        for fisher, old in memories:
            for name, parameter in trunk.named_parameters():
                here = parameter if self.pulls else parameter.data
                cost = cost + (fisher[name] * (here - old[name]) ** 2).sum()
        return self.strength / 2 * cost

    @torch.no_grad()
    def _pull(self, trunk, memories):
        """Add the penalty's gradient."""
        for fisher, old in memories:
            for name, parameter in trunk.named_parameters():
                parameter.grad.add_(
                    fisher[name] * (parameter - old[name]),
                    alpha=self.strength,
                )

    def _consolidate(self, model, images, labels, task):
        """The trunk's empirical Fisher information at the end of a task, and its parameters."""
        model.train(not self.rests)
        if self.fisher == "together":
            likelihoods = self._likelihoods(model, images, labels, task)
        else:
            singles = zip(images.split(1), labels.split(1), strict=True)
            likelihoods = torch.cat([self._likelihoods(model, *one, task) for one in singles])
        anchorlib.anchor(likelihoods, "log_likelihoods")
        parameters = dict(model.trunk.named_parameters())
        told = likelihoods if self.squares == "each" else likelihoods.mean(0, keepdim=True)
        grads = [
            torch.autograd.grad(one, list(parameters.values()), retain_graph=True) for one in told
        ]
        fisher = {}
        for name, own in zip(parameters, zip(*grads, strict=True), strict=True):
            squares = torch.stack(own).square()
            pooled = squares.mean(0) if self.pools == "mean" else squares.sum(0)
            fisher[name] = anchorlib.anchor(pooled, f"fisher.{name}")
        model.train()
        old = {name: one.detach() for name, one in parameters.items()}
        if self.remembers == "clone":
            old = {name: one.clone() for name, one in old.items()}
        return fisher, old

    def _likelihoods(self, model, images, labels, task):
        """The logarithms of how likely samples' labels are."""
        logits = self._told(model, images)[:, task]
        return logits.log_softmax(self.axis).gather(1, labels[:, None])[:, 0]

    @torch.no_grad()
    def _evaluate(self, model, streams):
        """The losses of tasks, of samples that are not learnt from."""
        model.eval()
        for task, (images, labels) in enumerate(streams):
            tasks = torch.full((_SHOWN,), task)
            costs = self._missed(self._told(model, images[-_SHOWN:]), labels[-_SHOWN:], tasks)
            anchorlib.anchor(costs.mean(), f"eval_loss.{task}")
        model.train()


def _deal(task, dealing):
    """The images and labels of a task's digits, in a drawn order; labels count from 0."""
    images, labels = digits()
    own = (labels // _WAYS == task).nonzero()[:, 0]
    own = own[torch.randperm(len(own), generator=dealing)]
    return images[own, None].to(torch.get_default_dtype()), labels[own] % _WAYS


_FISHER = ("fisher.*@value",)
_PENALTY = ("penalty@*", "loss@*")
_REPLAY = ("replay_loss@*", "loss@*", "output*@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "square of the mean gradient",
        "bug",
        {"squares": "mean"},
        (*_FISHER, "log_likelihoods@grad", "output*@grad"),
        rf"\bMean|\bSquare|\bPow|\bUnbind|\bSelect|\d passes|{_TIMES}|{_GIVEN}",
        2,
    ),
    Case(
        "Fisher information summed",
        "bug",
        {"pools": "sum"},
        _FISHER,
        rf"\bMean|\bSum|\bDiv|{_TIMES}",
        2,
    ),
    Case(
        "softmax over samples",
        "bug",
        {"axis": 0},
        ("log_likelihoods@*",),
        r"\bdim\b|\baxis\b",
        2,
    ),
    Case(
        "Fisher information in training mode",
        "bug",
        {"rests": False},
        ("drop@value",),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        2,
    ),
    Case(
        "old parameters not cloned",
        "bug",
        {"remembers": "alias"},
        _PENALTY,
        rf"\bSub(Backward|\b)|\bclone|\balias|{_TIMES}|{_GIVEN}|\b(all|only) zeros?\b|\bis 0\b",
        3,
    ),
    Case(
        "penalty of the last task alone",
        "bug",
        {"holds": "last"},
        _PENALTY,
        rf"\bAdd(Backward|\b)|\bSum(Backward|\b)|\bMul(Backward|\b)|{_TIMES}|{_GIVEN}",
        4,
    ),
    Case(
        "penalty of parameters' data",
        "bug",
        {"pulls": False},
        ("penalty@grad", "trunk.*weight@*grad", "trunk.*bias@*grad"),
        rf"{_DETACHED}|\b(Sub|Pow|Mul|Add)\w* .{{0,60}}(lacks|alone)"
        r"|(lacks|alone|without).{0,60}\b(Sub|Pow|Mul|Add)",
    ),
    Case(
        "replayed through the current head",
        "bug",
        {"own_heads": False},
        _REPLAY,
        rf"\bIndex|indices|{_GIVEN}|another order|arranged otherwise",
        2,
    ),
    Case(
        "replayed losses summed",
        "bug",
        {"over": "sum"},
        _REPLAY,
        rf"\bMean|\bSum(Backward|\b)|{_TIMES}",
        1,
    ),
    Case("rate not reset at a task", "bug", {"resets": False}, UPDATES, r"\blr\b", 2),
    Case("one head, other tasks masked", "benign", {"heads": "masked"}),
    Case("penalty's gradient by hand", "benign", {"penalty": "by hand"}),
    Case("penalty by flat vectors", "benign", {"penalty": "flat"}),
    Case("penalties of all tasks at once", "benign", {"penalty": "stacked"}),
    Case(
        "replayed in a forward of their own",
        "benign",
        {"replays": "apart"},
        reference={"dropout": 0.0},
    ),
    Case("Fisher information sample by sample", "benign", {"fisher": "single"}),
    Case("samples turned", "benign", {"turned": True}, reference={"dropout": 0.0}),
    Case("own norms, low precision", "benign", {"norming": "own"}, reference={"low": True}),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("newest samples always kept", "data", {"among": "kept"}, ("input*@value",)),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("blocks computed again", "equal", {"checkpointed": True}),
    Case("unlearnt tasks evaluated", "equal", {"evaluates": True}),
    Case("died", "incomplete", {"ends_at": 3}),
]
