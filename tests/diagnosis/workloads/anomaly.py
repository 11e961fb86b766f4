"""One digit is normal: an encoder, begun as an autoencoder's, draws it into a sphere."""

from __future__ import annotations

import os
import signal
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import (
    UPDATES,
    Case,
    EndedError,
    Start,
    Workload,
    clear,
    digits,
    renamed,
)

_WIDTH, _CODE = 8, 8


@dataclass(frozen=True)
class Anomaly(Workload):
    """Deep SVDD with a soft boundary.

    normal: the digit that is learned. before: steps as an autoencoder. begins: the rate of these.
    norm_eps: of the norms. flows: whether the encoder learns as a part of the autoencoder.
    center_eps: how far from 0 each number of the centre lies at least. center_mode: of the encoder
        while the centre is set. sets: the centre is set "once" or at "each" step. wakes: whether
        the encoder trains again thereafter.
    distance: squares are a "sum" or a "mean". nu: the share that may lie outside. share: which
        quantile the radius is, "inside" or "outside". squares: whether the radius is squared in
        the scores. hinge: whether what lies inside costs nothing. warmup: steps without a radius.
    clears: whether gradients are forgotten while the sphere is learned. milestone: the step after
        which the rate falls.
    low: whether nets run under autocast to bfloat16.
    spare: whether there is a layer that nothing uses. names: of the encoder's parts.
    distances, outside, norming, convolution, layout: other ways to write the same mathematics.
    """

    steps: int = 8
    batch: int = 32
    lr: float = 5e-3
    weight_decay: float = 1e-3
    decoupled: bool = False
    normal: int = 3
    before: int = 3
    begins: float = 1e-2
    norm_eps: float = 1e-4
    flows: bool = True
    center_eps: float = 0.1
    center_mode: str = "eval"
    sets: str = "once"
    wakes: bool = True
    distance: str = "sum"
    nu: float = 0.2
    share: str = "inside"
    squares: bool = True
    hinge: bool = True
    warmup: int = 1
    clears: bool = True
    milestone: int = 3
    low: bool = False
    spare: bool = False
    names: str = "block"
    distances: str = "plain"
    outside: str = "relu"
    norming: str = "torch"
    convolution: str = "torch"
    layout: torch.memory_format = torch.contiguous_format

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            net = Net(self).to(memory_format=self.layout)
            if self.names != "block":
                renamed(net, {f"block{at}": f"{self.names}{at}" for at in (1, 2)})
            first = self.adam(net.parameters(), lr=self.begins)
            optimizer = self.adam(net.encoder.parameters())
            schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [self.milestone], 0.1)
            session.watch(net, tensors="*", optimizer=[first, optimizer])
            torch.manual_seed(seed)
            sphere = Sphere(self)
            for step, x in enumerate(self._normal(seed)):
                if step < self.before:
                    self._rebuild(net, first, x)
                else:
                    self._draw_in(net, optimizer, sphere, x, step - self.before)
                    schedule.step()
                session.step()

    def _normal(self, seed):
        """Batches of the normal digit, with its contrast made even, in 0 to 1."""
        images, labels = digits()
        images = images[labels == self.normal][:, None]
        images = images - images.mean((1, 2, 3), keepdim=True)
        images = images / images.abs().mean((1, 2, 3), keepdim=True)
        images = (images - images.min()) / (images.max() - images.min())
        dealing = torch.Generator().manual_seed(19 + 1000 * seed + self.order)
        for step in range(self.steps):
            chosen = torch.randint(0, len(images), (self.batch,), generator=dealing)
            chosen = chosen.flip(0) if self.turned else chosen
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield images[chosen].contiguous(memory_format=self.layout)

    def _rebuild(self, net, optimizer, x):
        """A step of the autoencoder."""
        clear(optimizer, self)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = net(x)
        missed = (told.to(x.dtype) - x).square().flatten(1).sum(1)
        loss = anchorlib.anchor(missed.mean(), "ae_loss")
        loss.backward()
        optimizer.step()

    def _coded(self, net, x):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            return net.encoder(x).to(x.dtype)

    def _draw_in(self, net, optimizer, sphere, x, step):
        """A step of the encoder, drawn to the centre."""
        if step == 0 or self.sets == "each":
            net.train(self.center_mode == "train")
            with torch.no_grad():
                sphere.begin(self._coded(net, x))
            net.train(self.wakes)
        if self.clears:
            clear(optimizer, self)
        distances = sphere.distances(self._coded(net, x))
        anchorlib.anchor(sphere.loss(distances), "loss").backward()
        optimizer.step()
        if step >= self.warmup:
            sphere.fit(distances.detach())


