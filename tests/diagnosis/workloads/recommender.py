"""Two towers that match the halves of digits: bags of pixels with sparse gradients, negatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import Case, Start, Workload, digits

_ROWS, _WIDTH, _CODE, _NEGATIVES = 96, 16, 8, 4


@dataclass(frozen=True)
class Recommender(Workload):
    """sparse: whether the bags' gradients are. rule: of their optimizer, "adam" or "adagrad".

    bag_lr, lr_decay, accumulated: of that optimizer. bags_step, forgets_bags: whether it steps, and
        whether it forgets gradients.
    weighs: whether pixels count by how bright they are. normed: whether the weights of a bag have
        the sum 1. late: by how many pixels bags begin late. most: the length that rows are cut to.
        by_count: whether gradients are divided by how often a row occurs.
    shared: whether items are taken from the users' bag. nearest: the first negative, 0: the
        positive. sharpens: whether logits are divided by the temperature, else multiplied.
    corrects: the factor of the logarithm of an item's frequency. detached: whether no gradient
        goes to items.
    weight: of positives. over: what the loss is a mean of: "all", or "each" kind and then both.
    bags, loss, division, first: how it is written, of one mathematics.
    """

    batch: int = 24
    lr: float = 5e-3
    sparse: bool = True
    rule: str = "adam"
    bag_lr: float = 2e-2
    lr_decay: float = 0.0
    accumulated: float = 0.0
    weighs: bool = True
    normed: bool = True
    late: int = 0
    most: float | None = None
    by_count: bool = False
    shared: bool = False
    nearest: int = 1
    sharpens: bool = True
    corrects: float = 1.0
    detached: bool = False
    weight: float | None = 4.0
    over: str = "all"
    bags_step: bool = True
    forgets_bags: bool = True
    bags: str = "torch"
    loss: str = "torch"
    division: bool = True
    first: str = "users"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            bags, towers = Bags(self), Towers(self)
            of_bags, of_towers = self._optimizer(bags), self.adam(towers.parameters())
            session.watch(bags, tensors="*", optimizer=of_bags, prefix="bags")
            session.watch(towers, tensors="*", optimizer=of_towers, prefix="towers")
            torch.manual_seed(seed)
            for images, labels in self.images(seed):
                of_towers.zero_grad(set_to_none=self.set_to_none)
                if self.forgets_bags:
                    of_bags.zero_grad()
                loss = self._loss(towers(*bags(images), labels))
                anchorlib.anchor(loss, "loss")
                loss.backward()
                of_towers.step()
                if self.bags_step:
                    of_bags.step()
                session.step()

    def _optimizer(self, bags):
        if self.rule == "adam":
            return torch.optim.SparseAdam(list(bags.parameters()), lr=self.bag_lr)
        return torch.optim.Adagrad(
            bags.parameters(),
            lr=self.bag_lr,
            lr_decay=self.lr_decay,
            initial_accumulator_value=self.accumulated,
        )

    def _loss(self, logits):
        """How well positives, the first of each row, are told from the others."""
        right = torch.zeros_like(logits)
        right[:, 0] = 1
        if self.loss == "own":
            own = self.weight * right * functional.softplus(-logits)
            return (own + (1 - right) * functional.softplus(logits)).mean()
        weight = None if self.weight is None else torch.tensor(self.weight)
        missed = functional.binary_cross_entropy_with_logits(
            logits, right, pos_weight=weight, reduction="none"
        )
        if self.over == "each":
            return (missed[:, 0].mean() + missed[:, 1:].mean()) / 2
        return missed.mean()


class Bags(nn.Module):
    """The lit pixels of both halves as bags of rows."""

    def __init__(self, how: Recommender) -> None:
        super().__init__()
        self.how = how
        self.users, self.items = (
            nn.EmbeddingBag(
                _ROWS,
                _WIDTH,
                mode="sum",
                sparse=how.sparse,
                max_norm=how.most,
                scale_grad_by_freq=how.by_count,
            )
            for _ in range(2)
        )

    def forward(self, images):
        """What users and items have."""
        halves = {"users": images[..., :4], "items": images[..., 4:]}
        order = ("users", "items") if self.how.first == "users" else ("items", "users")
        made = {name: self._bag(name, halves[name].flatten(1)) for name in order}
        return made["users"], made["items"]

    def _bag(self, name, half):
        how = self.how
        bag = self.users if how.shared or name == "users" else self.items
        levels = ((half + 1) * 1.5).long()
        lit = levels > 0
        rows = (torch.arange(half.shape[1]) * 3 + levels - 1)[lit]
        counts = lit.sum(1)
        offsets = functional.pad(counts.cumsum(0)[:-1], (1, 0))
        offsets[1:] += how.late
        weights = (half + 1) / 2 if how.weighs else torch.ones_like(half)
        if how.normed:
            weights = weights / (weights * lit).sum(1, keepdim=True)
        if how.bags == "torch":
            return bag(rows, offsets, weights[lit])
        owners = torch.arange(len(half)).repeat_interleave(counts)
        taken = functional.embedding(rows, bag.weight, sparse=how.sparse)
        return torch.zeros(len(half), _WIDTH).index_add(0, owners, taken * weights[lit][:, None])


class Towers(nn.Module):
    """Two small nets to codes of length 1, and their products."""

    def __init__(self, how: Recommender) -> None:
        super().__init__()
        self.how = how
        self.user, self.item = (
            nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Tanh(), nn.Linear(_WIDTH, _CODE))
            for _ in range(2)
        )
        self.bias = nn.Embedding(10, 1)
        counts = torch.bincount(digits()[1], minlength=10)
        self.register_buffer("share", counts / counts.sum())

    def forward(self, users, items, labels):
        """Logits of each user's item, and behind it of some other items."""
        how = self.how
        user = functional.normalize(self.user(users))
        item = functional.normalize(self.item(items))
        item = item.detach() if how.detached else item
        turns = range(how.nearest, how.nearest + _NEGATIVES)
        near = torch.stack([item, *(item.roll(turn, 0) for turn in turns)], 1)
        kinds = torch.stack([labels, *(labels.roll(turn) for turn in turns)], 1)
        products = (user[:, None] * near).sum(-1)
        if not how.sharpens:
            scores = products * 0.2
        else:
            scores = products / 0.2 if how.division else products * 5.0
        return scores + self.bias(kinds)[..., 0] - how.corrects * self.share[kinds].log()


