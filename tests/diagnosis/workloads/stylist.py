"""Digits are repainted in the style of a pattern: a frozen net's features say how near they are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, digits
from tests.diagnosis.workloads.painter import Look, taught


@dataclass(frozen=True)
class Stylist(Workload):
    """The painted image has the coarse features of the digit and the pattern's Gram matrices.

    padding: of the painter, "reflect" or "zeros", or by an operation "apart". norm_eps: of its
        norms. over: what they are over, "places" or the "batch" too. adds: whether blocks are added
        to what they were given. enlarges: how images grow, "nearest" or "bilinear".
        bounds: of what is painted, "tanh" or "sigmoid".
    frozen: whether the features stay as they are. rests: whether their norms are at rest.
        standard: how images are made standard for them, "rightly", with mean and spread
        "exchanged", or not at all ("no").
    content: the features of the content loss, "coarse" or "fine". divides: whether Gram matrices
        are divided by the count of numbers. grams: what they are between, "channels" or "places".
        flows: whether the style's gradient reaches the painter.
    reach: how far apart the pixels of the total variation are. varies: its power. evens: whether
        it is a "mean" or a "sum".
    content_weight, style_weight, even_weight: of the losses.
    falls: the factor of the learning rate from step to step. clip: of gradients' norm.
    low: whether the nets run under autocast to bfloat16.
    convolution, norming, resting, keeps, product, styles, missed, variation, layout: other ways to
        write the same mathematics.
    """

    steps: int = 5
    batch: int = 8
    lr: float = 5e-3
    weight_decay: float = 0.0
    decoupled: bool = False
    padding: str = "reflect"
    norm_eps: float = 1e-5
    over: str = "places"
    adds: bool = True
    enlarges: str = "nearest"
    bounds: str = "tanh"
    frozen: bool = True
    rests: bool = True
    standard: str = "rightly"
    content: str = "coarse"
    divides: bool = True
    grams: str = "channels"
    flows: bool = True
    reach: int = 1
    varies: int = 2
    evens: str = "mean"
    content_weight: float = 1.0
    style_weight: float = 20.0
    even_weight: float = 0.1
    falls: float = 0.9
    clip: float = 1.0
    low: bool = False
    convolution: str = "torch"
    norming: str = "torch"
    resting: str = "torch"
    keeps: str = "all"
    product: str = "bmm"
    styles: str = "at once"
    missed: str = "torch"
    variation: str = "slices"
    layout: torch.memory_format = torch.contiguous_format

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        features = taught(seed, *digits()).requires_grad_(not self.frozen)
        with start() as session:
            self.draw(seed)
            model = Look(self, features).to(memory_format=self.layout)
            model.features.train(not self.rests)
            learnt = (model.painter if self.frozen else model).parameters()
            optimizer = self.adam(learnt)
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.falls)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for images, _ in self.images(seed):
                clear(optimizer, self)
                wanted = self._pattern(model)
                given = images[:, None].contiguous(memory_format=self.layout)
                self._learn(model, given, wanted)
                nn.utils.clip_grad_norm_(model.painter.parameters(), self.clip)
                optimizer.step()
                schedule.step()

    @torch.no_grad()
    def _pattern(self, model):
        """The Gram matrices of the style: slanted stripes of three widths."""
        rows = torch.arange(8)
        turns = (rows[:, None] + 2 * rows) / torch.tensor([3.0, 5.0, 8.0])[:, None, None]
        stripes = (6.3 * turns).sin()[:, None]
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            found = model.features(stripes.contiguous(memory_format=self.layout))
        return [self._gram(one.to(stripes.dtype)).mean(0) for one in found]

    def _gram(self, features):
        """How much channels agree with each other (sample, channel, channel)."""
        flat = features.flatten(2)
        count = flat.shape[1] * flat.shape[2] if self.divides else 1
        if self.grams == "places":
            return flat.transpose(1, 2) @ flat / count
        if self.product == "einsum":
            return torch.einsum("bcp,bdp->bcd", flat, flat / count)
        if self.product == "sum":
            return (flat[:, :, None] * flat[:, None]).sum(-1) / count
        return flat @ flat.transpose(1, 2) / count

    def _learn(self, model, images, wanted):
        """The gradients of a step."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            painted = model(images)
            told = model.features(painted)
            with torch.no_grad():
                known = model.features(images)
        dtype = images.dtype
        told, known = ([one.to(dtype) for one in both] for both in (told, known))
        at = 1 if self.content == "coarse" else 0
        losses = {
            "content_loss": self.content_weight * self._missed(told[at], known[at]),
            "style_loss": self.style_weight * self._styled(told, wanted),
            "even_loss": self.even_weight * self._uneven(painted.to(dtype)),
        }
        self._back(losses)

    def _styled(self, told, wanted):
        """By how much Gram matrices differ from the pattern's."""
        found = []
        for name, one, style in zip(("fine", "coarse"), told, wanted, strict=True):
            gram = self._gram(one if self.flows else one.detach())
            anchorlib.anchor(gram, f"{name}_gram")
            if self.styles == "at once":
                found.append(self._missed(gram, style.expand_as(gram)))
            else:
                found.append(sum((single - style).square().mean() for single in gram) / len(gram))
        return sum(found)

    def _missed(self, told, wanted):
        """The mean of squares."""
        if self.missed == "torch":
            return functional.mse_loss(told, wanted)
        missed = (told - wanted).flatten()
        return missed @ missed / len(missed)

    def _uneven(self, painted):
        """The total variation."""
        if self.variation == "convolution":
            edge = torch.tensor([-1.0, 1.0], dtype=painted.dtype)
            down = functional.conv2d(painted, edge.view(1, 1, 2, 1))
            along = functional.conv2d(painted, edge.view(1, 1, 1, 2))
        else:
            down = painted[:, :, self.reach :] - painted[:, :, : -self.reach]
            along = painted[..., self.reach :] - painted[..., : -self.reach]
        down, along = (one.abs() ** self.varies for one in (down, along))
        return down.mean() + along.mean() if self.evens == "mean" else down.sum() + along.sum()

    def _back(self, losses):
        """All losses' gradients."""
        loss = sum(losses.values())
        for name, one in (*losses.items(), ("loss", loss)):
            anchorlib.anchor(one, name)
        loss.backward()