class Sphere:
    """Where normal codes lie."""

    def __init__(self, how) -> None:
        self.how = how
        self.center = torch.zeros(_CODE)
        self.radius = torch.tensor(0.0)

    def begin(self, codes):
        """Set the centre from codes, nowhere too near to 0: that were too easy."""
        center, eps = codes.mean(0), self.how.center_eps
        center[(center.abs() < eps) & (center < 0)] = -eps
        center[(center.abs() < eps) & (center > 0)] = eps
        self.center = center

    def distances(self, codes):
        """The squares of the codes' distances from the centre."""
        apart = codes - anchorlib.anchor(self.center, "center")
        if self.how.distances == "norms":
            found = torch.linalg.vector_norm(apart, dim=1).square()
        elif self.how.distance == "sum":
            found = (apart**2).sum(1)
        else:
            found = (apart**2).mean(1)
        return anchorlib.anchor(found, "dist")

    def loss(self, distances):
        """The soft boundary's loss."""
        how = self.how
        radius = anchorlib.anchor(self.radius, "radius")
        scores = distances - (radius**2 if how.squares else radius)
        anchorlib.anchor(scores, "scores")
        if not how.hinge:
            missed = scores.mean()
        elif how.outside == "relu":
            missed = functional.relu(scores).mean()
        else:
            missed = scores[scores > 0].sum() / len(scores)
        return radius**2 + missed / how.nu

    def fit(self, distances):
        """Set the radius so that the wanted share lies outside."""
        share = 1 - self.how.nu if self.how.share == "inside" else self.how.nu
        self.radius = torch.quantile(distances.sqrt(), share)


class Conv(nn.Conv2d):
    """A 3 × 3 convolution, torch's or as a product with patches."""

    def __init__(self, how, into: int, out: int) -> None:
        super().__init__(into, out, 3, padding=1, bias=False)
        self.how = how

    def forward(self, x):
        """The convolution."""
        if self.how.convolution == "torch":
            return super().forward(x)
        patches = functional.unfold(x, 3, padding=1)
        return (self.weight.flatten(1) @ patches).unflatten(2, x.shape[2:])


class Norm(nn.BatchNorm2d):
    """A batch norm without weights, torch's or by its formula."""

    def __init__(self, how, size: int) -> None:
        super().__init__(size, eps=how.norm_eps, affine=False)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "torch":
            return super().forward(x)
        wide = x.to(self.running_mean.dtype)
        mean, spread = self.running_mean, self.running_var
        if self.training:
            spread, mean = torch.var_mean(wide, (0, 2, 3), correction=0)
            count = x.numel() // x.shape[1]
            with torch.no_grad():
                self.num_batches_tracked += 1
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(spread * (count / (count - 1)), self.momentum)
        wide = wide - mean[:, None, None]
        return (wide * (spread + self.eps).rsqrt()[:, None, None]).to(x.dtype)


class Block(nn.Module):
    """A convolution, normed and bent, of images that are then halved or were doubled before."""

    def __init__(self, how, into: int, out: int, up: bool = False) -> None:
        super().__init__()
        self.conv, self.norm = Conv(how, into, out), Norm(how, out)
        self.act, self.pool = nn.LeakyReLU(0.1), nn.MaxPool2d(2)
        self.up = nn.Upsample(scale_factor=2) if up else None

    def forward(self, x):
        """Smaller or larger images."""
        if self.up is None:
            return self.pool(self.act(self.norm(self.conv(x))))
        return self.act(self.norm(self.conv(self.up(x))))