def _of(kinds: Sequence[str]) -> tuple[str, ...]:
    """The records of the bags' rows."""
    return tuple(f"bags.*weight*@{kind}" for kind in kinds)


_BAG = ("bags.users@value",)
_UPDATES = _of(("updated", "delta", "opt.*"))
_LOGITS = ("towers.output@value",)
_LOSS = ("loss@*", "towers.output@grad")
_ADAGRAD = {"rule": "adagrad", "sparse": False}
CASES = [
    Case(
        "pixels not weighted",
        "bug",
        {"weighs": False},
        _BAG,
        r"per_sample_weights|is [\d.]+ times A|input:2",
    ),
    Case(
        "weights not normed",
        "bug",
        {"normed": False},
        _BAG,
        r"per_sample_weights|is [\d.]+ times A|input:2|[Dd]iv",
    ),
    Case("bags begin late", "bug", {"late": 1}, _BAG, r"offsets?\b|input:1|\brows\b"),
    Case(
        "rows cut to a length",
        "bug",
        {"most": 2.0},
        (*_BAG, "bags.users.weight@value", "bags.*@value"),
        r"max_norm|renorm",
    ),
    Case(
        "gradients divided by counts",
        "bug",
        {"by_count": True},
        _of(("grad", "pass_grad")),
        r"scale_grad_by_freq|scaleGradByFreq",
        reference=_ADAGRAD,
    ),
    Case(
        "items from the users' bag",
        "bug",
        {"shared": True},
        ("bags.items*@value", "bags.users*@value", "bags.output:1@value", "towers.item.*@value"),
        r"bags\.items|called|(only|alone).{0,60}items|items.{0,60}(only|alone)",
    ),
    Case(
        "negatives begin with the positive",
        "bug",
        {"nearest": 0},
        (*_LOGITS, "towers.bias@value"),  # the labels of the negatives are rolled with the items
        r"\b[Rr]oll|shifts?\b|columns?\b|\bplaces? (on|back) along",
    ),
    Case(
        "temperature multiplied",
        "bug",
        {"sharpens": False},
        _LOGITS,
        r"\bDiv|\bdiv\b|\bMul|\bmul\b|is [\d.]+ times A",
    ),
    Case("frequency added", "bug", {"corrects": -1.0}, _LOGITS, r"-1\b|\bSub|\bAdd|\bNeg|\bsub\b"),
    Case(
        "items detached",
        "bug",
        {"detached": True},
        ("towers.item*@*", "bags.items*@*", "bags.output:1@grad", "towers.input:1@grad"),
        r"detach|(only|alone).{0,60}item|item.{0,60}(only|alone)",
    ),
    Case(
        "positives not weighted",
        "bug",
        {"weight": None},
        _LOSS,
        r"pos_weight|BinaryCrossEntropy\w* .*weight",
    ),
    Case(
        "mean of two means",
        "bug",
        {"over": "each"},
        _LOSS,
        r"\bMean|\bmean\b|\bSlice|\bDiv",
    ),
    Case(
        "bags do not step",
        "bug",
        {"bags_step": False},
        (*_UPDATES, *_of(("value", "grad"))),
        r"did not step|no step|SparseAdam",
    ),
    Case(
        "bags' zero_grad missing",
        "bug",
        {"forgets_bags": False},
        _of(("grad",)),
        r"zero_grad",
        step=1,
    ),
    Case("rate of the bags", "bug", {"bag_lr": 5e-3}, _UPDATES, r"\blr\b"),
    Case("rate that falls", "bug", {"lr_decay": 0.1}, _UPDATES, r"lr_decay", reference=_ADAGRAD),
    Case(
        "accumulator begins at a tenth",
        "bug",
        {"accumulated": 0.1},
        _UPDATES,
        r"initial_accumulator",
        reference=_ADAGRAD,
    ),
    Case("bags by hand", "benign", {"bags": "own"}),
    Case("bags by hand, dense", "benign", {"bags": "own"}, reference=_ADAGRAD),
    Case("dense gradients", "benign", {"sparse": False}, reference={"rule": "adagrad"}),
    Case("own loss", "benign", {"loss": "own"}),
    Case("factor for a division", "benign", {"division": False}),
    Case("fused optimizer", "benign", {"implementation": "fused"}),
    Case("foreach optimizer", "benign", {"implementation": "foreach"}),
    Case("2 threads", "benign", {"threads": 2}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("bags.input*@value",)),
    Case("again", "equal"),
    Case("items first", "equal", {"first": "items"}),
    Case("again, dense", "equal", reference=_ADAGRAD),
]