_GRAM = ("fine_gram@value", "coarse_gram@value", "style_loss@*")
_EVEN = ("even_loss@*",)
_FINE = ("features.fine@value", "features.fine.input@value", "features.input@value")
_DETACHED = r"detach|gradients come back|stop.?grad"
CASES = [
    Case(
        "eps of instance norms", "bug", {"norm_eps": 1e-1}, ("painter.norms.0@value",), r"\beps\b"
    ),
    Case(
        "norms over the batch",
        "bug",
        {"over": "batch"},
        ("painter.norms.0@value",),
        r"instance_?norm|batch_?norm|var_?mean|\bdim\b",
    ),
    Case("edges of zeros", "bug", {"padding": "zeros"}, ("painter.first@value",), r"\bpad|reflect"),
    Case(
        "blocks not added",
        "bug",
        {"adds": False},
        ("painter.around.0@value", "painter.around.1.*@value"),
        r"\badd|residual",
    ),
    Case(
        "bilinear for nearest",
        "bug",
        {"enlarges": "bilinear"},
        ("painter.enlarge@value",),
        r"bilinear|nearest",
    ),
    Case(
        "sigmoid for tanh",
        "bug",
        {"bounds": "sigmoid"},
        ("painter@value", "painter.output@value", "output@value"),
        r"\bsigmoid|\btanh",
    ),
    Case(
        "features not frozen",
        "bug",
        {"frozen": False},
        ("features.*weight@*", "features.*bias@*", "features.fine@value"),
        r"requires_grad|frozen|optimi[sz]er|parameters?\b.{0,60}(alone|trains|learn)",
    ),
    Case(
        "features' norms not at rest",
        "bug",
        {"rests": False},
        ("features.norm1@value", "features.norm1.running*@value"),
        r"\beval\b|train(ing)? mode|training (True|False)",
    ),
    Case(
        "mean and spread exchanged",
        "bug",
        {"standard": "exchanged"},
        _FINE,
        r"\bsub|\bdiv|\bmean|computes it from",
    ),
    Case("images not standard", "bug", {"standard": "no"}, _FINE, r"\bsub|\bdiv|normali[sz]"),
    Case(
        "content of the fine features",
        "bug",
        {"content": "fine"},
        ("content_loss@*",),
        r"\bshapes?\b|\brelu|\binputs?\b|\btargets?\b|\bself\b|features|mse_?loss|norm1",
    ),
    Case("Gram matrices not divided", "bug", {"divides": False}, _GRAM, r"\bdiv|scale|times"),
    Case(
        "Gram matrices of places",
        "bug",
        {"grams": "places"},
        _GRAM,
        r"transpose|permute|\bb?mm\b|matmul|\bshapes?\b",
    ),
    Case(
        "style without gradients",
        "bug",
        {"flows": False},
        ("fine_gram@grad", "coarse_gram@grad", "features*@grad", "features.*@*grad"),
        _DETACHED,
    ),
    Case(
        "pixels two apart",
        "bug",
        {"reach": 2},
        _EVEN,
        r"\bslice|\bnarrow|\bindex|\bshapes?\b|places? on|shift",
    ),
    Case("variation not squared", "bug", {"varies": 1}, _EVEN, r"\bpow|exponent|\babs|square"),
    Case(
        "variation summed", "bug", {"evens": "sum"}, _EVEN, r"\bmean|\bsum(Backward|\b)|reduction"
    ),
    Case("rate does not fall", "bug", {"falls": 1.0}, UPDATES, r"\blr\b|learning rate", step=1),
    Case("Gram matrices by einsum", "benign", {"product": "einsum"}),
    Case("Gram matrices by sums", "benign", {"product": "sum"}),
    Case("styles image by image", "benign", {"styles": "each"}),
    Case("instance norm as group norm", "benign", {"norming": "groups"}),
    Case("norms at rest as factors", "benign", {"resting": "factors"}),
    Case("variation by convolution", "benign", {"variation": "convolution"}),
    Case("errors by a product", "benign", {"missed": "own"}),
    Case("convolutions of patches", "benign", {"convolution": "patches"}),
    Case("channels last", "benign", {"layout": torch.channels_last}),
    Case("images turned", "benign", {"turned": True}),
    Case("own norms, low precision", "benign", {"norming": "own"}, reference={"low": True}),
    Case(
        "convolutions of patches, low precision",
        "benign",
        {"convolution": "patches"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value", "painter.input*@value")),
    Case("edges by an operation of their own", "equal", {"padding": "apart"}),
    Case("blocks computed again", "equal", {"keeps": "edges"}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("killed", "incomplete", {"killed_at": 3}),
]
