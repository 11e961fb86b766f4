"""Rows of digits that are shown once and recalled in their order, from a memory of slots."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut, renamed
from tests.diagnosis.workloads.tape import Tape

_LEAST, _MOST = 3, 5
"""How many rows are shown."""
_TIMES_ALL = 2 * _MOST + 1


@dataclass(frozen=True)
class Rememberer(Workload):
    """3 to 5 rows of a digit, an end mark, and then the time to tell the rows again.

    normed: whether memory and key are compared by their cosine. over: what its softmax is over,
        "slots" or "samples". through: whether gradients pass through where a head looked before.
        round: whether the last slot is beside the first. least: of the sharpness. sums: whether
        sharpened weights have a sum of one.
    erases: whether slots are erased "first" or "last". reads: the memory that is read, the "new" or
        the "old" one. looks: where readers looked before, each its "own" place or all the "first"
        one's. states: whether hidden value and cell are passed on "rightly" or "exchanged".
    resets: whether each batch begins with a blank memory.
    counts: the times that have a loss, the "recalled" or "all" of them. late: by how many times
        rows should be told later. squashes: whether logits are squashed before their loss.
    alpha, momentum, eps: of RMSprop. clip: of each value of gradients.
    parts: micro-batches a step. low: whether the net runs under autocast to bfloat16.
    cell, cosine, moving, sharpening, writing, reading, packing, costs, scale: other ways to write
        the same mathematics. keeps: the values kept for backward, "all" or the "edges". layers:
        what the last layers are in, a "sequence" or a "list". names: other ones of submodules.
    """

    steps: int = 5
    batch: int = 8
    lr: float = 2e-3
    normed: bool = True
    over: str = "slots"
    through: bool = True
    round: bool = True
    least: float = 1.0
    sums: bool = True
    erases: str = "first"
    reads: str = "new"
    looks: str = "own"
    states: str = "rightly"
    resets: bool = True
    counts: str = "recalled"
    late: int = 0
    squashes: bool = False
    alpha: float = 0.95
    momentum: float = 0.9
    eps: float = 1e-4
    clip: float = 10.0
    parts: int = 1
    low: bool = False
    cell: str = "torch"
    cosine: str = "torch"
    moving: str = "unfold"
    sharpening: str = "power"
    writing: str = "sums"
    reading: str = "sum"
    packing: str = "apart"
    costs: str = "torch"
    scale: float = 1.0
    keeps: str = "all"
    layers: str = "sequence"
    names: tuple[tuple[str, str], ...] = ()

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Tape(self, 9, 8)
            renamed(model, dict(self.names))
            optimizer = torch.optim.RMSprop(
                model.parameters(),
                lr=self.lr,
                alpha=self.alpha,
                eps=self.eps,
                momentum=self.momentum,
                foreach=self.implementation == "foreach",
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for images, _ in self.images(seed):
                shown, wanted, recalled = self._task(images)
                clear(optimizer, self)
                for part in cut(self.parts, shown, wanted, recalled):
                    self._learn(model, part, recalled)
                if self.scale != 1:
                    for parameter in model.parameters():
                        parameter.grad.div_(self.scale)
                nn.utils.clip_grad_value_(model.parameters(), self.clip)
                optimizer.step()

    def _task(self, images):
        """What is shown at each time, the bits that should be told, and when they should be."""
        rows = (images[:, 2 : 2 + _MOST] > 0).to(images.dtype)
        lengths = torch.randint(_LEAST, _MOST + 1, (len(images),))
        lengths = lengths.flip(0) if self.turned else lengths
        shown = torch.zeros(len(images), _TIMES_ALL, 9, dtype=images.dtype)
        wanted = torch.zeros(len(images), _TIMES_ALL, 8, dtype=images.dtype)
        recalled = torch.zeros(len(images), _TIMES_ALL, dtype=images.dtype)
        for at, length in enumerate(lengths.tolist()):
            shown[at, :length, :8] = rows[at, :length]
            shown[at, length, 8] = 1
            recalled[at, length + 1 : 2 * length + 1] = 1
            wanted[at, length + 1 : 2 * length + 1] = rows[at, :length]
        return shown, wanted.roll(self.late, 1), recalled

    def _learn(self, model, part, batch):
        """The gradients of one micro-batch."""
        shown, wanted, recalled = part
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            logits = model(shown)
        logits = logits.to(wanted.dtype)
        costs = self._costs(logits.sigmoid() if self.squashes else logits, wanted)
        costs = anchorlib.anchor(costs.mean(2), "costs")
        if self.counts == "all":
            recalled, batch = torch.ones_like(recalled), torch.ones_like(batch)
        loss = anchorlib.anchor((costs * recalled).sum() / batch.sum(), "loss")
        (loss * self.scale).backward()

    def _costs(self, logits, wanted):
        """The cross entropy of each bit."""
        if self.costs == "torch":
            return functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
        return functional.softplus(logits) - logits * wanted


_DRAWN = tuple(f"{name}@value" for name in ("hidden", "cell", "first_read", "looks", "blank"))
_LOSS = ("loss@*", "costs@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target|exponent) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "key compared by a product alone",
        "bug",
        {"normed": False},
        ("writer.address.content@value",),
        r"cosine|\bDiv|norm",
    ),
    Case(
        "softmax over samples",
        "bug",
        {"over": "samples"},
        ("writer.address.content@value",),
        r"\bdim\b",
    ),
    Case(
        "earlier places detached",
        "bug",
        {"through": False},
        (
            "*.address@grad",
            "*.sharpen@grad",
            "looks@*grad",
            "writer@grad",
            "readers.first@grad",
            "readers.second@grad",
        ),
        rf"{_DETACHED}|\bMul\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}\bMul",
    ),
    Case(
        "shift ends at the last slot",
        "bug",
        {"round": False},
        ("writer.address.shift@value",),
        rf"\bCat|\bzeros?\b|constant|slice|{_GIVEN}",
    ),
    Case(
        "sharpness below one",
        "bug",
        {"least": 0.0},
        ("writer.address.sharpen@value",),
        rf"\bAdd(Backward|\b)|\bPow|exponent|{_GIVEN}",
    ),
    Case(
        "sharpened weights not divided",
        "bug",
        {"sums": False},
        ("writer.address.sharpen@value",),
        rf"\bDiv|{_TIMES}|a factor of its own",
    ),
    Case(
        "added before erased",
        "bug",
        {"erases": "last"},
        ("write@value",),
        rf"\bAdd(Backward|\b)|\bMul|{_GIVEN}",
    ),
    Case(
        "memory read before it is written",
        "bug",
        {"reads": "old"},
        ("readers.first.address.content@value", "read@value"),
        rf"{_GIVEN}|\bwrite\b|computes it from|earlier|cosine\w* x1",
    ),
    Case(
        "readers look from the first one's place",
        "bug",
        {"looks": "first"},
        ("readers.second.address.shift@value",),
        rf"\bMul\w* (self|other)|{_GIVEN}|readers\.first|computes it from",
    ),
    Case(
        "hidden value and cell exchanged",
        "bug",
        {"states": "exchanged"},
        ("controller@value", "controller:1@value"),
        rf"computes it from|{_ORDER}|{_GIVEN}|\b[hc]x\b|controller:1",
    ),
    Case(
        "memory not blank in the next batch",
        "bug",
        {"resets": False},
        ("writer.address.content@value", "write@value"),
        r"\bblank\b|earlier step|previous|\bwrite\b|carried|cosine\w* x1",
        step=1,
    ),
    Case(
        "all times have a loss",
        "bug",
        {"counts": "all"},
        _LOSS,
        rf"\bMul|\bDiv|\bmask|{_GIVEN}|{_TIMES}",
    ),
    Case(
        "rows wanted one time early",
        "bug",
        {"late": -1},
        ("costs@value", "loss@*", "output@grad"),
        rf"targets? differ|\broll|{_ORDER}|{_GIVEN}",
    ),
    Case(
        "logits squashed twice",
        "bug",
        {"squashes": True},
        ("costs@value", "output@grad"),
        r"[Ss]igmoid",
    ),
    Case(
        "squares kept for longer",
        "bug",
        {"alpha": 0.99},
        UPDATES,
        r"\balpha\b",
        step=0,
    ),
    Case("LSTM by its formula", "benign", {"cell": "own"}),
    Case("own cosine", "benign", {"cosine": "own"}),
    Case("shift by rolls", "benign", {"moving": "roll"}),
    Case("sharpened by softmax of logarithms", "benign", {"sharpening": "softmax"}),
    Case("written by products", "benign", {"writing": "products"}),
    Case("read by a product", "benign", {"reading": "product"}),
    Case("heads told at once", "benign", {"packing": "joined"}),
    Case("cross entropy by softplus", "benign", {"costs": "softplus"}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("samples turned", "benign", {"turned": True}),
    Case(
        "heads told at once, low precision",
        "benign",
        {"packing": "joined"},
        reference={"low": True},
    ),
    Case("LSTM by its formula, low precision", "benign", {"cell": "own"}, reference={"low": True}),
    Case("other init", "data", {"init": 1}, ("*weight*@value", "*bias*@value", *_DRAWN)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("readers renamed", "equal", {"names": (("first", "left"), ("second", "right"))}),
    Case("times computed twice", "equal", {"keeps": "edges"}),
    Case("layers in a list", "equal", {"layers": "list"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
