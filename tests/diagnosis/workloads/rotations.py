"""A knowledge graph is completed: relations rotate entities, corrupted facts are told apart."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass

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
    warmed,
)
from tests.diagnosis.workloads.rotations_net import ENTITIES, MARGIN, RELATIONS, Own, Rotate

_DRAWN = 260
_SHOWN = 10
"""Facts that the evaluation asks for."""


@dataclass(frozen=True)
class Rotations(Workload):
    """Facts are asked for by both of their ends; an end is a true one or a corrupting negative.

    apart: whether inverse relations have phases of their own. product: of the complex numbers,
        "rightly" or with the "sign" of the imaginary part's second term turned.
    caches: whether the evaluation's table of phases is used further on.
    over: what the softmax of the adversarial weights is over, "negatives" or "facts".
        waits: whether these weights are "detached" or "attached". filters: whether negatives that
        are known facts are left out. after: how many of the candidates are no negatives.
        margins: whether the margin is there "once" for negatives or "twice".
    power: of a fact's frequency in its weight. cubes: N3 is of complex numbers' "moduli" or of
        their "parts". decay: the factor of N3.
    clears: gradients are cleared before each "step" or each "side". slow: the factors of the rates
        of entities and of relations. warmup: steps of rising rate.
    every: steps from an evaluation to the next. named: how many entities are drawn as negatives.
    numbers, angles, turns, margin, entropy, sides, norms, own, keeps: other ways to write the same
        mathematics.
    """

    steps: int = 5
    batch: int = 12
    lr: float = 2e-2
    weight_decay: float = 0.0
    decoupled: bool = False
    negatives: int = 8
    apart: bool = True
    product: str = "rightly"
    caches: bool = False
    over: str = "negatives"
    waits: str = "detached"
    filters: bool = True
    after: int = 1
    margins: str = "once"
    power: float = 0.5
    cubes: str = "moduli"
    decay: float = 5e-2
    clears: str = "step"
    slow: tuple[float, float] = (1.0, 0.3)
    warmup: int = 2
    every: int = 2
    named: int = ENTITIES
    numbers: str = "real"
    angles: str = "rows"
    turns: str = "known"
    margin: str = "model"
    entropy: str = "logsigmoid"
    sides: str = "each"
    norms: str = "rows"
    own: bool = False
    keeps: str = "all"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Rotate(self)
            optimizer = self._optimizer(model)
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 8)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            facts = _facts(seed)
            known = _known(facts)
            frequency = _frequency(facts)
            for step, (chosen, drawn) in enumerate(self._batches(facts, seed)):
                weights = frequency[chosen] ** -self.power
                weights = anchorlib.anchor(weights / weights.sum(), "weights")
                clear(optimizer, self)
                for part in self._parts(facts[chosen], drawn, weights):
                    if self.clears == "side":
                        clear(optimizer, self)
                    self._learn(model, known, *part)
                optimizer.step()
                schedule.step()
                if step % self.every == self.every - 1:
                    self._evaluate(model, known, facts[:_SHOWN])

    def _optimizer(self, model):
        groups = [
            {"params": list(one.parameters()), "lr": self.lr * slow}
            for one, slow in zip((model.entities, model.phases), self.slow, strict=True)
        ]
        if self.own:
            return Own(groups, {"betas": self.betas, "eps": self.adam_eps})
        return torch.optim.Adam(groups, betas=self.betas, eps=self.adam_eps)

    def _batches(self, facts, seed):
        """Numbers of facts, and for both of their ends the negatives, step by step."""
        dealing = torch.Generator().manual_seed(59 + 1000 * seed + self.order)
        for step in range(self.steps):
            chosen = torch.randint(0, len(facts), (self.batch,), generator=dealing)
            drawn = torch.randint(0, self.named, (2, self.batch, self.negatives), generator=dealing)
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield (chosen.flip(0), drawn.flip(1)) if self.turned else (chosen, drawn)

    def _parts(self, facts, drawn, weights):
        """What is known, its relation, whether that is inverse, all candidates, and weights."""
        head, relation, tail = facts.unbind(1)
        sides = [
            (
                known,
                relation,
                torch.full_like(relation, inverse),
                torch.cat((true[:, None], wrong), 1),
                weights / 2,
            )
            for inverse, known, true, wrong in (
                (0, head, tail, drawn[0]),
                (1, tail, head, drawn[1]),
            )
        ]
        if self.sides == "each":
            return sides
        return [tuple(torch.cat(both) for both in zip(*sides, strict=True))]

    def _learn(self, model, known, *part):
        """The gradients of what one side is asked, or both."""
        *asked, candidates, weights = part
        scores = model(*asked, candidates)
        scores = scores + MARGIN if self.margin == "loss" else scores
        true, wrong = scores[:, 0], scores[:, self.after :]
        left = torch.zeros_like(wrong, dtype=torch.bool)
        if self.filters:
            left[:, 1 - self.after :] = _found(known, *asked, candidates[:, 1:])
        hard = self._hard(wrong, left)
        told = self._entropy(true, wrong, hard, weights)
        cubes = self.decay * self._cubes(model, asked[0], candidates[:, 0]) * weights.sum()
        loss = told + cubes
        for one, name in ((told, "fact_loss"), (cubes, "cubes"), (loss, "loss")):
            anchorlib.anchor(one, name)
        loss.backward()

    def _hard(self, wrong, left):
        """How much each negative weighs: the more, the truer it seems."""
        hard = wrong.masked_fill(left, -math.inf).softmax(1 if self.over == "negatives" else 0)
        hard = hard.detach() if self.waits == "detached" else hard
        return anchorlib.anchor(hard, "hard")

    def _entropy(self, true, wrong, hard, weights):
        """The loss of facts and of negatives, half of it each."""
        wrong = wrong if self.margins == "once" else wrong - MARGIN
        if self.entropy == "logsigmoid":
            right = functional.logsigmoid(true)
            told = right + (hard * functional.logsigmoid(-wrong)).sum(1)
            return -(weights * told).sum() / 2
        scores = torch.cat((true[:, None], wrong), 1)
        labels = torch.zeros_like(scores)
        labels[:, 0] = 1
        hard = torch.cat((torch.ones_like(true)[:, None], hard), 1) * weights[:, None] / 2
        return functional.binary_cross_entropy_with_logits(scores, labels, hard, reduction="sum")

    def _cubes(self, model, known, true):
        """N3: the mean over facts of the cubed absolute values of both ends."""
        ends, weight = torch.cat((known, true)), model.entities.weight
        if self.norms == "counts":
            counts = torch.bincount(ends, minlength=ENTITIES).to(weight.dtype)
            cubes = weight.unflatten(1, (2, -1)).square().sum(1).pow(1.5)
            return counts @ cubes.sum(1) / len(known)
        rows = functional.embedding(ends, weight)
        if self.cubes == "parts":
            return rows.abs().pow(3).sum() / len(known)
        return rows.unflatten(1, (2, -1)).norm(dim=1).pow(3).sum() / len(known)

    @torch.no_grad()
    def _evaluate(self, model, known, facts):
        """The mean reciprocal rank of tails among all entities that make no other known fact."""
        model.eval()
        head, relation, tail = facts.unbind(1)
        asked = head, relation, torch.zeros_like(relation)
        every = torch.arange(ENTITIES).expand(len(facts), -1)
        scores = model(*asked, every)
        true = scores.gather(1, tail[:, None])
        scores = scores.masked_fill(_found(known, *asked, every), -math.inf)
        ranks = 1 + (scores > true).sum(1)
        anchorlib.anchor(ranks.to(scores.dtype).reciprocal().mean(), "mrr")
        model.train()


def _facts(seed):
    """Heads, relations and tails: relations go so far around a circle; some heads are frequent."""
    drawing = torch.Generator().manual_seed(31 + 1000 * seed)
    heads = (torch.rand(_DRAWN, generator=drawing) ** 2 * ENTITIES).long()
    relations = torch.randint(0, RELATIONS, (_DRAWN,), generator=drawing)
    around = 3 * relations + 1 + torch.randint(0, 4, (_DRAWN,), generator=drawing)
    found = torch.stack((heads, relations, (heads + around) % ENTITIES), 1).unique(dim=0)
    return found[torch.randperm(len(found), generator=drawing)]


def _known(facts):
    """Whether (inverse, relation, known, candidate) is a fact."""
    head, relation, tail = facts.unbind(1)
    found = torch.zeros(2, RELATIONS, ENTITIES, ENTITIES, dtype=torch.bool)
    found[0, relation, head, tail] = True
    found[1, relation, tail, head] = True
    return found


def _found(known, ends, relations, inverse, candidates):
    return known[inverse[:, None], relations[:, None], ends[:, None], candidates]


def _frequency(facts):
    """How many facts share each fact's head and relation, or its relation and tail."""
    known = _known(facts).sum(-1)
    head, relation, tail = facts.unbind(1)
    return (known[0, relation, head] + known[1, relation, tail]).to(torch.get_default_dtype())


