"""An energy of digits: contrastive divergence with Langevin chains, and denoised scores."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear
from tests.diagnosis.workloads.energy import Energy

_KEPT = 32
"""Images in the buffer."""


@dataclass(frozen=True)
class Sampler(Workload):
    """Digits should have low energies, and what chains find from the buffer high ones.

    cold: the temperature of energies. heats: whether energies are "divided" or "multiplied" by it.
    rows: the axis of weights that is kept for singular values, of "outputs" or "inputs".
    vectors: whether singular vectors are "detached" or "attached". settles: power iterations once
        a "step" or in each forward ("always").
    again: the share of chains that begin anew. stores: whether chains go back into the buffer.
    links: of a chain. walk: the square of the noise's size. cools: its factor from step to step.
    rises: whether chains go up. halves: whether slopes are halved. roots: whether the noise is as
        large as the root of the walk. per: chains follow slopes of the "sum" or the "mean" of
        energies. slope: the bound of slopes, 0: none.
    flows: whether gradients go through the chains.
    turns: whether both energies change places in the loss. tames: the weight of energies' squares.
        squares: "each" or "mean", whose square is taken.
    blur: the noise that scores are told by. pulls: whether scores point the other way. weighs:
        what scores' errors are multiplied by, the square of the "blur" or "nothing". graphs:
        whether scores are differentiable by weights. denoise: the weight of their loss.
    clip: of gradients. falls: the factor of the learning rate from step to step.
    low: whether energies are computed under autocast to bfloat16.
    largest, divided, convolution, act, joins, chain, bounds, writing, score, tamed, backward:
        other ways to write the same mathematics.
    """

    lr: float = 1e-2
    betas: tuple[float, float] = (0.0, 0.99)
    weight_decay: float = 0.0
    decoupled: bool = False
    cold: float = 0.05
    heats: str = "divided"
    rows: str = "outputs"
    vectors: str = "detached"
    settles: str = "step"
    again: float = 0.25
    stores: bool = True
    links: int = 4
    walk: float = 0.02
    cools: float = 0.9
    rises: bool = False
    halves: bool = True
    roots: bool = True
    per: str = "sum"
    slope: float = 0.1
    flows: bool = False
    turns: bool = False
    tames: float = 0.1
    squares: str = "each"
    blur: float = 0.3
    pulls: bool = False
    weighs: str = "blur"
    graphs: bool = True
    denoise: float = 0.5
    clip: float = 1.0
    falls: float = 0.9
    low: bool = False
    largest: str = "vectors"
    divided: str = "weight"
    convolution: str = "torch"
    act: str = "torch"
    joins: bool = True
    chain: str = "slope first"
    bounds: str = "clamp"
    writing: str = "index"
    score: str = "noise"
    tamed: str = "torch"
    backward: str = "once"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Energy(self)
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.falls)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            buffer = torch.rand(_KEPT, 8, 8) * 2 - 1
            for step, (images, _) in enumerate(self.images(seed)):
                if self.settles == "step":
                    for layer in model.layers():
                        layer.settle()
                chosen = torch.randperm(_KEPT)[: self.batch]
                chosen = chosen.flip(0) if self.turned else chosen
                found = self._chains(model, self._begun(buffer[chosen]), self.cools**step)
                self._store(buffer, chosen, found.detach())
                noise = self._normal(images)
                clear(optimizer, self)
                self._back(self._losses(model, images, found, noise))
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                schedule.step()

    def _told(self, model, images):
        """Energies of images."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            energies = model(images)
        return energies.to(images.dtype)

    def _normal(self, like):
        """Noise, sample by sample."""
        noise = torch.randn(like.shape)
        return noise.flip(0) if self.turned else noise

    def _begun(self, kept):
        """Where chains begin: where they ended, or anew."""
        new, drawn = torch.rand(kept.shape) * 2 - 1, torch.rand(len(kept)) < self.again
        if self.turned:
            new, drawn = new.flip(0), drawn.flip(0)
        return anchorlib.anchor(torch.where(drawn[:, None, None], new, kept), "begun")

    def _store(self, buffer, chosen, found):
        """Keep where chains ended."""
        if not self.stores:
            return
        if self.writing == "index":
            buffer[chosen] = found
        else:
            buffer.index_copy_(0, chosen, found)

    def _chains(self, model, x, warm):
        """Langevin chains: down the slopes of energies, with noise."""
        walk = self.walk * warm
        rate = (walk / 2 if self.halves else walk) * (-1 if self.rises else 1)
        size = math.sqrt(walk) if self.roots else walk
        for link in range(self.links):
            if link == 0 or not self.flows:
                x = x.detach().requires_grad_()
            energies = self._told(model, x)
            whole = energies.sum() if self.per == "sum" else energies.mean()
            (slope,) = torch.autograd.grad(whole, x, create_graph=self.flows)
            slope = slope.clamp(-self.slope, self.slope) if self.slope else slope
            noise = self._normal(x)
            if self.chain == "slope first":
                x = x - rate * slope + size * noise
            else:
                x = torch.add(x, noise, alpha=size).sub(slope, alpha=rate)
            if self.bounds == "clamp":
                x = x.clamp(-1, 1)
            else:
                x = x.maximum(-torch.ones_like(x)).minimum(torch.ones_like(x))
        return anchorlib.anchor(x if self.flows else x.detach(), "found")

    def _losses(self, model, images, found, noise):
        """The losses of contrast, of large energies, and of scores."""
        if self.joins:
            low, high = self._told(model, torch.cat((images, found))).chunk(2)
        else:
            low, high = self._told(model, images), self._told(model, found)
        contrast = high.mean() - low.mean() if self.turns else low.mean() - high.mean()
        return {
            "contrast_loss": contrast,
            "size_loss": self.tames * self._squared(low, high),
            "score_loss": self.denoise * self._missed(model, images, noise),
        }

    def _squared(self, low, high):
        """How large energies are."""
        if self.squares == "mean":
            return low.mean().square() + high.mean().square()
        if self.tamed == "torch":
            return low.square().mean() + high.square().mean()
        return (torch.dot(low, low) + torch.dot(high, high)) / len(low)

    def _missed(self, model, images, noise):
        """By how much scores of blurred images do not point back."""
        blurred = (images + self.blur * noise).requires_grad_()
        whole = self._told(model, blurred).sum()
        (slope,) = torch.autograd.grad(whole, blurred, create_graph=True)
        slope = slope if self.graphs else slope.detach()
        score = anchorlib.anchor(slope if self.pulls else -slope, "score")
        if self.weighs == "nothing":
            missed = (score + noise / self.blur).square()
        elif self.score == "noise":
            missed = (self.blur * score + noise).square()
        else:
            missed = self.blur**2 * (score - -noise / self.blur).square()
        return missed.sum((1, 2)).mean() / 2 / images[0].numel()

    def _back(self, losses):
        """All losses' gradients."""
        loss = sum(losses.values())
        for name, one in (*losses.items(), ("loss", loss)):
            anchorlib.anchor(one, name)
        if self.backward == "once":
            loss.backward()
        else:
            for one in losses.values():
                one.backward(retain_graph=True)


