"""Digits of which few are labelled: a teacher's confident guesses are a wide net's targets."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass
from functools import cache

import torch
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
)
from tests.diagnosis.workloads.semi_net import (
    CLASSES,
    Teacher,
    WideNet,
    interleaved,
    parted,
    strong,
    weak,
)

_LABELLED, _SHOWN = 40, 16
"""How many digits have labels, and how many others the evaluation sees."""
_MANY = 3
"""Unlabelled digits for each labelled one in a batch."""
_BURN_IN = 60
"""Steps on labelled digits alone."""


@dataclass(frozen=True)
class SemiSupervised(Workload):
    """Labelled, weak and strong views in one forward; the teacher guesses from the weak ones.

    batch: labelled digits a step. activates: whether shortcuts see what was normed and activated.
    renorms: whether aligned probabilities sum to one. inertia: the most that the teacher keeps
        of itself. follows: the "student", or its "self": then both shares are exchanged. copies:
        whether the teacher takes the statistics of norms over.
    threshold: of confidence. over: what the guesses' losses are divided by, "all" digits or the
        "confident" ones. pairing: of logits and views, "undone" or "twice" where batches are
        interleaved. flows: whether the consistency reaches the net.
    unlabelled, agrees: the weights of the guesses' loss and of the consistency. ramp: steps in
        which the latter rises.
    nesterov: of SGD. cycles: how many cosines the learning rate falls along in `whole` steps.
    wakes: whether the net is in training mode again after an evaluation.
    low: whether the nets run under autocast to bfloat16.
    keeps: the activations that are kept for backward, "all" or the blocks' "edges".
    interleaves, norming, pools, aligning, averaging, guessing, missing, layout: other ways to
        write the same mathematics.
    """

    steps: int = 5
    batch: int = 8
    lr: float = 0.015
    weight_decay: float = 5e-4
    activates: bool = True
    renorms: bool = True
    inertia: float = 0.9
    follows: str = "student"
    copies: bool = True
    threshold: float = 0.7
    over: str = "all"
    pairing: str = "undone"
    flows: bool = True
    unlabelled: float = 1.0
    agrees: float = 20.0
    ramp: int = 3
    nesterov: bool = True
    cycles: float = 7 / 16
    whole: int = 12
    wakes: bool = True
    low: bool = False
    keeps: str = "all"
    interleaves: bool = True
    norming: str = "torch"
    pools: str = "features"
    aligning: str = "chances"
    averaging: str = "loop"
    guessing: str = "mask"
    missing: str = "torch"
    layout: torch.memory_format = torch.contiguous_format

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        checkpoint = _checkpoint(1000 * seed + self.init, torch.get_default_dtype())
        with start() as session:
            self.draw(seed)
            model = WideNet(self)
            model.load_state_dict(checkpoint)
            model.to(memory_format=self.layout)
            teacher = Teacher(self, model)
            optimizer = self.sgd(self._groups(model), nesterov=self.nesterov)
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: math.cos(math.pi * self.cycles * step / self.whole)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            session.watch(teacher, tensors="*", prefix="teacher")
            torch.manual_seed(seed)
            for step, (known, labels, unknown) in enumerate(self._batches(seed)):
                if self.evaluates and step > 0 and step % 2 == 0:
                    with session.phase("evaluation"):
                        self._evaluate(model, teacher)
                views = weak(known), weak(unknown), strong(weak(unknown))
                clear(optimizer, self)
                self._learn(model, teacher, views, labels, step)
                optimizer.step()
                schedule.step()
                teacher.follow(model, step)

    def _groups(self, model):
        """What decays, and what does not: biases and norms."""
        flat = {True: 0.0, False: self.weight_decay}
        return [
            {
                "params": [one for one in model.parameters() if (one.ndim < 2) is small],
                "weight_decay": decay,
            }
            for small, decay in flat.items()
        ]

    def _batches(self, seed):
        """Labelled digits with their labels, and unlabelled digits, step by step."""
        images, labels = digits()
        images = images[:-_SHOWN].to(torch.get_default_dtype())
        dealing = torch.Generator().manual_seed(61 + 1000 * seed + self.order)
        for step in range(self.steps):
            known = torch.randint(0, _LABELLED, (self.batch,), generator=dealing)
            unknown = torch.randint(
                _LABELLED, len(images), (_MANY * self.batch,), generator=dealing
            )
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield images[known], labels[known], images[unknown]

    def _net(self, net, images):
        """A net's logits."""
        images = images[:, None].contiguous(memory_format=self.layout)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            logits = net(images)
        return logits.to(images.dtype)

    def _learn(self, model, teacher, views, labels, step):
        """The gradients of one batch."""
        with torch.no_grad():
            chances = teacher(views[1][:, None].contiguous(memory_format=self.layout))
        told = self._joined(model, torch.cat(tuple(views)))
        known, weakly, strongly = told.split([len(view) for view in views])
        labelled = functional.cross_entropy(known, labels)
        guessed = self._guessed(strongly, chances)
        agreed = self._agreed(weakly if self.flows else weakly.detach(), chances)
        rising = min(step / self.ramp, 1.0)
        weight = self.agrees * math.exp(-5 * (1 - rising) ** 2)
        loss = labelled + self.unlabelled * guessed + weight * agreed
        for one, name in (
            (labelled, "labelled_loss"),
            (guessed, "unlabelled_loss"),
            (agreed, "consistency_loss"),
            (loss, "loss"),
        ):
            anchorlib.anchor(one, name)
        loss.backward()

    def _joined(self, model, images):
        """Logits of all views, of one forward, in the order of the views."""
        if not self.interleaves:
            return self._net(model, images)
        size = 1 + 2 * _MANY
        logits = self._net(model, interleaved(images, size))
        return parted(logits, size) if self.pairing == "undone" else interleaved(logits, size)

    def _guessed(self, logits, chances):
        """The loss of strong views against the teacher's guesses, where it is confident."""
        confidence, targets = chances.max(1)
        mask = confidence >= self.threshold
        for one, name in ((confidence, "confidence"), (targets, "targets"), (mask, "mask")):
            anchorlib.anchor(one, name)
        if self.guessing == "chosen":
            sure, names = logits[mask], targets[mask, None]
            missed = sure.logsumexp(1, keepdim=True) - sure.gather(1, names)
            return missed.sum() / len(targets)
        missed = functional.cross_entropy(logits, targets, reduction="none") * mask
        return missed.mean() if self.over == "all" else missed.sum() / mask.sum().clamp(min=1)

    def _agreed(self, logits, chances):
        """How far the student's probabilities of weak views are from the teacher's."""
        mine = logits.softmax(1)
        if self.missing == "torch":
            return functional.mse_loss(mine, chances)
        return (mine - chances).square().sum(1).mean() / CLASSES

    @torch.no_grad()
    def _evaluate(self, model, teacher):
        """The losses of both nets on digits that neither learns from."""
        images, labels = (one[-_SHOWN:] for one in digits())
        images = images.to(torch.get_default_dtype())
        model.eval()
        for net, name in ((model, "eval_loss"), (teacher.net, "teacher_eval_loss")):
            anchorlib.anchor(functional.cross_entropy(self._net(net, images), labels), name)
        model.train(self.wakes)