_FACTS = ("fact_loss@*", "loss@value", "output@grad", "distance@grad")
_HARD = ("hard@value",)
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_DETACHED = r"detach|gradients come back"
CASES: tuple[Case, ...] = (
    Case(
        "inverse relations share rows",
        "bug",
        {"apart": False},
        ("phases@value", "phases:1@value", "phases.rows@value"),
        r"\bindices\b|\bindex|\b[Ee]mbedding|\brows?\b",
    ),
    Case(
        "sign in the imaginary part",
        "bug",
        {"product": "sign"},
        ("rotation:1@value",),
        rf"\bSub(Backward|\b)|\bAdd(Backward|\b)|other sign|\balpha\b|{_TIMES}",
    ),
    Case(
        "softmax over facts",
        "bug",
        {"over": "facts"},
        _HARD,
        r"\bdim\b|another axis|other axis|over axis",
    ),
    Case(
        "adversarial weights attached",
        "bug",
        {"waits": "attached"},
        ("hard@grad", "output@grad", "distance@grad"),
        rf"{_DETACHED}|[Ss]oftmax\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}[Ss]oftmax",
    ),
    Case(
        "known facts as negatives",
        "bug",
        {"filters": False},
        _HARD,
        rf"[Mm]asked_?[Ff]ill|\bmask|\binf\b|\bzeros\b|{_GIVEN}",
    ),
    Case(
        "truth among its negatives",
        "bug",
        {"after": 0},
        (*_HARD, "fact_loss@*", "output@grad"),
        r"\bshapes?\b|\bsizes?\b|\b[Ss]lice|\bstart\b|places? on along|\[\d+, ?\d+\]",
    ),
    Case(
        "margin twice for negatives",
        "bug",
        {"margins": "twice"},
        _FACTS,
        rf"\bSub(Backward|\b)|\bAdd(Backward|\b)|\bplus\b|more than A|{_GIVEN}",
    ),
    Case(
        "frequencies without a root",
        "bug",
        {"power": 1.0},
        ("weights@value",),
        r"\b[Pp]ow|exponent|\b[Rr]?sqrt|[Rr]eciprocal|\b[Dd]iv|\b[Mm]ul",
    ),
    Case(
        "cubes of parts",
        "bug",
        {"cubes": "parts"},
        ("cubes@*", "loss@value"),
        r"\b[Aa]bs(Backward|\b)|\b(linalg_?)?(vector_?)?norm|LinalgVectorNorm|NormBackward",
    ),
    Case(
        "gradients of tails forgotten",
        "bug",
        {"clears": "side"},
        ("*weight@grad", "*weight@pass_grad"),
        r"zero_grad|\bclear|accumulat|\bpass(es)?\b|\bsum|forg[eo]t",
    ),
    Case("rates exchanged", "bug", {"slow": (0.3, 1.0)}, UPDATES, r"\blr\b"),
    Case(
        "evaluation's phases kept",
        "bug",
        {"caches": True},
        ("phases*@*grad", "phases*@updated", "phases*@delta"),
        rf"{_DETACHED}|no_grad|(lacks|alone|without|no) .{{0,60}}(grad|Backward)",
        step=2,
    ),
    Case("complex numbers", "benign", {"numbers": "complex"}),
    Case("phases of the whole table", "benign", {"angles": "table"}),
    Case("candidates turned back", "benign", {"turns": "candidates"}),
    Case("margin in the loss", "benign", {"margin": "loss"}),
    Case("weighted binary cross-entropy", "benign", {"entropy": "binary"}),
    Case("both sides at once", "benign", {"sides": "both"}),
    Case("cubes by counts", "benign", {"norms": "counts"}),
    Case("own Adam", "benign", {"own": True}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("last entity never drawn", "data", {"named": ENTITIES - 1}, ("input*@value",)),
    Case("ranked after each step", "equal", {"every": 1}),
    Case("scores computed again", "equal", {"keeps": "edges"}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("killed", "incomplete", {"killed_at": 3}),
)
