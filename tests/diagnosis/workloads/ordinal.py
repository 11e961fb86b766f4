"""Ordinal regression: how much ink a digit has, as one of 8 groups, told by 7 ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, digits, warmed
from tests.diagnosis.workloads.ordinal_net import Net

_GROUPS = 8
_RANKS = _GROUPS - 1
_SHOWN = 24
"""Images that the evaluation sees."""
_AGE = 0.3
"""The weight of the loss of expected groups."""


@dataclass(frozen=True)
class Ordinal(Workload):
    """A group is a row of levels: whether it is above each rank. Each level is told by itself.

    tasks: whether ranks have "shared" weights and all samples, or are "conditional": each learns
        from samples that are above the rank before it, and chances are products.
    reached: whether levels hold what is "above" a rank or also what is "at" it. counted: the labels
        that the importance of a rank is made of, those "above" it or those "at" it.
    lowers: whether thresholds are subtracted, else added. squashes: whether the net ends in a
        sigmoid. rests: whether dropout rests in an evaluation. dropout: its share.
    subset: whether a conditional rank's samples have "reached" or also "passed" it.
    keeps: whether expected groups keep the axis of ranks. flows: whether their loss has a gradient.
    cuts_decay: whether thresholds decay, as weights do. warmup: steps of rising rate.
    encoding, losses, norming, sharing, looping, expecting: other ways to write the same
        mathematics.
    """

    batch: int = 24
    lr: float = 0.1
    weight_decay: float = 1e-2
    tasks: str = "shared"
    reached: str = "above"
    counted: str = "above"
    lowers: bool = True
    squashes: bool = False
    rests: bool = True
    dropout: float = 0.2
    subset: str = "reached"
    keeps: bool = False
    flows: bool = True
    cuts_decay: bool = False
    warmup: int = 3
    encoding: str = "comparison"
    losses: str = "own"
    norming: str = "torch"
    sharing: str = "score"
    looping: str = "loop"
    expecting: str = "ranks"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self, _RANKS)
            optimizer = self.sgd(self._groups(model), nesterov=True)
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 10)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            mirrors = torch.Generator().manual_seed(31 + 1000 * seed + self.order)
            importance = self._importance()
            for step, (images, _) in enumerate(self.images(seed)):
                groups = _grouped(images)
                model.train()
                clear(optimizer, self)
                logits = model(self._mirrored(images, mirrors))
                self._loss(logits, groups, importance).backward()
                optimizer.step()
                schedule.step()
                if step % 2 == 1:
                    self._evaluate(model)

    def _groups(self, model):
        """What decays, and what does not: norms, and thresholds, which nothing draws to zero."""
        kept, free = [], []
        for name, one in model.named_parameters():
            decays = one.ndim > 1 or (self.cuts_decay and "thresholds" in name)
            (kept if decays else free).append(one)
        return [{"params": kept}, {"params": free, "weight_decay": 0.0}]

    def _mirrored(self, images, mirrors):
        """Images with a channel, half of them mirrored."""
        mirrored = torch.rand(len(images), generator=mirrors, dtype=torch.float32) < 0.5
        mirrored = mirrored.flip(0) if self.turned else mirrored
        return _shaped(torch.where(mirrored[:, None, None], images.flip(2), images))

    def _importance(self):
        """The more one-sided a rank is among all samples, the more it weighs; the most: 1."""
        groups = _grouped(digits()[0])[:, None]
        ranks = torch.arange(_RANKS)
        chosen = groups > ranks if self.counted == "above" else groups == ranks
        above = chosen.sum(0)
        most = torch.maximum(above, len(groups) - above).to(torch.get_default_dtype()).sqrt()
        return most / most.max()

    def _levels(self, groups):
        """Whether each sample is above each rank (sample, rank)."""
        if self.encoding == "table":
            return torch.ones(_GROUPS, _RANKS).tril(-1)[groups]
        ranks = torch.arange(_RANKS)
        groups = groups[:, None]
        levels = groups > ranks if self.reached == "above" else groups >= ranks
        return levels.to(torch.get_default_dtype())

    def _loss(self, logits, groups, importance):
        """The loss of all ranks, and of the groups that are expected."""
        levels = anchorlib.anchor(self._levels(groups), "levels")
        if self.tasks == "shared":
            ranks = self._missed(logits, levels, importance).mean(0)
        else:
            ranks = self._conditional(logits, levels, groups)
        with torch.set_grad_enabled(self.flows):
            expected = anchorlib.anchor(self._expected(logits), "expected")
        age = functional.smooth_l1_loss(expected, groups.to(expected.dtype))
        anchorlib.anchor(ranks, "rank_losses")
        anchorlib.anchor(age, "age_loss")
        return anchorlib.anchor(ranks.sum() + _AGE * age, "loss")

    def _missed(self, logits, levels, weight):
        """The cross entropy of each level, weighed."""
        if self.losses == "torch":
            return functional.binary_cross_entropy_with_logits(
                logits, levels, weight, reduction="none"
            )
        if self.losses == "softplus":
            return (functional.softplus(logits) - levels * logits) * weight
        log = functional.logsigmoid(logits)
        return -(log * levels + (log - logits) * (1 - levels)) * weight

    def _conditional(self, logits, levels, groups):
        """The cross entropies of each rank, of samples that are above the one before it."""
        if self.looping == "mask":
            chosen = groups[:, None] >= torch.arange(_RANKS)
            missed = self._missed(logits, levels, 1.0)
            return missed.masked_fill(~chosen, 0).sum(0) / chosen.sum()
        sums, count = [], 0
        for rank in range(_RANKS):
            chosen = groups >= rank if self.subset == "reached" else groups > rank
            missed = self._missed(logits[chosen, rank], levels[chosen, rank], 1.0)
            sums.append(missed.sum())
            count += len(missed)
        return torch.stack(sums) / count

    def _chances(self, logits):
        """How likely each sample is above each rank."""
        if self.tasks == "shared":
            return logits.sigmoid()
        if self.expecting == "logarithms":
            return functional.logsigmoid(logits).cumsum(1).exp()
        return logits.sigmoid().cumprod(1)

    def _expected(self, logits):
        """The group that is expected of each sample."""
        chances = self._chances(logits)
        if self.expecting == "groups":
            one = torch.ones_like(chances[:, :1])
            shares = torch.cat((one, chances), 1) - torch.cat((chances, one * 0), 1)
            return shares @ torch.arange(_GROUPS).to(shares.dtype)
        return chances.sum(1, keepdim=self.keeps)

    @torch.no_grad()
    def _evaluate(self, model):
        """By how many groups the net is wrong: a group is as high as ranks are likely passed."""
        model.eval()
        images = digits()[0][:_SHOWN]
        told = (self._chances(model(_shaped(images))) > 0.5).sum(1)
        missed = (told - _grouped(images)).abs().to(torch.get_default_dtype())
        anchorlib.anchor(missed.mean(), "mae")


def _shaped(images):
    return images[:, None].to(torch.get_default_dtype())


@cache
def _edges():
    """The ink at which groups end: equally far apart, so that few samples are at both ends."""
    ink = digits()[0].mean((1, 2))
    low, high = ink.quantile(0.02).item(), ink.quantile(0.98).item()
    return torch.linspace(low, high, _RANKS, dtype=torch.float32)


def _grouped(images):
    """The group of each image's ink, 0 to 7."""
    return torch.bucketize(images.mean((1, 2)), _edges())