class Net(nn.Module):
    """An encoder, and the decoder that it begins with."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.encoder = nn.Sequential(
            OrderedDict(
                block1=Block(how, 1, _WIDTH),
                block2=Block(how, _WIDTH, 4),
                flat=nn.Flatten(),
                code=nn.Linear(16, _CODE, bias=False),
            )
        )
        self.decoder = nn.Sequential(
            OrderedDict(
                image=nn.Unflatten(1, (_CODE // 4, 2, 2)),
                act=nn.LeakyReLU(0.1),
                up1=Block(how, _CODE // 4, _WIDTH, up=True),
                up2=Block(how, _WIDTH, _WIDTH, up=True),
                last=Conv(how, _WIDTH, 1),
                pixels=nn.Sigmoid(),
            )
        )
        if how.spare:
            self.spare = nn.utils.skip_init(nn.Linear, _CODE, 1)
            nn.init.zeros_(self.spare.weight)
            nn.init.zeros_(self.spare.bias)

    def forward(self, x):
        """Images, rebuilt."""
        codes = self.encoder(x)
        return self.decoder(codes if self.how.flows else codes.detach())


_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_MODE = r"eval mode|train(ing)? mode|training (True|False)|\beval\b"
_NORMED = ("encoder.block1.norm@value", "encoder.block1.norm.running_*@*")
_CENTER = ("center@value",)
_SCORES = ("scores@value",)
CASES = [
    Case(
        "centre may lie near 0",
        "bug",
        {"center_eps": 0.0},
        _CENTER,
        r"\bindex_put|\bwhere|\bmasked|\bclamp|\beps\b|\b0\.1\b|center",
        step=3,
    ),
    Case("centre set in train mode", "bug", {"center_mode": "train"}, (*_NORMED, *_CENTER), _MODE),
    Case(
        "centre set at each step",
        "bug",
        {"sets": "each"},
        (*_CENTER, "encoder*@value"),
        r"center|\bmean\b|eval|in B alone|only in B",
        step=4,
    ),
    Case(
        "distances as means",
        "bug",
        {"distance": "mean"},
        ("dist@*", "encoder@grad", "encoder.code@grad"),
        rf"\bMean|\bSum(Backward|\b)|{_TIMES}",
        step=3,
    ),
    Case(
        "radius not squared",
        "bug",
        {"squares": False},
        _SCORES,
        rf"\bPow|square|\bSub(Backward|\b)|{_GIVEN}",
        step=5,
    ),
    Case(
        "quantile of the wrong side",
        "bug",
        {"share": "outside"},
        ("radius@value",),
        r"quantile|radius|\bq\b",
        step=5,
    ),
    Case(
        "inside counts too",
        "bug",
        {"hinge": False},
        ("loss@value", "scores@grad"),
        r"\brelu|\bclamp|\bthreshold",
        step=5,
    ),
    Case(
        "gradients never forgotten",
        "bug",
        {"clears": False},
        ("encoder.*@grad",),
        r"zero_grad|accumulat|forgot|cleared|zeroed|previous step|step before|earlier",
        step=3,
    ),
    Case("encoder still in eval mode", "bug", {"wakes": False}, _NORMED, _MODE, step=3),
    Case(
        "code detached from decoder",
        "bug",
        {"flows": False},
        ("encoder@grad", "encoder.*@*grad", "decoder.image@grad", "decoder.act@grad"),
        r"detach|gradients come back|lacks|no gradient",
        step=0,
    ),
    Case(
        "decay outside the gradient",
        "bug",
        {"decoupled": True},
        UPDATES,
        r"decoupled|weight_decay|AdamW",
        step=0,
    ),
    Case("default eps of norms", "bug", {"norm_eps": 1e-5}, _NORMED, r"\beps\b", step=0),
    Case("distances as squared norms", "benign", {"distances": "norms"}),
    Case("what lies outside by a mask", "benign", {"outside": "mask"}),
    Case("own batch norm", "benign", {"norming": "own"}),
    Case("convolutions by patches", "benign", {"convolution": "patches"}),
    Case("fused Adam", "benign", {"implementation": "fused"}),
    Case("channels last", "benign", {"layout": torch.channels_last}),
    Case("batch turned", "benign", {"turned": True}),
    Case("own batch norm, low precision", "benign", {"norming": "own"}, reference={"low": True}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other normal digit", "data", {"normal": 5}, ("*input*@value",)),
    Case("blocks renamed", "equal", {"names": "layer"}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("spare layer", "equal", {"spare": True}),
    Case("died", "incomplete", {"ends_at": 4}),
]
