"""A net that takes sums of two harmonic sounds apart; which answer is whose is left open."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass

import torch
from torch import nn

import anchorlib
from tests.diagnosis.workloads.base import (
    Case,
    EndedError,
    Start,
    Workload,
    clear,
    cut,
)
from tests.diagnosis.workloads.unmixer import LENGTH, SOURCES, Unmixer

_HARMONICS = 5


@dataclass(frozen=True)
class Separator(Workload):
    """Mixtures are taken apart; the loss is how clean each sound is, whichever its place.

    front: bases are "learnt" or those of "fourier". windows: whether spectra have a window.
    norm_eps: of the norms. over: what they are over, "both" channels and frames or "channels".
    causal: whether convolutions see past frames alone. dilates: whether they reach further from
        block to block. adds: whether blocks are added to what they were given.
    shares: what masks' softmax is over, "sources" or "bases". masked: whether masks are for what is
        "encoded" or for what is "normed". trims: where sounds are cut, at "both" ends or at the
        "end". consistent: whether sounds are moved so that they sum to the mixture.
    centred: whether sounds are compared less their means. onto: what is projected onto, the
        "wanted" sounds or the "told" ones. projects: whether there is a projection at all.
    logarithm: of 10 or of e. matches: how places are found, by the "best" mean of a sample, the
        "worst", of the whole "batch", or not at all ("fixed").
    falls: the factor of the learning rate from step to step. clip: of gradients' norm. clips:
        whether it comes before the step ("early") or after it ("late"). clears: whether gradients
        are forgotten. parts: micro-batches a step.
    low: whether the net runs under autocast to bfloat16.
    frames, depth, fourier, norming, keeps, ratio, sums, enumerates, scale: other ways to write the
        same mathematics.
    """

    steps: int = 5
    batch: int = 6
    weight_decay: float = 0.0
    decoupled: bool = False
    front: str = "learnt"
    windows: bool = True
    norm_eps: float = 1e-8
    over: str = "both"
    causal: bool = False
    dilates: bool = True
    adds: bool = True
    shares: str = "sources"
    masked: str = "encoded"
    trims: str = "both"
    consistent: str = "sum"
    centred: bool = True
    onto: str = "wanted"
    projects: bool = True
    logarithm: str = "ten"
    matches: str = "best"
    falls: float = 0.9
    clip: float = 0.5
    clips: str = "early"
    clears: bool = True
    parts: int = 1
    low: bool = False
    frames: str = "convolution"
    depth: str = "torch"
    fourier: str = "torch"
    norming: str = "torch"
    keeps: str = "all"
    ratio: str = "quotient"
    sums: str = "products"
    enumerates: str = "diagonals"
    scale: float = 1.0

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Unmixer(self)
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.falls)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for sounds in self._sounds(seed):
                if self.clears:
                    clear(optimizer, self)
                for (part,) in cut(self.parts, sounds):
                    self._learn(model, part)
                if self.clips != "late":
                    self._bound(model)
                optimizer.step()
                if self.clips == "late":
                    self._bound(model)
                schedule.step()

    def _sounds(self, seed):
        """Pairs of sounds (sample, source, time), step by step: harmonics that swell or fade."""
        dealing = torch.Generator().manual_seed(31 + 1000 * seed + self.order)
        times = torch.arange(LENGTH) / LENGTH
        orders = torch.arange(1, _HARMONICS + 1)
        for step in range(self.steps):
            pitch, fade, loud, moved = torch.rand(4, self.batch, SOURCES, 1, generator=dealing)
            phases = torch.rand(self.batch, SOURCES, _HARMONICS, 1, generator=dealing)
            pitch = 4 + 8 * pitch + torch.tensor([[0.0], [9.0]])
            turns = pitch[..., None] * orders[:, None] * times + phases
            waves = (2 * math.pi * turns).sin() / orders[:, None] ** (1 + fade[..., None])
            sounds = waves.sum(2) * torch.exp(-3 * fade * times) * (0.5 + loud) + 0.3 * moved
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield sounds.flip(0) if self.turned else sounds

    def _learn(self, model, sounds):
        """The gradients of a part."""
        mixture = sounds.sum(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = model(mixture)
        ratios = anchorlib.anchor(self._ratios(told, sounds), "ratios")
        loss = -self._matched(ratios).mean() / self.parts
        anchorlib.anchor(loss, "loss")
        (loss * self.scale).backward()

    def _ratios(self, told, wanted):
        """How clean each told sound is as each wanted one, in decibels (sample, told, wanted)."""
        if self.centred:
            told = told - told.mean(-1, keepdim=True)
            wanted = wanted - wanted.mean(-1, keepdim=True)
        told, wanted = told[:, :, None], wanted[:, None]
        if self.sums == "products":
            shared = (told * wanted).sum(-1, keepdim=True)
            power = (told if self.onto == "told" else wanted).square().sum(-1, keepdim=True)
        else:
            shared = (told[:, :, 0] @ wanted[:, 0].transpose(1, 2))[..., None]
            power = torch.einsum("bisn,bisn->bis", wanted, wanted)[..., None]
        near = shared / (power + 1e-8) * wanted if self.projects else wanted
        rest = told - near
        right, wrong = near.square().sum(-1), rest.square().sum(-1)
        if self.ratio == "difference":
            return 10 * ((right + 1e-8).log10() - (wrong + 1e-8).log10())
        quotient = (right + 1e-8) / (wrong + 1e-8)
        return 10 * (quotient.log10() if self.logarithm == "ten" else quotient.log())

    def _matched(self, ratios):
        """How clean each sample's sounds are, in the places where they are cleanest."""
        if self.enumerates == "diagonals":
            straight = ratios.diagonal(dim1=1, dim2=2).mean(1)
            crossed = ratios.flip(2).diagonal(dim1=1, dim2=2).mean(1)
            both = torch.stack((straight, crossed), 1)
        else:
            places = torch.stack((torch.eye(SOURCES), torch.eye(SOURCES).flip(1)))
            both = torch.einsum("bij,pij->bp", ratios / SOURCES, places.to(ratios.dtype))
        anchorlib.anchor(both, "matches")
        if self.matches == "fixed":
            return both[:, 0]
        if self.matches == "batch":
            return both[:, both.mean(0).argmax()]
        return both.amin(1) if self.matches == "worst" else both.amax(1)

    @torch.no_grad()
    def _bound(self, model):
        """Gradients, unscaled and clipped."""
        grads = [one.grad for one in model.parameters() if one.grad is not None]
        if self.scale != 1:
            for grad in grads:
                grad.div_(self.scale)
        nn.utils.clip_grad_norm_(model.parameters(), self.clip)


