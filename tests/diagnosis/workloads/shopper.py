"""A recommender of the next item: causal attention over histories, with sampled negatives."""

from __future__ import annotations

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
    cut,
)
from tests.diagnosis.workloads.shopper_net import ITEMS, LONGEST, Net

_USERS, _KINDS = 160, 5
_SHOWN = 12
"""Users whose last item is ranked in the evaluation."""


@dataclass(frozen=True)
class Shopper(Workload):
    """Users go from item to similar item; each place of a history should tell the next one.

    scales: whether items are multiplied by the root of their width. ahead: how many places ahead a
        query sees. keys: the keys that it sees, those "seen" or "all" with padding. norms: what
        layer norm reaches before attention, "queries" or "all". tied: whether scores' gradients
        reach the items, "attached" or "detached". dropout: its share.
    loss: "bce", whose positives are calibrated, or a sampled "softmax". negatives: how many a
        place. calibration: t of the generalised BCE. corrects: whether the logarithms of the
        chances that items are drawn by are subtracted. counts: the places that the loss counts,
        those "seen" or "all".
    decay: of the items, as a term of the loss.
    parts: micro-batches a step. shares: what their losses are divided by, the whole "batch"'s
        places, or by each "part"'s, then by the parts.
    wakes: whether the model is in training mode again after an evaluation.
    low: whether the net runs under autocast to bfloat16.
    pads: how long histories are made, "fixed", or as the "longest" of the batch.
    packing, masking, pointwise, keeps, scoring, places, calibrated, softmax: other ways to write
        the same mathematics.
    """

    steps: int = 5
    batch: int = 12
    lr: float = 5e-3
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.0
    decoupled: bool = False
    scales: bool = True
    ahead: int = 0
    keys: str = "seen"
    norms: str = "queries"
    tied: str = "attached"
    dropout: float = 0.2
    loss: str = "bce"
    negatives: int = 4
    calibration: float = 0.75
    corrects: bool = True
    counts: str = "seen"
    decay: float = 1e-3
    parts: int = 1
    shares: str = "batch"
    wakes: bool = True
    low: bool = False
    pads: str = "fixed"
    packing: str = "padded"
    masking: str = "filled"
    pointwise: str = "linear"
    keeps: str = "all"
    scoring: str = "sampled"
    places: str = "indexed"
    calibrated: str = "weight"
    softmax: str = "torch"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            optimizer = self.adam(model.parameters())
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for step, batch in enumerate(self._batches(seed)):
                clear(optimizer, self)
                for part in cut(self.parts, *batch):
                    self._learn(model, part, batch[0])
                optimizer.step()
                if self.evaluates and step % 2 == 1:
                    self._evaluate(model)

    def _batches(self, seed):
        """Histories, what came next and what did not, step by step."""
        rows = _logs()
        dealing = torch.Generator().manual_seed(61 + 1000 * seed + self.order)
        for step in range(self.steps):
            chosen = rows[torch.randint(0, len(rows), (self.batch,), generator=dealing)]
            batch = _examples(chosen, self.negatives, dealing)
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            batch = [one.flip(0) for one in batch] if self.turned else batch
            if self.pads == "longest":
                count = (batch[0] > 0).sum(1).max()
                batch = [one[:, -count:] for one in batch]
            yield batch

    def _learn(self, model, part, histories):
        """The gradients of one micro-batch."""
        ranked = self._ranked(self._told(model, part), part, histories)
        decay = self.decay * model.items.weight.square().sum() / self.parts
        loss = ranked + decay
        for one, name in ((ranked, "ranking_loss"), (decay, "decay_loss"), (loss, "loss")):
            anchorlib.anchor(one, name)
        loss.backward()

    def _told(self, model, part):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = model(*part)
        return [one.to(model.items.weight.dtype) for one in told]

    def _ranked(self, told, part, histories):
        """A part's share of the loss, whose mean is over all places that are no padding."""
        history, *items = part
        seen, every = ((one > 0) | (self.counts == "all") for one in (history, histories))
        count = every.sum() if self.shares == "batch" else seen.sum() * self.parts
        if self.places == "masked":
            return (self._costs(*told, *items) * seen).sum() / count
        return self._costs(*(one[seen] for one in (*told, *items))).sum() / count

    def _costs(self, right, wrong, positives, negatives):
        """The costs of places, by scores of what came next and of what did not."""
        if self.loss == "softmax":
            return self._softmax(right, wrong, positives, negatives)
        share = self.negatives / (ITEMS - 1)
        beta = share * (self.calibration * (1 - 1 / share) + 1 / share)
        if self.calibrated == "weight":
            costs = _bce(wrong, torch.zeros_like(wrong)).sum(-1)
            costs = costs + beta * _bce(right, torch.ones_like(right))
            return costs / (1 + self.negatives)
        odds = 1 / (right.double().sigmoid().pow(-beta) - 1)
        scores = torch.cat((odds.log().to(wrong.dtype)[..., None], wrong), -1)
        target = torch.zeros_like(scores)
        target[..., 0] = 1
        return _bce(scores, target).mean(-1)

    def _softmax(self, right, wrong, positives, negatives):
        """Cross entropy of what came next among what was drawn."""
        if self.corrects:
            chances = _chances().log().to(right.dtype)
            right, wrong = right - chances[positives], wrong - chances[negatives]
        if self.softmax == "torch":
            scores = torch.cat((right[..., None], wrong), -1)
            target = torch.zeros(len(scores), dtype=torch.long)
            return functional.cross_entropy(scores, target, reduction="none")
        return functional.softplus(wrong.logsumexp(-1) - right)

    @torch.no_grad()
    def _evaluate(self, model):
        """How high the last items of some users rank."""
        model.eval()
        part = _examples(_logs()[:_SHOWN], 20, torch.Generator().manual_seed(5))
        right, wrong = self._told(model, part)
        rank = (wrong[:, -1] > right[:, -1:]).sum(1)
        anchorlib.anchor((1 / (rank + 2).log2()).mean(), "ndcg")
        model.train(self.wakes)


