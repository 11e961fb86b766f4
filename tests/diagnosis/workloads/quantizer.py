"""A VQ-VAE of digits: codes that follow averages or a loss, and gradients straight through them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut, warmed
from tests.diagnosis.workloads.codebook import Quantized


@dataclass(frozen=True)
class Quantizer(Workload):
    """Digits are told by the codes that are nearest to their encoded parts.

    learns: what moves the codes, the "averages" of what chose them or a "loss".
    straight: how gradients pass the codes: "over" them, with the difference detached; "open", with
        nothing detached; "added" to the codes; "codes", which get the decoder's gradients too; or
        "nothing" is done.
    beta: the weight of the encoder's distance from its codes, and charged: of which distance it is
        the weight, the "encoder"'s or the "book"'s. commits: what that distance moves, the
        "encoder" or the "codes". pulls: what the codes' distance moves, "codes" or "both".
    over: distances are a "mean" or a "sum". twice: whether products of distances count twice.
    keeps: of the averages, how much stays. forgets: whether the averages of vectors decay.
    counted: of choices, the "sum" or the "mean". smooths: whether counts are smoothed.
    renews: whether codes are renewed "after" they are read or "before". rests: whether the book is
        in eval mode. lies: whether channels are moved to the end before they are flattened.
    in_place: whether blocks bend what they add. bounds: of images, "tanh" or "sigmoid".
    shuffle: how channels become pixels, "torch" or with the channels "last".
    warmup: steps of rising rate. early: whether the rate moves before the optimizer.
    low: whether encoder and decoder run under autocast to bfloat16.
    parts: micro-batches a step.
    convolution, norming, act, distances, averages, layout, backward, scale: other ways to write the
        same mathematics.
    """

    steps: int = 5
    lr: float = 4e-3
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.05
    learns: str = "averages"
    straight: str = "over"
    beta: float = 0.25
    charged: str = "encoder"
    commits: str = "encoder"
    pulls: str = "codes"
    over: str = "mean"
    twice: bool = True
    keeps: float = 0.9
    forgets: bool = True
    counted: str = "sum"
    smooths: bool = True
    renews: str = "after"
    rests: bool = False
    lies: bool = True
    in_place: bool = False
    bounds: str = "tanh"
    shuffle: str = "torch"
    warmup: int = 2
    early: bool = False
    low: bool = False
    parts: int = 1
    convolution: str = "torch"
    norming: str = "torch"
    act: str = "torch"
    distances: str = "products"
    averages: str = "added"
    layout: torch.memory_format = torch.contiguous_format
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
            model = Quantized(self).to(memory_format=self.layout)
            model.book.train(not self.rests)
            optimizer = self._optimizer(model)
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 8)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for images, _ in self.images(seed):
                clear(optimizer, self)
                for (part,) in cut(self.parts, images[:, None]):
                    with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
                        told = model(part.contiguous(memory_format=self.layout))
                    self._back(self._losses(part, *told))
                for parameter in model.parameters():
                    if self.scale != 1:
                        parameter.grad.div_(self.scale)
                if self.early:
                    schedule.step()
                optimizer.step()
                if not self.early:
                    schedule.step()

    def _optimizer(self, model):
        """AdamW; what is flat does not decay."""
        deep = [one for one in model.parameters() if one.ndim > 1]
        flat = [one for one in model.parameters() if one.ndim < 2]
        optimizer = self.adam(deep)
        optimizer.add_param_group({"params": flat, "weight_decay": 0.0})
        return optimizer

    def _losses(self, images, told, near, book):
        """The losses of images, of vectors and of codes."""
        missed = functional.mse_loss(told.to(images.dtype), images)
        weights = (self.beta, 1.0) if self.charged == "encoder" else (1.0, self.beta)
        losses = {"image_loss": missed, "near_loss": weights[0] * near}
        if self.learns == "loss":
            losses["book_loss"] = weights[1] * book
        return {name: loss / self.parts for name, loss in losses.items()}

    def _back(self, losses):
        """All losses' gradients."""
        loss = sum(losses.values())
        for name, one in (*losses.items(), ("loss", loss)):
            anchorlib.anchor(one, name)
        if self.backward == "once":
            (loss * self.scale).backward()
        else:
            for one in losses.values():
                (one * self.scale).backward(retain_graph=True)


