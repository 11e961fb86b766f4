"""A two-tower retriever with late interaction, a following tower and a queue of negatives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear
from tests.diagnosis.workloads.towers import Retriever

_INK = 3.0
"""How much ink a column has that is no padding."""


@dataclass(frozen=True)
class Retrieval(Workload):
    """A query is a noisy image whose columns are joined in pairs; its document is the image.

    begins: the first place of a tower. units: whether queries' tokens are made of length one.
        unit_axis: over what, the "numbers" of a token or the "tokens".
    maxima: a maximum for "each" token of a query, or a "late" one of the sums. over: similarities
        are a "sum" or a "mean". padding: columns with little ink are "hidden", those of the "batch"
        alone, or "nothing" is.
    temperature: scores are multiplied by the exponential ("product"), divided by its inverse
        ("quotient"), or multiplied by what is learnt itself ("logarithm"). learns: whether it
        receives a gradient.
    reaches: whether documents receive a gradient. first: what scores begin with, the "batch" or the
        "queue". sides: of the loss, "both" or the "queries".
    follows: by how much the following tower moves. queues: what is queued, what the "momentum"
        tower tells or the "document" tower. moves: whether the queue's pointer does. enqueues:
        "after" the scores or "before" them.
    all_decay: whether biases, norms and the temperature decay too.
    low: whether the towers run under autocast to bfloat16.
    norming, act, unit, products, scored, hiding, following, contrast, backward, scale: other ways
        to write the same mathematics.
    """

    batch: int = 8
    lr: float = 3e-3
    weight_decay: float = 0.1
    begins: int = 0
    units: bool = True
    unit_axis: str = "numbers"
    maxima: str = "each"
    over: str = "sum"
    padding: str = "hidden"
    temperature: str = "product"
    learns: bool = True
    reaches: bool = True
    first: str = "batch"
    sides: str = "both"
    follows: float = 0.1
    queues: str = "momentum"
    moves: bool = True
    enqueues: str = "after"
    all_decay: bool = False
    low: bool = False
    norming: str = "torch"
    act: str = "torch"
    unit: str = "torch"
    products: str = "matmul"
    scored: str = "at once"
    hiding: str = "fill"
    following: str = "lerp"
    contrast: str = "torch"
    backward: str = "once"
    scale: float = 1.0

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Retriever(self)
            optimizer = self.adam(self._groups(model))
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for images, _ in self.images(seed):
                clear(optimizer, self)
                self._learn(model, images)
                for parameter in model.parameters():
                    if self.scale != 1 and parameter.grad is not None:
                        parameter.grad.div_(self.scale)
                optimizer.step()

    def _groups(self, model):
        """What decays, and what does not: biases, norms and the temperature."""
        learnt = [one for one in model.parameters() if one.requires_grad]
        small = self.weight_decay if self.all_decay else 0.0
        return [
            {"params": [one for one in learnt if one.ndim > 1]},
            {"params": [one for one in learnt if one.ndim < 2], "weight_decay": small},
        ]

    def _learn(self, model, images):
        """The gradients of a batch, whose documents are then queued."""
        documents = anchorlib.anchor(images.transpose(1, 2), "documents")
        there = (documents + 1).sum(2) > _INK
        noise = 0.2 * torch.randn(len(images), 4, 8)
        queries = documents.unflatten(1, (4, 2)).mean(2) + noise
        keys = model.keys(documents)
        if self.enqueues == "before":
            model.enqueue(keys, there)
        told = model(queries, documents)
        used = [one.detach().requires_grad_() for one in told] if self.backward == "cut" else told
        scores = anchorlib.anchor(model.scores(*used, there), "scores")
        self._back(*self._losses(scores))
        if self.backward == "cut":
            torch.autograd.backward(told, [one.grad for one in used])
        if self.enqueues == "after":
            model.enqueue(keys, there)

    def _losses(self, scores):
        """The losses of queries that look for documents, and of documents that look for queries."""
        own = scores[:, : len(scores)]
        if self.contrast == "torch":
            wanted = torch.arange(len(scores))
            asked = functional.cross_entropy(scores, wanted)
            found = functional.cross_entropy(own.T, wanted)
        else:
            right = own.diagonal()
            asked = (scores.logsumexp(1) - right).mean()
            found = (own.logsumexp(0) - right).mean()
        return (asked / 2, found / 2) if self.sides == "both" else (asked, found * 0)

    def _back(self, asked, found):
        """Both losses' gradients."""
        loss = asked + found
        for one, name in ((asked, "query_loss"), (found, "document_loss"), (loss, "loss")):
            anchorlib.anchor(one, name)
        if self.backward == "each":
            (asked * self.scale).backward(retain_graph=True)
            (found * self.scale).backward()
        else:
            (loss * self.scale).backward()