@cache
def _checkpoint(seed, dtype):
    """What trainings begin with: the weights of a net that learnt the labelled digits alone."""
    how = SemiSupervised()
    images, labels = (one[:_LABELLED] for one in digits())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = WideNet(how)
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True)
        for _ in range(_BURN_IN):
            optimizer.zero_grad()
            logits = model(weak(images.to(dtype))[:, None])
            functional.cross_entropy(logits, labels).backward()
            optimizer.step()
    return {name: one.detach() for name, one in model.state_dict().items()}


_GUESSED = ("unlabelled_loss@*", "loss@*", "output@grad", "head@grad")
_LOSSES = ("labelled_loss@*", "consistency_loss@*", *_GUESSED)
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
CASES = [
    Case(
        "mean over the confident alone",
        "bug",
        {"over": "confident"},
        _GUESSED,
        rf"\bDiv|\bMean|{_TIMES}",
    ),
    Case(
        "aligned but not made to sum to one",
        "bug",
        {"renorms": False},
        ("teacher.output*@value", "confidence@value"),
        rf"\bdiv|\bsums?\b|a factor of its own|{_TIMES}",
    ),
    Case(
        "consistency of detached logits",
        "bug",
        {"flows": False},
        ("output@grad", "head@grad"),
        r"detach|gradients come back|(mse|softmax)\w* .{0,60}(lacks|alone)"
        r"|(lacks|alone).{0,60}(mse|softmax)",
    ),
    Case(
        "interleaved once more",
        "bug",
        {"pairing": "twice"},
        _LOSSES,
        rf"{_ORDER}|{_GIVEN}|permute|transpose|\bview|reshape|unflatten|\bsplit",
    ),
    Case(
        "statistics not taken over",
        "bug",
        {"copies": False},
        ("teacher.net.*running_*@value", "teacher.net.*num_batches_tracked@value"),
        r"running_(mean|var)|num_batches_tracked|\bbuffers?\b",
        step=1,
    ),
    Case(
        "shares of teacher and student exchanged",
        "bug",
        {"follows": "self"},
        ("teacher.net.*weight@value", "teacher.net.*bias@value"),
        r"\btimes\b|\blerp|\bmul_?\b|\badd_?\b|moving (mean|average)",
        step=1,
    ),
    Case(
        "asleep after an evaluation",
        "bug",
        {"wakes": False},
        ("blocks.0.norm1@value",),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        step=2,
        reference={"evaluates": True},
    ),
    Case(
        "shortcuts of what is not activated",
        "bug",
        {"activates": False},
        ("*blocks.0.shortcut@value",),
        rf"{_GIVEN}|computes it from|leaky|\bnorm1\b|\bact1\b",
    ),
    Case(
        "statistics count the recomputed blocks",
        "bug",
        {"keeps": "edges"},
        ("*blocks.*running_*@value", "*blocks.*num_batches_tracked@value"),
        r"running_(mean|var)|num_batches_tracked|\bbuffers?\b|twice|checkpoint|recompute",
        step=1,
    ),
    Case("momentum without Nesterov", "bug", {"nesterov": False}, UPDATES, r"nesterov"),
    Case("views not interleaved", "benign", {"interleaves": False}),
    Case("confident views chosen before the loss", "benign", {"guessing": "chosen"}),
    Case("consistency by its formula", "benign", {"missing": "own"}),
    Case("alignment of logits", "benign", {"aligning": "logits"}),
    Case("teacher's mean at once", "benign", {"averaging": "foreach"}),
    Case("classes of places, then their mean", "benign", {"pools": "logits"}),
    Case("own batch norm", "benign", {"norming": "own"}),
    Case(
        "channels last, low precision",
        "benign",
        {"layout": torch.channels_last},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("*input*@value",)),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("evaluated", "equal", {"evaluates": True}),
    Case("died", "incomplete", {"ends_at": 3}),
]