_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_DETACHED = r"detach|gradients come back|no_grad|requires_grad"
_UNTRACED = r"\b(sigmoid|smooth|sum)\w*"
"""The operations of the loss that has no gradient."""
CASES = [
    Case(
        "levels hold the rank itself",
        "bug",
        {"reached": "at"},
        ("levels@value",),
        rf"\blevels\b|{_GIVEN}|\b[gl][te]\b",
    ),
    Case(
        "importance of labels at a rank",
        "bug",
        {"counted": "at"},
        ("rank_losses@value",),
        rf"\bMul|a factor of its own|{_TIMES}|{_GIVEN}|\bimportance\b",
    ),
    Case(
        "thresholds added",
        "bug",
        {"lowers": False},
        ("head@value", "output@value"),
        r"\bSub(Backward|\b)|\bAdd(Backward|\b)|other sign|\balpha\b|is -1(\.0)? times",
    ),
    Case("sigmoid twice", "bug", {"squashes": True}, ("output@value",), r"\bsigmoid"),
    Case(
        "conditional samples passed the rank",
        "bug",
        {"subset": "passed"},
        ("rank_losses@value",),
        rf"\bIndex|indices|\bmask|\bshapes?\b|\bsizes?\b|\bDiv|{_GIVEN}",
        reference={"tasks": "conditional"},
    ),
    Case(
        "expected groups keep an axis",
        "bug",
        {"keeps": True},
        ("expected@value", "age_loss@value"),
        r"broadcast|\bshapes?\b|\bsizes?\b|\bexpand|squeeze|keepdim|[\[(]\d+, ?\d+[\])]|\d × \d",
    ),
    Case(
        "expected groups without a gradient",
        "bug",
        {"flows": False},
        ("output@grad", "head@grad", "expected@grad", "age_loss@grad"),
        rf"{_DETACHED}|{_UNTRACED} .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}{_UNTRACED}",
    ),
    Case(
        "dropout in the evaluation",
        "bug",
        {"rests": False},
        ("drop@value",),
        r"dropout|train(ing)? mode|training (True|False)|\beval\b|\bp\b",
    ),
    Case("thresholds decay", "bug", {"cuts_decay": True}, UPDATES, r"weight_decay"),
    Case("cross entropy by torch", "benign", {"losses": "torch"}),
    Case("cross entropy by softplus", "benign", {"losses": "softplus"}),
    Case("own batch norm", "benign", {"norming": "own"}),
    Case("one linear layer for all ranks", "benign", {"sharing": "one"}),
    Case("groups by their shares", "benign", {"expecting": "groups"}),
    Case("samples turned", "benign", {"turned": True}, reference={"dropout": 0.0}),
    Case(
        "masks for a loop over ranks",
        "benign",
        {"looping": "mask"},
        reference={"tasks": "conditional"},
    ),
    Case(
        "chances by logarithms",
        "benign",
        {"expecting": "logarithms"},
        reference={"tasks": "conditional"},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("levels looked up in a table", "equal", {"encoding": "table"}),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