_LOSS = ("query_loss@*", "document_loss@*", "loss@*", "scores@grad")
_SCORES = ("interaction@value", "scores@value")
_MOMENTUM = ("momentum.*weight@value", "momentum.*bias@value", "momentum.embed@value")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back|no gradient|lacks"
CASES = [
    Case(
        "temperature without exp",
        "bug",
        {"temperature": "logarithm"},
        ("temperature@value", "scores@value"),
        rf"\b[Ee]xp(Backward|\b)|{_TIMES}",
        step=0,
    ),
    Case(
        "temperature not learnt",
        "bug",
        {"learns": False},
        ("temperature.log@*", "interaction@grad"),
        _DETACHED,
        step=0,
    ),
    Case(
        "maximum after the sum",
        "bug",
        {"maxima": "late"},
        _SCORES,
        r"\bdim\b|\bA?[Mm]ax|\bSum",
        step=0,
    ),
    Case(
        "padding in the maximum",
        "bug",
        {"padding": "nothing"},
        _SCORES,
        r"masked_?fill|\bmask|\bwhere",
        step=0,
    ),
    Case(
        "queue without its padding",
        "bug",
        {"padding": "batch"},
        ("queued@value",),
        r"\bqueued\b|masked_?fill|\bmask|\bindex|\bcopy|stays?\b|still",
        step=1,
    ),
    Case(
        "mean over the query's tokens",
        "bug",
        {"over": "mean"},
        _SCORES,
        rf"\bMean|\bSum|\bDiv|{_TIMES}",
        step=0,
    ),
    Case(
        "queries not made of length one",
        "bug",
        {"units": False},
        ("query.unit@value", "query@value"),
        r"normali[sz]|\bDiv|\bnorm|a factor of its own",
        step=0,
    ),
    Case(
        "length over tokens",
        "bug",
        {"unit_axis": "tokens"},
        ("query.unit@value", "document.unit@value", "momentum.unit@value"),
        r"\bdim\b",
        step=0,
    ),
    Case(
        "queue of the trained tower",
        "bug",
        {"queues": "document"},
        ("queue@value",),
        rf"\bqueue|{_GIVEN}|computes it from|momentum|\bindex|\bcopy",
        step=2,
    ),
    Case(
        "momentum the other way",
        "bug",
        {"follows": 0.9},
        _MOMENTUM,
        r"\blerp|momentum|decay|\btimes\b|moves?\b",
        step=1,
    ),
    Case(
        "momentum tower stands still",
        "bug",
        {"follows": 0.0},
        _MOMENTUM,
        r"\blerp|momentum|moves?\b|changes?\b|stays?\b|still",
        step=1,
    ),
    Case(
        "pointer stands still",
        "bug",
        {"moves": False},
        ("pointer@value", "queue@value", "queued@value"),
        r"pointer|\bindex|indices|stays?\b|still|places? on along",
        step=1,
    ),
    Case(
        "keys queued before the scores",
        "bug",
        {"enqueues": "before"},
        ("queue@value", "queued@value", "pointer@value", *_SCORES),
        rf"\bqueue|\bindex|\bcopy|{_GIVEN}|pointer",
        step=0,
    ),
    Case(
        "queue before the documents",
        "bug",
        {"first": "queue"},
        _SCORES,
        rf"{_ORDER}|\b[Cc]at\b|\bCatBackward|concat",
        step=0,
    ),
    Case(
        "loss of the queries alone",
        "bug",
        {"sides": "queries"},
        _LOSS,
        rf"\bDiv|\bMul|{_TIMES}|\bzeros?\b",
        step=0,
    ),
    Case(
        "documents detached",
        "bug",
        {"reaches": False},
        ("output:1@grad", "document*@*grad", "document.*@updated", "document.*@delta"),
        _DETACHED,
        step=0,
    ),
    Case(
        "places one further",
        "bug",
        {"begins": 1},
        ("query.places@value", "document.places@value", "momentum.places@value"),
        rf"\b[Ss]lice|\bindex|{_ORDER}|{_GIVEN}|\bAdd(Backward|\b)",
        step=0,
    ),
    Case(
        "temperature and norms decay",
        "bug",
        {"all_decay": True},
        UPDATES,
        r"weight_decay",
        step=0,
    ),
    Case("similarities by einsum", "benign", {"products": "einsum"}),
    Case("documents scored in parts", "benign", {"scored": "in parts"}),
    Case("length by a root", "benign", {"unit": "rsqrt"}),
    Case("loss by logsumexp", "benign", {"contrast": "logsumexp"}),
    Case("temperature by a quotient", "benign", {"temperature": "quotient"}),
    Case("momentum by a sum", "benign", {"following": "sum"}),
    Case("own layer norm", "benign", {"norming": "own"}),
    Case("silu by exp", "benign", {"act": "exp"}),
    Case("a backward for each loss", "benign", {"backward": "each"}),
    Case("loss scaled, gradients unscaled", "benign", {"scale": 1000.0}),
    Case(
        "a backward for each loss, low precision",
        "benign",
        {"backward": "each"},
        reference={"low": True},
    ),
    Case("length by a root, low precision", "benign", {"unit": "rsqrt"}, reference={"low": True}),
    Case("other init", "data", {"init": 1}, ("*weight@value", "queue@value")),
    Case("other order", "data", {"order": 1}, ("input*@value", "documents@value")),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("gradients cut at the towers", "equal", {"backward": "cut"}),
    Case("padding hidden by a sum", "equal", {"hiding": "sum"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
