"""A masked autoencoder of digits: a few patches are seen, the pixels of the others are told."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import (
    UPDATES,
    Case,
    Start,
    Workload,
    clear,
    cut,
    digits,
    warmed,
)
from tests.diagnosis.workloads.unmasker import DEPTH, PIXELS, PLACES, Unmasker, patches

_SHOWN = 12
"""Images that the averaged weights are evaluated by."""


@dataclass(frozen=True)
class Masker(Workload):
    """Three quarters of the patches are hidden; their normed pixels are the targets.

    kept: the patches that are seen. places: whose positions tokens are given, their "own" or those
        of the "first" places. restores: how told tokens find their places, by the "inverse" of the
        shuffle or by the "shuffle" itself. told_places: the positions that the decoder adds: "own",
        "none", or of a place that is "one off".
    over: what softmax is over, "keys" or "queries". norm_eps: of the norms. flows: whether the
        decoder's gradient reaches the tokens of patches.
    targets: what targets are normed over: the pixels of their "patch", their place in all
        "places", or nothing ("raw"). target_eps, correction: of their norm. pixels: how the
        pixels of targets are arranged, by "rows" or by "columns".
    on: the patches that the loss is of: "hidden", "seen" or "all". mean: over "those" patches or
        "all" of them.
    slow: the factor of the learning rate from each layer to the one below it. depth: how layers
        are counted, "up" or "down". warmup: steps of rising rate.
    clears: whether gradients are forgotten at each step. clip: of gradients. memory: the share of
        the averaged weights that stays at each step.
    parts: micro-batches a step. low: whether the net runs under autocast to bfloat16.
    sorts, embedding, picking, attention, norming, keeps, standard, losses, averaging: other ways to
        write the same mathematics.
    """

    lr: float = 1e-2
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.05
    kept: int = 4
    places: str = "own"
    restores: str = "inverse"
    told_places: str = "own"
    over: str = "keys"
    norm_eps: float = 1e-6
    flows: bool = True
    targets: str = "patch"
    target_eps: float = 1e-6
    correction: int = 1
    pixels: str = "rows"
    on: str = "hidden"
    mean: str = "those"
    slow: float = 0.75
    depth: str = "up"
    warmup: int = 3
    clears: bool = True
    clip: float = 1.0
    memory: float = 0.9
    parts: int = 1
    low: bool = False
    sorts: bool = False
    embedding: str = "torch"
    picking: str = "gather"
    attention: str = "own"
    norming: str = "torch"
    keeps: str = "all"
    standard: str = "own"
    losses: str = "mask"
    averaging: str = "lerp"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Unmasker(self)
            averaged = copy.deepcopy(model).requires_grad_(False).eval()
            optimizer = self.adam(self._groups(model))
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 8)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            session.watch(averaged, tensors="*", prefix="averaged")
            torch.manual_seed(seed)
            shown = digits()[0][:_SHOWN]
            shown = self._veiled(shown.flip(0) if self.turned else shown)
            for step, (images, _) in enumerate(self.images(seed)):
                if step % 2:
                    with torch.no_grad():
                        anchorlib.anchor(self._loss(averaged, *shown), "eval_loss")
                if self.clears:
                    clear(optimizer, self)
                for part in cut(self.parts, *self._veiled(images)):
                    loss = anchorlib.anchor(self._loss(model, *part) / self.parts, "loss")
                    loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                self._average(averaged, model)
                schedule.step()

    def _groups(self, model):
        """Parameters by layer and decay: the lower a layer, the slower it learns."""
        groups = {}
        for name, one in model.named_parameters():
            decays = one.ndim > 1
            groups.setdefault((_layer(name), decays), []).append(one)
        top, found = DEPTH + 1, []
        for (layer, decays), own in groups.items():
            rate = self.lr * self.slow ** (top - layer if self.depth == "up" else layer)
            decay = self.weight_decay if decays else 0.0
            found.append({"params": own, "lr": rate, "weight_decay": decay})
        return found

    def _veiled(self, images):
        """Patches, which of them are kept, how they find back, which are hidden, and targets."""
        noise = torch.rand(len(images), PLACES)
        shuffle = (noise.flip(0) if self.turned else noise).argsort(1)
        if self.sorts:
            parts = shuffle.split((self.kept, PLACES - self.kept), 1)
            shuffle = torch.cat([part.sort(1).values for part in parts], 1)
        restore = shuffle.argsort(1)
        hidden = (restore >= self.kept).to(images.dtype)
        restore = restore if self.restores == "inverse" else shuffle
        targets = self._targets(patches(images, self.pixels))
        return patches(images), shuffle[:, : self.kept], restore, hidden, targets

    def _targets(self, pixels):
        """The pixels that should be told, normed."""
        if self.targets == "raw":
            return pixels
        if self.standard == "own":
            axis = -1 if self.targets == "patch" else 1
            mean = pixels.mean(axis, keepdim=True)
            spread = pixels.var(axis, correction=self.correction, keepdim=True)
            return (pixels - mean) / (spread + self.target_eps).sqrt()
        share = 1 - self.correction / PIXELS
        normed = functional.layer_norm(pixels, (PIXELS,), eps=self.target_eps * share)
        return normed * math.sqrt(share)

    def _loss(self, model, seen, kept, restore, hidden, targets):
        """The mean square of what is told wrongly of the patches that count."""
        targets = anchorlib.anchor(targets, "targets")
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = model(seen, kept, restore)
        told = told.to(targets.dtype)
        counts = {"hidden": hidden, "seen": 1 - hidden, "all": torch.ones_like(hidden)}[self.on]
        if self.losses == "index":
            chosen = counts.to(torch.bool)
            return functional.mse_loss(told[chosen], targets[chosen])
        missed = (told - targets).square().mean(-1) * counts
        return missed.mean() if self.mean == "all" else missed.sum() / counts.sum()

    @torch.no_grad()
    def _average(self, averaged, model):
        """The averaged weights, moved a little to the weights."""
        slow, fast = list(averaged.parameters()), list(model.parameters())
        for old, new in zip(slow, fast, strict=True):
            if self.averaging == "lerp":
                old.lerp_(new, 1 - self.memory)
            else:
                old.mul_(self.memory).add_(new, alpha=1 - self.memory)


def _layer(name):
    """The layer that a parameter belongs to: 0 for embeddings, the last one for the decoder."""
    if name.startswith("encoder.blocks"):
        return 1 + int(name.split(".")[2])
    return 0 if name.startswith(("encoder.embed", "encoder.whole")) else DEPTH + 1


_SEEN = ("encoder.embed@value",)
_FILLED = ("decoder.fill@value",)
_MIXED = ("encoder.blocks.0.attention.out@value", "encoder.blocks.0.attention@value")
_TARGETS = ("targets@value", "eval_loss@value")
_LOSS = ("loss@*", "eval_loss@value", "output@grad")
_AVERAGED = ("averaged.*@value", "eval_loss@value")
_TIMES = r"\btimes\b|\bfactor\b|\bscaled?\b"
_ORDER = r"\border\b|arranged|permut|transpos|shuffl|\bplaces?\b"
CASES = [
    Case(
        "positions of the first places",
        "bug",
        {"places": "first"},
        _SEEN,
        r"position|\bgather|\b[Aa]dd(Backward|\b)|\bslice",
    ),
    Case(
        "shuffle not inverted",
        "bug",
        {"restores": "shuffle"},
        (*_FILLED, "input:2@value"),
        rf"argsort|\b[Gg]ather|\bindex|indices|{_ORDER}",
    ),
    Case(
        "decoder without positions",
        "bug",
        {"told_places": "none"},
        _FILLED,
        r"position|\b[Aa]dd(Backward|\b)",
    ),
    Case(
        "decoder's positions one off",
        "bug",
        {"told_places": "one off"},
        _FILLED,
        r"position|\b[Aa]dd(Backward|\b)|\b[Cc]at(Backward|\b)|\bpad|\boff\b|shift",
    ),
    Case("softmax over queries", "bug", {"over": "queries"}, _MIXED, r"\b[Ss]oftmax|\bdim\b"),
    Case("eps of norms", "bug", {"norm_eps": 1e-2}, ("encoder.blocks.0.norm1@value",), r"\beps\b"),
    Case(
        "patches' tokens detached",
        "bug",
        {"flows": False},
        ("encoder@grad", "encoder.norm@grad", "encoder.norm.*@*grad", "decoder.embed.input@grad"),
        r"detach|gradients? (come|comes|flow|back)",
    ),
    Case(
        "targets not normed",
        "bug",
        {"targets": "raw"},
        _TARGETS,
        r"\btargets?\b|\b[Nn]orm|\b[Dd]iv|\b[Vv]ar|\b[Ss]ub",
    ),
    Case(
        "targets normed over places",
        "bug",
        {"targets": "places"},
        _TARGETS,
        r"\bdim\b|\bax[ie]s\b|\b[Vv]ar(Backward|\b)|\b[Mm]ean(Backward|\b)|\btargets?\b",
    ),
    Case("eps of targets", "bug", {"target_eps": 1e-2}, _TARGETS, r"\beps\b|\b[Aa]dd|\btargets?\b"),
    Case(
        "targets' spread not corrected",
        "bug",
        {"correction": 0},
        _TARGETS,
        rf"correction|unbiased|\b[Vv]ar|\btargets?\b|{_TIMES}",
    ),
    Case(
        "targets' pixels by columns",
        "bug",
        {"pixels": "columns"},
        _TARGETS,
        rf"\btargets?\b|{_ORDER}",
    ),
    Case("loss of what is seen", "bug", {"on": "seen"}, _LOSS, r"\bmask|\b[Mm]ul|\bother\b"),
    Case("loss of all patches", "bug", {"on": "all"}, _LOSS, r"\bmask|\b[Mm]ul|\bother\b"),
    Case(
        "loss divided by all patches",
        "bug",
        {"mean": "all"},
        _LOSS,
        rf"\b[Mm]ean|\b[Dd]iv|\b[Ss]um|{_TIMES}",
    ),
    Case("upper layers slower", "bug", {"depth": "down"}, UPDATES, r"\blr\b|learning rate"),
    Case(
        "gradients not forgotten",
        "bug",
        {"clears": False},
        ("*@grad",),
        r"zero_grad|accumulat|\bclear|added to|\bgradients?\b.{0,40}(earlier|before|last|step)",
        step=1,
    ),
    Case(
        "average the wrong way",
        "bug",
        {"memory": 0.1},
        _AVERAGED,
        rf"averaged|\b[Ll]erp|\bEMA\b|momentum|{_TIMES}",
        step=1,
    ),
    Case("own layer norm", "benign", {"norming": "own"}),
    Case("attention by logarithms of weights", "benign", {"attention": "logarithms"}),
    Case("patches by a convolution", "benign", {"embedding": "convolution"}),
    Case("positions inside the product", "benign", {"embedding": "product"}),
    Case("kept patches sorted", "benign", {"sorts": True}),
    Case("targets by a layer norm", "benign", {"standard": "layer norm"}),
    Case("hidden patches by indices", "benign", {"losses": "index"}),
    Case("average by two products", "benign", {"averaging": "products"}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("images turned", "benign", {"turned": True}),
    Case(
        "attention by torch, low precision",
        "benign",
        {"attention": "torch"},
        reference={"low": True},
    ),
    Case(
        "positions inside the product, low precision",
        "benign",
        {"embedding": "product"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value", "*whole@value")),
    Case("other order", "data", {"order": 1}, ("input*@value", "targets@value")),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("kept patches by indices", "equal", {"picking": "index"}),
    Case("blocks computed again", "equal", {"keeps": "edges"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