_LOSS = ("loss@*", "matches@grad", "ratios@grad")
_RATIOS = ("ratios@value",)
_OUTPUT = ("output@value", "decoder@value")
_SPECTRAL = {"front": "fourier"}
CASES = [
    Case("sounds not centred", "bug", {"centred": False}, _RATIOS, r"\bmean|\bsub|cent(re|er)"),
    Case(
        "projected onto what is told",
        "bug",
        {"onto": "told"},
        _RATIOS,
        r"\bdiv|\bpow|\bsquare|project|\bsum(Backward|\b)",
    ),
    Case(
        "not invariant to scale",
        "bug",
        {"projects": False},
        _RATIOS,
        r"\bmul|\bdiv|project|scale|\bsub",
    ),
    Case("natural logarithm", "bug", {"logarithm": "e"}, _RATIOS, r"\blog(10)?(Backward|\b)"),
    Case(
        "places not permuted",
        "bug",
        {"matches": "fixed"},
        _LOSS,
        r"\ba?max|permut|\bselect|\bindex",
    ),
    Case("the worst places", "bug", {"matches": "worst"}, _LOSS, r"\ba?(max|min)(Backward|\b)"),
    Case(
        "places of the whole batch",
        "bug",
        {"matches": "batch"},
        _LOSS,
        r"\ba?max|permut|\bselect|\bindex",
    ),
    Case(
        "norms over channels alone",
        "bug",
        {"over": "channels"},
        ("norm@value",),
        r"group_?norm|var_?mean|\bdim\b|\baxis\b|layer_?norm",
    ),
    Case("softmax over bases", "bug", {"shares": "bases"}, ("masks@value",), r"\bdim\b|\baxis\b"),
    Case(
        "masks for what is normed",
        "bug",
        {"masked": "normed"},
        ("decoder@value", "decoder.input@value"),
        r"\bmul|computes it from|norm",
    ),
    Case(
        "without dilation", "bug", {"dilates": False}, ("blocks.1.depth@value",), r"dilation|\bpad"
    ),
    Case("past frames alone", "bug", {"causal": True}, ("blocks.0.depth@value",), r"\bpad|causal"),
    Case(
        "sounds cut at their end",
        "bug",
        {"trims": "end"},
        _OUTPUT,
        r"\bslice|\bnarrow|\bindex|shift|places?\b|\bpad",
    ),
    Case(
        "blocks not added",
        "bug",
        {"adds": False},
        ("blocks.0@value", "blocks.0:0@value", "blocks.1.*@value"),
        r"\badd|residual",
    ),
    Case(
        "sums not the mixture",
        "bug",
        {"consistent": "no"},
        _OUTPUT,
        r"\badd|\bsub|\bdiv|\bsum(Backward|\b)",
    ),
    Case(
        "spectra without a window",
        "bug",
        {"windows": False},
        ("encoder@value",),
        r"window|hann|\bmul|stft",
        reference=_SPECTRAL,
    ),
    Case(
        "gradients not forgotten",
        "bug",
        {"clears": False},
        ("*@grad", "*@pass_grad"),
        r"zero_grad|accumul|clear|\badd",
        step=1,
    ),
    Case("clipped after the step", "bug", {"clips": "late"}, ("*@grad",), r"\bclip"),
    Case("ratio as a difference", "benign", {"ratio": "difference"}),
    Case("projections by products", "benign", {"sums": "einsum"}),
    Case("dilated convolutions as sums", "benign", {"depth": "sums"}),
    Case("bases by frames", "benign", {"frames": "product"}),
    Case("masks by sigmoid", "benign", {"shares": "sigmoid"}),
    Case("own norms", "benign", {"norming": "own"}),
    Case("spectra by products", "benign", {"fourier": "product"}, reference=_SPECTRAL),
    Case("sums moved by a product", "benign", {"consistent": "product"}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("loss scaled, gradients unscaled", "benign", {"scale": 1000.0}),
    Case("own norms, low precision", "benign", {"norming": "own"}, reference={"low": True}),
    Case(
        "masks by sigmoid, low precision", "benign", {"shares": "sigmoid"}, reference={"low": True}
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("blocks computed again", "equal", {"keeps": "edges"}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("places by einsum", "equal", {"enumerates": "einsum"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