def _bce(scores, target):
    return functional.binary_cross_entropy_with_logits(scores, target, reduction="none")


@cache
def _logs():
    """What each user bought (user, LONGEST + 1), the newest last, with zeros before."""
    drawing = torch.Generator().manual_seed(29)

    def drawn(low, high):
        return torch.randint(low, high, (_USERS,), generator=drawing)

    size = ITEMS // _KINDS
    kind, number, bought = drawn(0, _KINDS), drawn(0, size), []
    for _ in range(LONGEST + 1):
        kind = torch.where(drawn(0, 6) == 0, drawn(0, _KINDS), kind)
        number = (number + drawn(1, 4)) % size
        bought.append(1 + kind * size + number)
    counts = torch.where(drawn(0, 40) == 0, LONGEST + 1, drawn(3, 10))
    kept = torch.arange(LONGEST + 1) >= LONGEST + 1 - counts[:, None]
    return torch.stack(bought, 1) * kept


@cache
def _chances():
    """How likely each item is drawn as a negative; 1 for padding, which is not drawn."""
    often = torch.bincount(_logs().flatten(), minlength=ITEMS + 1).to(torch.float32)
    chances = (often + 1) ** 0.75
    chances = chances / chances[1:].sum()
    chances[0] = 1
    return chances


def _examples(rows, count, drawing):
    """Histories, what came next, and items that the user never bought (user, place, count)."""
    history = rows[:, :-1]
    seen = history > 0
    chances = _chances().expand(len(rows), -1).scatter(1, rows, 0.0)
    chances[:, 0] = 0
    drawn = torch.multinomial(chances, LONGEST * count, replacement=True, generator=drawing)
    return history, rows[:, 1:] * seen, drawn.view(len(rows), LONGEST, count) * seen[..., None]


_RANKED = ("ranking_loss@*", "loss@*", "output@grad", "output:1@grad")
_SHARES = ("blocks.0.attention.drop@value",)
_MASKED = r"mask|\btri[lu]\b|\bwhere\b|\binf\b"
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case("next item seen", "bug", {"ahead": 1}, _SHARES, _MASKED),
    Case("padding seen", "bug", {"keys": "all"}, _SHARES, _MASKED),
    Case(
        "items not scaled",
        "bug",
        {"scales": False},
        ("tokens.drop@value", "tokens@value"),
        rf"\bMul|{_TIMES}",
    ),
    Case(
        "keys and values normed",
        "bug",
        {"norms": "all"},
        ("blocks.0.attention.k@value", "blocks.0.attention.v@value"),
        rf"layer_?norm|norm1|computes it from|{_GIVEN}",
    ),
    Case(
        "items detached where they score",
        "bug",
        {"tied": "detached"},
        ("items@grad", "items.weight@*grad"),
        rf"{_DETACHED}|embedding\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}embedding",
    ),
    Case(
        "chances of negatives not corrected",
        "bug",
        {"corrects": False},
        _RANKED,
        rf"\bSub(Backward|\b)|\bLog(Backward|\b)|{_GIVEN}",
        reference={"loss": "softmax"},
    ),
    Case(
        "loss counts padding",
        "bug",
        {"counts": "all"},
        _RANKED,
        r"\bIndex|indices|\bmask|\bDiv|\bshapes?\b",
    ),
    Case(
        "each part by its own places",
        "bug",
        {"shares": "part"},
        _RANKED,
        rf"\bDiv|\bMul|{_TIMES}",
        reference={"parts": 2},
    ),
    Case("second beta of 0.999", "bug", {"betas": (0.9, 0.999)}, UPDATES, r"\bbetas?\d?\b"),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("tokens.drop@value",),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        step=2,
        reference={"evaluates": True},
    ),
    Case("convolutions over one place", "benign", {"pointwise": "convolution"}),
    Case("padding masked in the loss", "benign", {"places": "masked"}),
    Case("calibrated as moved scores", "benign", {"calibrated": "scores"}),
    Case(
        "softmax loss by logsumexp",
        "benign",
        {"softmax": "logsumexp"},
        reference={"loss": "softmax"},
    ),
    Case(
        "padded to the longest of the batch",
        "benign",
        {"pads": "longest"},
        reference={"dropout": 0.0},
    ),
    Case("histories packed", "benign", {"packing": "packed"}, reference={"dropout": 0.0}),
    Case("2 micro-batches", "benign", {"parts": 2}, reference={"dropout": 0.0}),
    Case(
        "all items scored, low precision",
        "benign",
        {"scoring": "all"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("mask added", "equal", {"masking": "added"}),
    Case("blocks computed again", "equal", {"keeps": "edges"}),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
