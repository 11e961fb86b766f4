"""A graph attention net that tells digits, of graphs whose nodes are inked pixels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, digits
from tests.diagnosis.workloads.gat import Router

_SHOWN = 6
"""Graphs that the evaluation sees."""


@dataclass(frozen=True)
class Routing(Workload):
    """Nodes are fields of 2 × 2 pixels with ink, edges join neighbours.

    loops: whether nodes tell themselves too. minds: whether scores know of edges. slope: of what
        bends scores. over: what softmax is over, the edges that reach a node, those "leaving" one,
        or the "heads". softmax_eps: what is added to its sums. reaches: the end of an edge that is
        told, "target" or "source". flows: whether shares have gradients. heads: the last layer's
        "mean" or their "sum". keeps: whether nodes keep what they know.
    pooled: "mean" or "sum" of a graph's nodes.
    norm_momentum: of batch norms. wakes: whether the model is in training mode again after an
        evaluation.
    smoothing: of labels. twice: whether softmax is taken before the loss takes it.
    nesterov, momentum: of SGD. all_decay: whether biases, norms and attention's vectors decay too.
    falls, each: the factor of the learning rate, and after how many steps it is applied.
    clip, clips: of gradients, 0: not at all, by their "torch" norm or their "own" norm.
    low: whether the net runs under autocast to bfloat16.
    scores, shares, sums, gathers, pools, norming, crossed, scale: other ways to write the same
        mathematics.
    """

    steps: int = 6
    batch: int = 10
    lr: float = 5e-2
    weight_decay: float = 1e-2
    loops: bool = True
    minds: bool = True
    slope: float = 0.2
    over: str = "reaching"
    softmax_eps: float = 1e-16
    reaches: str = "target"
    flows: bool = True
    heads: str = "mean"
    keeps: bool = True
    pooled: str = "mean"
    norm_momentum: float = 0.1
    wakes: bool = True
    smoothing: float = 0.1
    twice: bool = False
    nesterov: bool = True
    momentum: float = 0.9
    all_decay: bool = False
    falls: float = 0.5
    each: int = 2
    clip: float = 0.2
    clips: str = "torch"
    low: bool = False
    scores: str = "parts"
    shares: str = "from the most"
    sums: str = "index"
    gathers: str = "edges"
    pools: str = "index"
    norming: str = "torch"
    crossed: str = "torch"
    scale: float = 1.0

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Router(self)
            optimizer = self.sgd(
                self._groups(model), momentum=self.momentum, nesterov=self.nesterov
            )
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, self.each, self.falls)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            images, labels = digits()
            shown = _graphs(images[:_SHOWN]), labels[:_SHOWN]
            for step, (images, labels) in enumerate(self.images(seed)):
                if step % 2 == 0:
                    self._evaluate(model, *shown)
                clear(optimizer, self)
                loss = anchorlib.anchor(self._loss(model, _graphs(images), labels), "loss")
                (loss * self.scale).backward()
                self._bound(model)
                optimizer.step()
                schedule.step()

    def _groups(self, model):
        """What decays, and what does not: biases, norms and attention's vectors."""
        flat = ("source", "target", "between", "bias")
        named = [
            (one.ndim > 1 and not name.endswith(flat), one)
            for name, one in model.named_parameters()
        ]
        still = self.weight_decay if self.all_decay else 0.0
        return [
            {
                "params": [one for deep, one in named if deep is decays],
                "weight_decay": self.weight_decay if decays else still,
            }
            for decays in (True, False)
        ]

    @torch.no_grad()
    def _evaluate(self, model, graphs, labels):
        """The loss of graphs that are not learnt from."""
        model.eval()
        anchorlib.anchor(self._loss(model, graphs, labels), "eval_loss")
        model.train(self.wakes)

    def _loss(self, model, graphs, labels):
        """The cross entropy."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            logits = model(*graphs)
        logits = logits.to(model.head.weight.dtype)
        logits = logits.softmax(1) if self.twice else logits
        if self.crossed == "torch":
            return functional.cross_entropy(logits, labels, label_smoothing=self.smoothing)
        wanted = functional.one_hot(labels, logits.shape[1]).to(logits.dtype)
        wanted = wanted * (1 - self.smoothing) + self.smoothing / logits.shape[1]
        return (logits.logsumexp(1) - (logits * wanted).sum(1)).mean()

    @torch.no_grad()
    def _bound(self, model):
        """Gradients, unscaled and clipped."""
        grads = [one.grad for one in model.parameters() if one.grad is not None]
        if self.scale != 1:
            for grad in grads:
                grad.div_(self.scale)
        if self.clips == "own":
            length = torch.cat([grad.flatten() for grad in grads]).square().sum().sqrt()
            for grad in grads:
                grad.mul_((self.clip / (length + 1e-6)).clamp(max=1))
        elif self.clip:
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)


def _graphs(images):
    """Nodes (brightness and place), both ends of edges, edges' features, and nodes' graphs."""
    pooled = functional.avg_pool2d(images[:, None], 2)[:, 0]
    owners, rows, columns = (pooled > -0.9).nonzero(as_tuple=True)
    bright = pooled[owners, rows, columns]
    places = torch.stack((rows, columns), 1).to(images.dtype) / 1.5 - 1
    near = (rows[:, None] - rows).abs().maximum((columns[:, None] - columns).abs()) == 1
    ends = torch.stack((near & (owners[:, None] == owners)).nonzero(as_tuple=True))
    source, target = ends
    between = torch.cat(
        (places[target] - places[source], (bright[target] - bright[source])[:, None]), 1
    )
    return torch.cat((bright[:, None], places), 1), ends, between, owners


_SHARES = ("layers.0.share@value",)
_LAYER = ("layers.0@value", "norms.0@value")
_LAST = ("layers.1@value", "norms.1@value")
_POOLED = ("hidden@value", "hidden.input@value")
_LOSS = ("loss@*", "eval_loss@*", "output@grad", "head@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target|index) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "nodes do not tell themselves",
        "bug",
        {"loops": False},
        ("layers.0.edge@value", "layers.0.bend@value", *_SHARES),
        r"\b[Cc]at(Backward|\b)|\bshapes?\b|\belements\b|\brows\b",
    ),
    Case(
        "scores without edges",
        "bug",
        {"minds": False},
        ("layers.0.bend@value", "layers.0.edge@value"),
        r"\bAdd(Backward|\b)|(lacks|alone).{0,60}edge|edge.{0,60}(lacks|alone|not recorded)",
    ),
    Case(
        "slope of 0.01",
        "bug",
        {"slope": 0.01},
        ("layers.0.bend@value",),
        r"negative_slope|\| 0\.01\b",
    ),
    Case(
        "softmax over edges that leave",
        "bug",
        {"over": "leaving"},
        _SHARES,
        rf"\b[Ii]ndex|indices|[Ss]catter|{_ORDER}",
    ),
    Case(
        "softmax over heads",
        "bug",
        {"over": "heads"},
        _SHARES,
        r"\b_?[Ss]oftmax|\bDiv(Backward|\b)|\bdim\b",
    ),
    Case(
        "large eps in softmax",
        "bug",
        {"softmax_eps": 0.1},
        _SHARES,
        r"\bAdd(Backward|\b)|\beps\b|\| 0\.1\b",
    ),
    Case(
        "sources are told",
        "bug",
        {"reaches": "source"},
        _LAYER,
        rf"[Ii]ndex_?[Aa]dd|\bindex\b|indices|{_ORDER}",
    ),
    Case(
        "shares detached",
        "bug",
        {"flows": False},
        ("layers.1.share@grad", "layers.1.lift@*grad", "layers.1.bend@grad"),
        rf"{_DETACHED}|\bMul\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}\bMul",
    ),
    Case(
        "sum of heads",
        "bug",
        {"heads": "sum"},
        _LAST,
        rf"\bMean|\bSum(Backward|\b)|{_TIMES}",
    ),
    Case("nodes keep nothing", "bug", {"keeps": False}, _LAYER, r"\bAdd(Backward|\b)"),
    Case("sum of nodes", "bug", {"pooled": "sum"}, _POOLED, r"\bDiv|a factor of its own"),
    Case(
        "momentum of batch norms",
        "bug",
        {"norm_momentum": 0.9},
        ("norms.0*running_*@value",),
        r"\bmomentum\b",
    ),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("norms.0@value", "norms.0*running_*@value"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
    ),
    Case(
        "softmax before cross entropy",
        "bug",
        {"twice": True},
        _LOSS,
        r"\b_?[Ss]oftmax",
    ),
    Case(
        "labels not smoothed",
        "bug",
        {"smoothing": 0.0},
        _LOSS,
        r"smoothing|\bMul|\bMean|\bSum(Backward|\b)|\bAdd(Backward|\b)",
    ),
    Case("not nesterov", "bug", {"nesterov": False}, UPDATES, r"\bnesterov\b"),
    Case("everything decays", "bug", {"all_decay": True}, UPDATES, r"weight_decay"),
    Case("scores of joined vectors", "benign", {"scores": "joined"}),
    Case("scores by einsum", "benign", {"scores": "einsum"}),
    Case("softmax without the most", "benign", {"shares": "plain"}),
    Case("softmax in double", "benign", {"shares": "double"}),
    Case("sums from the last edge on", "benign", {"sums": "last"}),
    Case("sums by product", "benign", {"sums": "product"}),
    Case("attention of all nodes", "benign", {"gathers": "dense"}),
    Case("pooled by product", "benign", {"pools": "product"}),
    Case("own batch norm", "benign", {"norming": "own"}),
    Case("cross entropy by logsumexp", "benign", {"crossed": "own"}),
    Case("loss scaled, gradients unscaled", "benign", {"scale": 1000.0}),
    Case("graphs turned", "benign", {"turned": True}),
    Case("norm of gradients at once", "benign", {"clips": "own"}),
    Case(
        "scores of joined vectors, low precision",
        "benign",
        {"scores": "joined"},
        reference={"low": True},
    ),
    Case("own batch norm, low precision", "benign", {"norming": "own"}, reference={"low": True}),
    Case("other init", "data", {"init": 1}, ("*weight@value", "layers.*@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("sums by scatter", "equal", {"sums": "scatter"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
