"""Deep embedded clustering of digits: an autoencoder whose codes are pulled to learnt centres."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

import torch
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import (
    Case,
    EndedError,
    Start,
    Workload,
    clear,
    digits,
    renamed,
)
from tests.diagnosis.workloads.grouping import Grouping, means

_COUNT = 120
"""Images that are clustered."""
_CHUNK = 24
"""Images whose targets are made at once where those of the set are not."""


@dataclass(frozen=True)
class Clusterer(Workload):
    """An autoencoder that was trained before; its codes' assignments approach sharper ones.

    squares: whether distances to centres are squared. alpha: of the kernel. over: assignments add
        up to one over "centres" or over "samples". pulls: whether assignments move the encoder.
    every: steps between renewals of the target. renews: the target is made of the whole "set" every
        few steps, of the set "once", or of each "batch". sharpens: it is made of all assignments
        "together" or of each "chunk". divides: whether squared assignments are divided by how
        many samples a centre has. holds: whether gradients stop at the target.
    wakes: whether the model is in training mode again after a renewal. rows: where a batch's target
        stands in the whole one, at its samples' "indices" or at its "places" in the epoch.
    divergence: of the assignments from the target, the "other" way round, or without a "log".
        over_batch: it is divided by how many samples there are, else by how many numbers.
    share: the factor of the divergence. learns: whether centres are given to the optimizer.
    clears: whether gradients are forgotten.
    low: whether the net runs under autocast to bfloat16.
    linear, distances, kernel, kl: other ways to write the same mathematics. names: other names of
        submodules. logs: whether what was assigned is counted.
    """

    lr: float = 3e-3
    weight_decay: float = 0.0
    decoupled: bool = False
    squares: bool = True
    alpha: float = 1.0
    over: str = "centres"
    pulls: bool = True
    every: int = 2
    renews: str = "set"
    sharpens: str = "together"
    divides: bool = True
    holds: bool = True
    wakes: bool = True
    rows: str = "indices"
    divergence: str = "right"
    over_batch: bool = True
    share: float = 0.1
    learns: bool = True
    clears: bool = True
    low: bool = False
    linear: str = "torch"
    kernel: str = "powers"
    distances: str = "differences"
    kl: str = "torch"
    names: tuple[tuple[str, str], ...] = ()
    logs: bool = False

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        images = digits()[0][:_COUNT, None]
        before = self._before(images, seed)
        with start() as session:
            model = Grouping(self)
            model.load_state_dict(before)
            renamed(model, dict(self.names))
            optimizer = self.adam(
                one
                for name, one in model.named_parameters()
                if self.learns or "centres" not in name
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            sizes, targets = [], None
            for step, chosen in enumerate(self._dealt(seed)):
                if self._renews(step):
                    targets = self._targets(model, images)
                if self.clears:
                    clear(optimizer, self)
                batch = images[chosen]
                with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
                    assigned, told = model(batch)
                target = self._target(assigned, targets, chosen, step)
                self._loss(assigned, target, told.to(batch.dtype), batch).backward()
                optimizer.step()
                if self.logs:
                    sizes.append(assigned.detach().argmax(1).bincount().tolist())

    def _before(self, images, seed):
        """What an autoencoder has learnt that was trained by itself, and centres of its codes."""
        self.draw(seed)
        model = Grouping(Clusterer())
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(15):
            batch = images[torch.randint(0, len(images), (32,))]
            optimizer.zero_grad()
            functional.mse_loss(model(batch)[1], batch).backward()
            optimizer.step()
        with torch.no_grad():
            model.cluster.centres.copy_(means(model.eval().encoder(images), seed + self.init))
        return model.state_dict()

    def _dealt(self, seed):
        """The indices of each batch of an epoch."""
        dealing = torch.Generator().manual_seed(91 + 1000 * seed + self.order)
        dealt = torch.randperm(_COUNT, generator=dealing).split(self.batch)
        for step, chosen in enumerate(dealt[: self.steps]):
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield chosen.flip(0) if self.turned else chosen

    def _renews(self, step):
        """Whether the target of the whole set is made anew."""
        return step == 0 if self.renews == "once" else step % self.every == 0

    @torch.no_grad()
    def _targets(self, model, images):
        """The target of the whole set."""
        model.eval()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            assigned, _ = model(images)
        model.train(self.wakes)
        parts = [assigned] if self.sharpens == "together" else assigned.split(_CHUNK)
        return torch.cat([self._sharp(part) for part in parts])

    def _sharp(self, assigned):
        """Assignments that are surer, and give no centre more than its due."""
        weight = assigned**2 / assigned.sum(0) if self.divides else assigned**2
        return weight / weight.sum(1, keepdim=True)

    def _target(self, assigned, targets, chosen, step):
        """The target of a batch."""
        if self.renews == "batch":
            target = self._sharp(assigned)
            target = target.detach() if self.holds else target
        else:
            places = torch.arange(step * self.batch, (step + 1) * self.batch)
            target = targets[chosen if self.rows == "indices" else places]
        return anchorlib.anchor(target, "target")

    def _loss(self, assigned, target, told, images):
        """How far assignments are from their target, and images from what is decoded."""
        apart = anchorlib.anchor(self.share * self._apart(assigned, target), "kl_loss")
        missed = anchorlib.anchor(functional.mse_loss(told, images), "rec_loss")
        return anchorlib.anchor(apart + missed, "loss")

    def _apart(self, assigned, target):
        """The divergence."""
        if self.kl == "own":
            return (target * (target / assigned).log()).sum() / len(target)
        given = {
            "right": (assigned.log(), target),
            "other": (target.log(), assigned),
            "no log": (assigned, target),
        }
        reduction = "batchmean" if self.over_batch else "mean"
        return functional.kl_div(*given[self.divergence], reduction=reduction)


_CLUSTER = ("cluster@value", "output@value")
_TARGET = ("target@value",)
_LOSS = ("kl_loss@*", "output@grad", "cluster@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case("distances not squared", "bug", {"squares": False}, _CLUSTER, r"sqrt|\bnorm|\bPow"),
    Case(
        "alpha of five",
        "bug",
        {"alpha": 5.0},
        _CLUSTER,
        rf"\balpha\b|\bDiv|\bPow|exponent|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "assignments over samples",
        "bug",
        {"over": "samples"},
        _CLUSTER,
        r"\bdim\b|\bSum(Backward|\b)|\baxis\b|keepdim",
    ),
    Case(
        "encoder not pulled",
        "bug",
        {"pulls": False},
        ("encoder@grad", "encoder.embed@*grad", "encoder.embed.*@*grad"),
        rf"{_DETACHED}|\bSub\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}\bSub",
    ),
    Case(
        "target never renewed",
        "bug",
        {"renews": "once"},
        _TARGET,
        r"stale|renew|as in step|of step [01]\b|unchanged|(eval|forward).{0,80}(alone|lacks|only)|"
        r"(alone|lacks|only).{0,80}(eval|forward)",
        step=2,
    ),
    Case(
        "target of the places",
        "bug",
        {"rows": "places"},
        _TARGET,
        rf"\b[Ii]ndex|indices|{_ORDER}|{_GIVEN}|other rows",
        step=0,
    ),
    Case(
        "target not divided by sizes",
        "bug",
        {"divides": False},
        _TARGET,
        rf"\bdiv|\bsum\b|{_TIMES}|{_GIVEN}",
        step=0,
    ),
    Case(
        "target chunk by chunk",
        "bug",
        {"sharpens": "chunk"},
        _TARGET,
        rf"\bdiv|\bsum\b|\bsplit|\bcat\b|{_GIVEN}",
        step=0,
    ),
    Case(
        "target attached",
        "bug",
        {"holds": False},
        ("cluster@grad", "output@grad", "target@grad"),
        _DETACHED,
        reference={"renews": "batch"},
    ),
    Case(
        "divergence the other way",
        "bug",
        {"divergence": "other"},
        _LOSS,
        rf"{_GIVEN}|{_ORDER}|exchanged|swapped|xlogy|\bLog(Backward|\b)|\bMul",
    ),
    Case(
        "divergence without a log",
        "bug",
        {"divergence": "no log"},
        _LOSS,
        rf"\bLog(Backward|\b)|{_GIVEN}",
    ),
    Case(
        "mean over all numbers",
        "bug",
        {"over_batch": False},
        _LOSS,
        rf"{_TIMES}|\bDiv|\bMean|reduction",
    ),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("encoder.norm@value", "encoder.norm.running*@*", "encoder.norm.num_batches*@*"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        step=0,
    ),
    Case(
        "centres not given to the optimizer",
        "bug",
        {"learns": False},
        ("cluster.centres@*",),
        r"centres.{0,200}(alone|lacks|\bnot|\bonly|\bno )|no optimizer|is not updated",
    ),
    Case(
        "gradients not forgotten",
        "bug",
        {"clears": False},
        ("*.weight@grad", "*.bias@grad", "*.centres@grad"),
        r"zero_grad|accumul|left over|not cleared|not zeroed|earlier (step|pass)",
        step=1,
    ),
    Case("assignments by softmax", "benign", {"kernel": "logs"}),
    Case("distances by cdist", "benign", {"distances": "cdist"}),
    Case("divergence by hand", "benign", {"kl": "own"}),
    Case("fused Adam", "benign", {"implementation": "fused"}),
    Case("codes by einsum, low precision", "benign", {"linear": "einsum"}, reference={"low": True}),
    Case("other init", "data", {"init": 1}, ("*weight@value", "*bias@value", "*centres@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("layers renamed", "equal", {"names": (("embed", "fc"), ("norm", "bn1"))}),
    Case("sizes counted", "equal", {"logs": True}),
    Case("died", "incomplete", {"ends_at": 3}),
]