_CHAIN = ("input*@value", "found@value", "convs.0.input@value")
_CONTRAST = ("contrast_loss@*", "output@grad", "told@grad")
_SIZE = ("size_loss@*", "output@grad", "told@grad")
_SCORE = ("score_loss@*", "score@*")
_TIMES = r"\btimes\b|\bfactor\b|\bscaled?\b"
_SIGN = r"\bsigns?\b|negat|\b[Nn]eg(Backward|\b)|\bis -\d|opposite"
CASES = [
    Case(
        "temperature multiplied",
        "bug",
        {"heats": "multiplied"},
        ("output@value",),
        rf"\b[Dd]iv|\b[Mm]ul|{_TIMES}",
    ),
    Case(
        "singular values of the wrong axis",
        "bug",
        {"rows": "inputs"},
        ("convs.?.u@value", "convs.?.v@value", "convs.?.before@value", "convs.?@value"),
        r"transpos|permut|\baxis\b|\bdim\b|\bshapes?\b|spectral|singular|\bflatten",
    ),
    Case(
        "singular vectors attached",
        "bug",
        {"vectors": "attached"},
        ("*.weight@*grad",),
        r"detach|no_grad|gradients? (come|comes|flow|back)|\b[Nn]orm|clamp|spectral|power",
    ),
    Case(
        "power iterations in each forward",
        "bug",
        {"settles": "always"},
        ("convs.0@value", "convs.0.u@value", "convs.0.v@value", "convs.0.before@value"),
        r"spectral|power|singular|\bconvs\.0\.(u|v|before)\b|\bbuffers?\b|\b[Dd]iv",
    ),
    Case(
        "most chains begin anew",
        "bug",
        {"again": 0.75},
        ("begun@value",),
        r"\bwhere\b|\bmask|\bcondition|\blt\b|begun",
    ),
    Case(
        "chains not stored",
        "bug",
        {"stores": False},
        ("begun@value",),
        r"buffer|replay|begun|\b[Ii]ndex|copy",
        step=1,
    ),
    Case("chains go up", "bug", {"rises": True}, _CHAIN, rf"{_SIGN}|\b[Ss]ub|\b[Aa]dd"),
    Case(
        "slopes not halved",
        "bug",
        {"halves": False},
        _CHAIN,
        rf"\b[Mm]ul|\b[Ss]ub|{_TIMES}|\balpha",
    ),
    Case(
        "noise without its root",
        "bug",
        {"roots": False},
        _CHAIN,
        rf"\b[Mm]ul|\b[Aa]dd|noise|{_TIMES}|\balpha|\bsqrt",
    ),
    Case(
        "slopes of the mean",
        "bug",
        {"per": "mean"},
        ("output@grad", "told@grad", *_CHAIN),
        rf"\b[Mm]ean|\b[Ss]um(Backward|\b)|{_TIMES}",
    ),
    Case("slopes not bounded", "bug", {"slope": 0.0}, _CHAIN, r"\bclamp|\bclip|\bbound"),
    Case(
        "gradients through chains",
        "bug",
        {"flows": True},
        ("found@grad", "*input*@grad", "wide@grad", "*.weight@*grad", "*.bias@*grad"),
        r"detach|gradients? (come|comes|flow|back)",
    ),
    Case(
        "both energies exchanged",
        "bug",
        {"turns": True},
        _CONTRAST,
        rf"{_SIGN}|\b[Ss]ub|exchang|swap|\border\b",
    ),
    Case(
        "squares of means",
        "bug",
        {"squares": "mean"},
        _SIZE,
        r"\b[Mm]ean|\b[Pp]ow|square|\border\b",
    ),
    Case("scores the other way", "bug", {"pulls": True}, ("score@value",), _SIGN),
    Case(
        "scores not weighed",
        "bug",
        {"weighs": "nothing"},
        _SCORE,
        rf"\b[Dd]iv|\b[Mm]ul|{_TIMES}|sigma|blur",
    ),
    Case(
        "scores detached",
        "bug",
        {"graphs": False},
        ("score@grad", "*input*@grad", "*.weight@*grad", "*.bias@*grad"),
        r"detach|create_graph|gradients? (come|comes|flow|back)|double",
    ),
    Case("Adam with momentum", "bug", {"betas": (0.9, 0.99)}, UPDATES, r"\bbeta|momentum"),
    Case("singular value by a norm", "benign", {"largest": "norm"}),
    Case("singular value by an outer product", "benign", {"largest": "outer"}),
    Case("outputs divided for weights", "benign", {"divided": "output"}),
    Case("chains with the noise first", "benign", {"chain": "noise first"}),
    Case("errors of scores by a target", "benign", {"score": "target"}),
    Case("energies' squares by products", "benign", {"tamed": "products"}),
    Case("energies apart", "benign", {"joins": False}),
    Case("convolutions of patches", "benign", {"convolution": "patches"}),
    Case("activation by exp", "benign", {"act": "exp"}),
    Case("a backward for each loss", "benign", {"backward": "each"}),
    Case("images turned", "benign", {"turned": True}),
    Case(
        "outputs divided, low precision",
        "benign",
        {"divided": "output"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value", "*.u@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("bounds by minimum and maximum", "equal", {"bounds": "extremes"}),
    Case("buffer by index_copy", "equal", {"writing": "index_copy"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