_NEAR = ("near_loss@*", "book:1@*", "output:1@*")
_FOUND = ("book@value",)
_ENCODED = ("encoder@grad", "encoder.leave@grad", "encoder.leave.*@*grad")
_BOOK = ("book.codes@*", "book.counts@*", "book.sums@*")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
_CHOSEN = r"\bIndex|indices|\bargmin|\bembedding"
"""Words that name which codes are read."""
_AVERAGE = r"\bmul_?\b|\badd_?\b|\blerp|\bdecay"
"""Words that name how an average is renewed."""
_LOSS = {"learns": "loss"}
CASES = [
    Case(
        "straight through, nothing detached",
        "bug",
        {"straight": "open"},
        _ENCODED,
        rf"{_DETACHED}|\bSub(Backward|\b).{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}\bSub",
    ),
    Case(
        "not straight through",
        "bug",
        {"straight": "nothing"},
        (*_ENCODED, *_FOUND),
        rf"{_DETACHED}|\bAdd(Backward|\b)|\bSub(Backward|\b)",
    ),
    Case(
        "codes see the decoder",
        "bug",
        {"straight": "codes"},
        ("book.codes@*grad",),
        _DETACHED,
        reference={"learns": "loss", "straight": "added"},
    ),
    Case("beta of one", "bug", {"beta": 1.0}, ("near_loss@*",), rf"{_TIMES}|\bMul"),
    Case(
        "beta at the codes",
        "bug",
        {"charged": "book"},
        ("near_loss@*", "book_loss@*"),
        rf"{_TIMES}|\bMul",
        reference=_LOSS,
    ),
    Case(
        "commitment detached from the encoder",
        "bug",
        {"commits": "codes"},
        ("near_loss@grad", "book:1@grad", "output:1@grad", *_ENCODED),
        _DETACHED,
    ),
    Case(
        "codes' loss moves the encoder",
        "bug",
        {"pulls": "both"},
        _ENCODED,
        _DETACHED,
        reference=_LOSS,
    ),
    Case(
        "commitment summed",
        "bug",
        {"over": "sum"},
        _NEAR,
        rf"{_TIMES}|reduction|\bSum(Backward|\b)|\bMean",
    ),
    Case("averages too slow", "bug", {"keeps": 0.99}, _BOOK, rf"{_AVERAGE}|{_TIMES}|\b0\.99\b"),
    Case(
        "counts not smoothed",
        "bug",
        {"smooths": False},
        ("book.codes@*",),
        rf"{_TIMES}|a factor of its own|\bdiv_?\b",
    ),
    Case(
        "averages of vectors do not decay",
        "bug",
        {"forgets": False},
        ("book.sums@*", "book.codes@*"),
        rf"{_AVERAGE}|{_TIMES}",
    ),
    Case(
        "choices as a mean",
        "bug",
        {"counted": "mean"},
        ("book.counts@*", "book.codes@*"),
        rf"\bmean\b|\bsum\b|{_AVERAGE}|{_TIMES}",
    ),
    Case(
        "codes renewed before they are read",
        "bug",
        {"renews": "before"},
        (*_FOUND, *_NEAR),
        rf"{_CHOSEN}|{_GIVEN}|renewed|in.place",
    ),
    Case(
        "book in eval mode",
        "bug",
        {"rests": True},
        _BOOK,
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b|stands? still",
    ),
    Case("products not twice", "bug", {"twice": False}, _FOUND, _CHOSEN),
    Case(
        "channels not moved to the end",
        "bug",
        {"lies": False},
        _FOUND,
        rf"permute|transpose|{_ORDER}|\bView|reshape",
    ),
    Case(
        "bent in place",
        "bug",
        {"in_place": True},
        ("encoder.act@value", "encoder.block@value"),
        r"in.?place|\brelu_?|\bAdd(Backward|\b)",
    ),
    Case(
        "channels last when shuffled",
        "bug",
        {"shuffle": "last"},
        ("decoder.last@value",),
        rf"pixel_?shuffle|permute|{_ORDER}|\bView|reshape",
    ),
    Case(
        "sigmoid for tanh",
        "bug",
        {"bounds": "sigmoid"},
        ("decoder@value", "output@value"),
        r"\bsigmoid|\btanh",
    ),
    Case("rate moves before the optimizer", "bug", {"early": True}, UPDATES, r"\blr\b"),
    Case("convolutions of patches", "benign", {"convolution": "patches"}),
    Case("own group norm", "benign", {"norming": "own"}),
    Case("own swish", "benign", {"act": "own"}),
    Case("channels last", "benign", {"layout": torch.channels_last}),
    Case("averages by lerp", "benign", {"averages": "lerp"}),
    Case("straight through, added to the codes", "benign", {"straight": "added"}),
    Case("2 micro-batches", "benign", {"parts": 2}, reference=_LOSS),
    Case("a backward for each loss", "benign", {"backward": "each"}),
    Case("gradients unscaled", "benign", {"scale": 1000.0}),
    Case("batch turned", "benign", {"turned": True}),
    Case("2 threads", "benign", {"threads": 2}),
    Case("fused AdamW", "benign", {"implementation": "fused"}),
    Case("own norm, low precision", "benign", {"norming": "own"}, reference={"low": True}),
    Case("each loss, low precision", "benign", {"backward": "each"}, reference={"low": True}),
    Case("other init", "data", {"init": 1}, ("*weight@value", "book.codes@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("distances by cdist", "equal", {"distances": "cdist"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
