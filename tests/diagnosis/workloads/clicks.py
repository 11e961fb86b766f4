"""Clicks on advertisements: a net of names, tags and counts that learns from a thinned log."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass

import torch
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, EndedError, Start, Workload, clear
from tests.diagnosis.workloads.clicks_net import DeepFM

_SIZES = (24, 16, 12, 8, 4)
"""How many names each field has: users, advertisements, sites, cities and devices."""
_TAGS, _SLOTS, _NUMBERS = 12, 4, 3
_SEEN = 800
"""Impressions in the log."""
_SHOWN = 32
"""Impressions that are not learnt from."""
_RATE = 0.25
"""The share of impressions without a click that are kept."""
_TABLES = ("fields.", "tags.", "wide.table.")


class Adagrad(torch.optim.Optimizer):
    """Adagrad by its formula."""

    def __init__(self, parameters, lr: float, initial_accumulator_value: float) -> None:
        super().__init__(parameters, {"lr": lr, "eps": 1e-10})
        for one in parameters:
            self.state[one]["sum"] = torch.full_like(one, initial_accumulator_value)

    @torch.no_grad()
    def step(self, closure=None):
        """Move all parameters."""
        for group in self.param_groups:
            for one in group["params"]:
                sums = self.state[one]["sum"]
                sums += one.grad**2
                one.sub_(group["lr"] * (one.grad / (sums.sqrt() + group["eps"])))


@dataclass(frozen=True)
class Clicks(Workload):
    """Impressions with a click are all kept, of the others a quarter; logits are of the whole log.

    offsets: of the fields' rows in a table, the sums of the "sizes before" them or of the "sizes
        behind". tags: what a sum of tags is divided by, the number of those "taken" or of all
        "places". divisor: of numbers, their "deviation" or their "variance".
    summed: what the factorization machine sums first, "vectors" or their "factors".
    crossed: what a cross layer multiplies by, its "first" input or its "last" one.
    shares: whether the tower's gradient reaches embeddings, "attached" or "detached".
    corrects: how logits are moved to those of the thinned log, by "less" the rate's logarithm or by
        "more". squashed: whether the loss of logits is given chances.
    l2: of the fields' embeddings. decays: those that a batch has "used", or the "table".
    dense_lr: the learning rate of what is no embedding. begins: the sum that Adagrad begins with.
    warmup: steps of rising rate. warms: the rates that rise, "both" or that of "Adam" alone.
    cleared: the optimizers whose gradients are forgotten, "both" or "Adam" alone.
    wakes: whether the model is in training mode again after an evaluation.
    low: whether the net runs under autocast to bfloat16.
    evaluates: whether there is one more evaluation, after the last step.
    adagrad: torch's or its "own".
    pooling, pairs, deep, norming, loss, penalty, sparse, inplace, keeps: other ways to write the
        same mathematics.
    """

    steps: int = 5
    batch: int = 32
    lr: float = 5e-2
    weight_decay: float = 0.0
    decoupled: bool = False
    offsets: str = "sizes before"
    tags: str = "taken"
    divisor: str = "deviation"
    summed: str = "vectors"
    crossed: str = "first"
    shares: str = "attached"
    corrects: str = "less"
    squashed: bool = False
    l2: float = 2e-2
    decays: str = "used"
    dense_lr: float = 3e-3
    begins: float = 0.1
    warmup: int = 3
    warms: str = "both"
    cleared: str = "both"
    wakes: bool = True
    low: bool = False
    adagrad: str = "torch"
    pooling: str = "mask"
    pairs: str = "squares"
    deep: str = "whole"
    norming: str = "torch"
    loss: str = "torch"
    penalty: str = "looked up"
    sparse: bool = False
    inplace: bool = False
    keeps: str = "all"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            shown, learnt = _log(seed)
            self.draw(seed)
            model = DeepFM(self, _SIZES, _TAGS, learnt[2])
            optimizers = self._optimizers(model)
            schedules = [
                torch.optim.lr_scheduler.LambdaLR(one, self._rate)
                for one in (optimizers if self.warms == "both" else optimizers[1:])
            ]
            session.watch(model, tensors="*", optimizer=optimizers)
            torch.manual_seed(seed)
            for step, batch in enumerate(self._batches(learnt, seed)):
                if step in (2, 4):
                    self._evaluate(model, shown)
                for optimizer in optimizers if self.cleared == "both" else optimizers[1:]:
                    clear(optimizer, self)
                self._learn(model, *batch)
                for one in (*optimizers, *schedules):
                    one.step()
            if self.evaluates:
                self._evaluate(model, shown)

    def _optimizers(self, model):
        """Adagrad for embeddings, Adam for the rest."""
        tables, dense = [], []
        for name, one in model.named_parameters():
            (tables if name.startswith(_TABLES) else dense).append(one)
        kind = torch.optim.Adagrad if self.adagrad == "torch" else Adagrad
        adagrad = kind(tables, lr=self.lr, initial_accumulator_value=self.begins)
        return [adagrad, self.adam(dense, lr=self.dense_lr)]

    def _rate(self, step):
        """The factor of a learning rate."""
        return min(1.0, (step + 1) / (self.warmup + 1))

    def _batches(self, learnt, seed):
        """Names, tags, counts and clicks of the impressions of each step."""
        dealing = torch.Generator().manual_seed(77 + 1000 * seed + self.order)
        dealt = torch.randperm(len(learnt[0]), generator=dealing).split(self.batch)
        for step, chosen in enumerate(dealt[: self.steps]):
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            rows = chosen.flip(0) if self.turned else chosen
            yield tuple(column[rows] for column in learnt)

    def _learn(self, model, names, tags, counts, clicks):
        """The gradients of one batch."""
        logits, fields = self._told(model, names, tags, counts)
        rate = math.log(_RATE)
        told = self._loss(logits, clicks, rate if self.corrects == "less" else -rate)
        penalty = self.l2 / 2 * self._squares(model, names, fields)
        loss = told + penalty
        for one, name in ((told, "click_loss"), (penalty, "penalty"), (loss, "loss")):
            anchorlib.anchor(one, name)
        loss.backward()

    @torch.no_grad()
    def _evaluate(self, model, shown):
        """The loss of impressions as they come, which are not thinned."""
        model.eval()
        *given, clicks = shown
        logits, _ = self._told(model, *given)
        anchorlib.anchor(self._loss(logits, clicks, 0.0), "eval_loss")
        model.train(self.wakes)

    def _told(self, model, *given):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = model(*given)
        return [one.to(model.factors.dtype) for one in told]

    def _loss(self, logits, clicks, rate):
        """The log loss of impressions that were thinned to a rate, given as its logarithm."""
        if self.loss == "logaddexp":
            kept = torch.full_like(logits, rate)
            return (torch.logaddexp(logits, kept) - clicks * logits - (1 - clicks) * rate).mean()
        logits = logits - rate
        logits = logits.sigmoid() if self.squashed else logits
        return functional.binary_cross_entropy_with_logits(logits, clicks)

    def _squares(self, model, names, fields):
        """The squares of the embeddings that a batch has used, as a mean of its rows."""
        weight = model.fields.weight
        if self.decays == "table":
            return weight.square().sum()
        if self.penalty == "looked up":
            return fields.square().sum() / len(fields)
        used = (names + model.offsets).flatten().bincount(minlength=len(weight))
        return used.to(weight.dtype) @ weight.square().sum(1) / len(fields)


def _log(seed):
    """Impressions as they come, and thinned ones: names, tags, counts and whether of a click."""
    source = torch.Generator().manual_seed(31 + 1000 * seed)

    def drawn(*shape):
        return torch.rand(*shape, generator=source, dtype=torch.float64)

    names = (drawn(_SEEN, len(_SIZES)).square() * torch.tensor(_SIZES)).long()  # few are frequent
    tags = (drawn(_SEEN, _SLOTS) * (_TAGS - 1)).long() + 1
    tags[torch.arange(_SLOTS) > (drawn(_SEEN, 1) * _SLOTS).long()] = 0
    counts = (drawn(_SEEN, _NUMBERS) * torch.tensor([2.0, 4.0, 6.0])).exp().floor()
    liked = [(drawn(size) - 0.5)[names[:, at]] * 3 for at, size in enumerate(_SIZES)]
    chances = (sum(liked) + 0.3 * counts.log1p().sum(1) - 4.0).sigmoid()
    clicked = drawn(_SEEN) < chances
    kept = clicked | (drawn(_SEEN) < _RATE)
    kept[:_SHOWN] = False
    real = torch.get_default_dtype()
    columns = names, tags, counts.to(real), clicked.to(real)
    return tuple(one[:_SHOWN] for one in columns), tuple(one[kept] for one in columns)


_CLICK = ("click_loss@*", "loss@*", "eval_loss@*", "output@grad")
_EMBEDDED = ("fields*@*grad", "tags*@*grad", "output:1@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_LACKS = r"(lacks|alone|without)"
_DETACHED = r"detach|gradients come back"
CASES: tuple[Case, ...] = (
    Case(
        "offsets of the sizes behind",
        "bug",
        {"offsets": "sizes behind"},
        ("fields@value", "wide.table@value"),
        r"\bindices\b|\bindex|\boffsets?\b",
    ),
    Case(
        "tags divided by all places",
        "bug",
        {"tags": "places"},
        ("tags@value",),
        rf"\bDiv|\bMean|{_TIMES}|{_GIVEN}|a factor of its own",
    ),
    Case(
        "numbers divided by variances",
        "bug",
        {"divisor": "variance"},
        ("standard@value",),
        rf"\b[Ss]qrt|\bDiv|{_TIMES}|a factor of its own|\bscaled?\b",
    ),
    Case(
        "factors summed for vectors",
        "bug",
        {"summed": "factors"},
        ("pairs@value",),
        r"\bdim\b|\baxis\b",
    ),
    Case(
        "crossed with the last input",
        "bug",
        {"crossed": "last"},
        ("crosses.layers.1@value", "crosses@value"),
        rf"\bMul|{_GIVEN}|computes it from|\bparents?\b",
    ),
    Case(
        "tower detached",
        "bug",
        {"shares": "detached"},
        _EMBEDDED,
        rf"{_DETACHED}|\b(add)?mm\w* .{{0,60}}{_LACKS}|{_LACKS}.{{0,60}}\b(add)?mm|\btower\b",
    ),
    Case(
        "correction of the other sign",
        "bug",
        {"corrects": "more"},
        _CLICK,
        rf"\bSub(Backward|\b)|\bAdd(Backward|\b)|other sign|\balpha\b|is -1(\.0)? times|{_GIVEN}"
        r"|\bother\b.{0,20}1\.38",
    ),
    Case("sigmoid twice", "bug", {"squashed": True}, _CLICK, r"\b[Ss]igmoid(Backward|\b)"),
    Case(
        "whole table decays",
        "bug",
        {"decays": "table"},
        ("penalty@*", "loss@*", "output:1@*grad", "fields*@*grad"),
        rf"{_GIVEN}|computes it from|\bDiv|{_TIMES}|\bfields\.weight\b|{_LACKS}",
    ),
    Case(
        "Adagrad not warmed up", "bug", {"warms": "Adam"}, UPDATES, r"\blr\b|learning.rate", step=0
    ),
    Case(
        "embeddings' gradients not cleared",
        "bug",
        {"cleared": "Adam"},
        ("fields.weight@*grad", "tags.weight@*grad", "wide.table.weight@*grad"),
        r"zero_grad|accumulat|clear(ed)?\b|left over|earlier steps?|previous|the step before"
        r"|adds? up|added to",
        step=1,
    ),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("tower.norms.0@value", "tower.drops.0@value"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        step=2,
    ),
    Case("pairs by a triangle", "benign", {"pairs": "triangle"}),
    Case("loss by logaddexp", "benign", {"loss": "logaddexp"}),
    Case("own Adagrad", "benign", {"adagrad": "own"}),
    Case("tags by an embedding bag", "benign", {"pooling": "bag"}),
    Case("sparse gradients", "benign", {"sparse": True}),
    Case("batch norm as scale and shift", "benign", {"norming": "shifted"}),
    Case("penalty by counts", "benign", {"penalty": "counts"}),
    Case(
        "tower's input in parts, low precision",
        "benign",
        {"deep": "parts"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value", "factors@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("one more evaluation", "equal", {"evaluates": True}),
    Case("relu in place", "equal", {"inplace": True}),
    Case("cross layers computed again", "equal", {"keeps": "edges"}),
    Case("died", "incomplete", {"ends_at": 3}),
)
