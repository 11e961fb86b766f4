"""Latents that read digits: attention to pixels that know their places, in rounds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut, renamed
from tests.diagnosis.workloads.latents import Perceiver as Net


@dataclass(frozen=True)
class Perceiver(Workload):
    """Few latents attend to many pixels and then to themselves, three times by the same weights.

    waves: whether "both" sines and cosines tell places, or "sines" twice. places: "exact", or in
        "low" precision. spread: of the latents as drawn.
    seen: the share of pixels that attention sees. hides: the others "wholly", or their scores are
        "zero". root: of whose size scores are divided by, the "head"'s or the "width"'s. over: what
        softmax is over, "places" or "latents". returns: whether heads are moved back.
    adds: whether what is read from pixels is added to the latents. gelu: exact ("none") or "tanh".
    norm_eps: of the norms. dropout: its share. rounds: how many. cuts: whether latents are detached
        between them. pools: the mean is over "latents" or "features".
    warmup: steps of rising rate. lag: how many steps the rise is late.
    clip, clips: of gradients, by their "torch" norm, their "own" norm, or "late", after the step.
    all_decay: whether biases, norms and latents decay too.
    parts: micro-batches a step. low: whether the net runs under autocast to bfloat16.
    spare: whether the model has a norm that nothing uses. names: whether layers of the gated part
        have names, or "numbers".
    attention, reads, keeps: other ways to write the same mathematics.
    """

    lr: float = 5e-3
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.1
    waves: str = "both"
    places: str = "exact"
    spread: float = 0.02
    seen: float = 0.75
    hides: str = "wholly"
    root: str = "head"
    over: str = "places"
    returns: bool = True
    adds: bool = True
    gelu: str = "none"
    norm_eps: float = 1e-5
    dropout: float = 0.1
    rounds: int = 3
    cuts: bool = False
    pools: str = "latents"
    warmup: int = 4
    lag: int = 0
    clip: float = 0.5
    clips: str = "torch"
    all_decay: bool = False
    parts: int = 1
    low: bool = False
    spare: bool = False
    names: str = "names"
    attention: str = "own"
    reads: str = "each round"
    keeps: str = "all"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            if self.names == "numbers":
                renamed(model, {"up": "0", "gate": "1", "drop": "2", "down": "3"})
            optimizer = self.adam(self._groups(model))
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: min(1.0, (step + 1 - self.lag) / self.warmup)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for images, labels in self.images(seed):
                mask = torch.rand(len(images), 64) < self.seen
                mask = mask.flip(0) if self.turned else mask
                clear(optimizer, self)
                for part in cut(self.parts, images, labels, mask):
                    self._learn(model, *part)
                self._bound(model)
                optimizer.step()
                if self.clips == "late":
                    nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                schedule.step()

    def _groups(self, model):
        """The layers' weights, which decay, and all else."""
        named = [
            (one.ndim > 1 and name != "latents", one) for name, one in model.named_parameters()
        ]
        return [
            {"params": [one for deep, one in named if deep], "weight_decay": self.weight_decay},
            {
                "params": [one for deep, one in named if not deep],
                "weight_decay": self.weight_decay if self.all_decay else 0.0,
            },
        ]

    def _learn(self, model, images, labels, mask):
        """The gradients of one micro-batch."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            logits = model(images, mask)
        logits = logits.to(model.head.weight.dtype)
        loss = functional.cross_entropy(logits, labels, label_smoothing=0.1) / self.parts
        anchorlib.anchor(loss, "loss").backward()

    @torch.no_grad()
    def _bound(self, model):
        """Gradients, clipped."""
        if self.clips == "torch":
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)
        elif self.clips == "own":
            grads = [one.grad for one in model.parameters()]
            length = sum(grad.square().sum() for grad in grads).sqrt()
            for grad in grads:
                grad.mul_((self.clip / (length + 1e-6)).clamp(max=1))


_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
_READ = ("cross.attention.out@value", "cross.attention@value")
CASES = [
    Case("softmax over latents", "bug", {"over": "latents"}, _READ, r"\bdim\b", step=0),
    Case(
        "root of the whole width",
        "bug",
        {"root": "width"},
        _READ,
        rf"\bMul|{_TIMES}|{_GIVEN}",
        step=0,
    ),
    Case(
        "heads not moved back",
        "bug",
        {"returns": False},
        _READ,
        rf"permute|transpose|{_ORDER}|\bview|reshape",
        step=0,
    ),
    Case(
        "hidden scores are zero",
        "bug",
        {"hides": "zero"},
        _READ,
        r"masked_?fill|[Mm]asked|\bmask|-3\.4\d*e",
        step=0,
    ),
    Case(
        "sines twice",
        "bug",
        {"waves": "sines"},
        ("fourier@value",),
        r"\b[Cc]os(Backward|\b)",
        step=0,
    ),
    Case(
        "places in low precision",
        "bug",
        {"places": "low"},
        ("fourier@value",),
        r"bfloat16|\bdtypes?\b|\bcasts?\b|precision|\b_?to(_copy|Copy\w*)?\b",
        step=0,
    ),
    Case(
        "latents replaced by what they read",
        "bug",
        {"adds": False},
        ("cross.norm2@value", "cross@value"),
        rf"\bAdd(Backward|\b)|{_GIVEN}|computes it from",
        step=0,
    ),
    Case("gelu by tanh", "bug", {"gelu": "tanh"}, ("cross.feed.gate@value",), r"approximate|tanh"),
    Case("eps of norms", "bug", {"norm_eps": 1e-6}, ("cross.norm1@value",), r"\beps\b"),
    Case(
        "a round too few",
        "bug",
        {"rounds": 2},
        ("pooled@value", "norm@value", "cross.norm1@value", "own@value", "cross@value"),
        r"\bcall(s|ed)?\b|occurrence|A alone|fewer|only A|computes it from|[Mm]ean\w* self",
        step=0,
    ),
    Case(
        "latents detached between rounds",
        "bug",
        {"cuts": True},
        ("own@grad", "own.*@*grad", "cross@grad", "cross.*@*grad", "latents@*grad"),
        rf"{_DETACHED}|lacks|alone",
        step=0,
    ),
    Case(
        "mean over features",
        "bug",
        {"pools": "features"},
        ("pooled@value", "norm@value"),
        rf"\bdim\b|{_ORDER}",
        step=0,
    ),
    Case(
        "warm-up begins at zero",
        "bug",
        {"lag": 1},
        UPDATES,
        r"\blr\b|learning rate",
        step=0,
    ),
    Case(
        "clipped after the step",
        "bug",
        {"clips": "late"},
        ("*.weight@grad", "*.bias@grad", "latents@grad"),
        rf"\bclip|{_TIMES}|\bnorms?\b of",
        step=0,
    ),
    Case("everything decays", "bug", {"all_decay": True}, UPDATES, r"weight_decay"),
    Case("attention by torch", "benign", {"attention": "torch"}),
    Case("2 micro-batches", "benign", {"parts": 2}, reference={"dropout": 0.0}),
    Case("keys and values of pixels once", "benign", {"reads": "once"}),
    Case("norm of gradients by hand", "benign", {"clips": "own"}),
    Case(
        "attention by einsum, low precision",
        "benign",
        {"attention": "einsum"},
        reference={"low": True},
    ),
    Case("latents drawn wider", "data", {"spread": 0.2}, ("latents@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("rounds computed again", "equal", {"keeps": "edges"}),
    Case("layers by numbers", "equal", {"names": "numbers"}),
    Case("a norm that nothing uses", "equal", {"spare": True}),
    Case("died", "incomplete", {"ends_at": 4}),
]
