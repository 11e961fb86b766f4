"""A normalising flow of digits: activation norms, triangular mixes, affine couplings, volumes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut

_PIXELS, _HALF, _HIDDEN = 64, 32, 40


@dataclass(frozen=True)
class Flow(Workload):
    """A volume is the logarithm of a Jacobian's determinant, which the loss adds up.

    margin: that the logit keeps from both ends.
    leaves_out: the volume that is not counted, of the "logit" or the "norm".
    begins: when norms are set by data, at the "first" or "each" step; inverts: whether by one over
        the spread, else by the spread.
    lower: the highest diagonal of the lower triangle. diagonal: what a mix's volume adds up, the
        "logarithms" of the upper one's diagonal or its "values".
    alternates: whether every second coupling moves the other half. bounded: whether its scale is.
        swapped: whether scale and shift change places. backwards: whether it runs as its inverse.
        sign: of its volume. sums: that over the "sample" or the "batch". labels: whether it is
        told the label, "attached", "detached" or "not".
    deviation: of the prior. per_pixel: whether the loss is of one pixel.
    forgets: every how many steps gradients are forgotten. smoothing, centered, momentum: of
        RMSprop. decays_all: whether scales and biases decay too.
    gain: of each coupling's last weights.
    logit, affine, prior, mixing, determinant, volumes, turning, checkpoints, silu, norming: how it
        is written, of one mathematics.
    """

    steps: int = 4
    batch: int = 16
    lr: float = 2e-3
    adam_eps: float = 1e-6
    margin: float = 0.05
    leaves_out: str = ""
    begins: str = "first"
    inverts: bool = True
    lower: int = -1
    diagonal: str = "logarithms"
    alternates: bool = True
    bounded: bool = True
    swapped: bool = False
    backwards: bool = False
    sign: float = 1.0
    sums: str = "sample"
    labels: str = "attached"
    deviation: float = 1.0
    per_pixel: bool = True
    forgets: int = 1
    clip: float = 50.0
    smoothing: float = 0.95
    centered: bool = False
    momentum: float = 0.0
    decays_all: bool = False
    gain: float = 1.0
    parts: int = 1
    logit: str = "torch"
    affine: str = "plain"
    prior: str = "own"
    mixing: str = "in turn"
    determinant: str = "diagonal"
    volumes: str = "in turn"
    turning: str = "flip"
    checkpoints: bool = False
    silu: str = "torch"
    norming: str = "together"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            optimizer = self._optimizer(model)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for step, (images, labels) in enumerate(self.images(seed)):
                pixels = self._pixels(images)
                if step == 0 or self.begins == "each":
                    model.begin(pixels, labels)
                if step % self.forgets == 0:
                    clear(optimizer, self)
                for part in cut(self.parts, pixels, labels):
                    loss = self._loss(*model(*part)) / self.parts
                    anchorlib.anchor(loss, "loss")
                    loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()

    def _pixels(self, images):
        """Pixels from 0 to 1, each somewhere in its level."""
        levels = (images.flatten(1) + 1) * 8
        within = torch.rand_like(levels)
        return (levels + (within.flip(0) if self.turned else within)) / 17

    def _optimizer(self, model):
        named = list(model.named_parameters())
        flat = [one for _, one in named if one.ndim < 2]
        deep = [one for _, one in named if one.ndim > 1]
        return torch.optim.RMSprop(
            [
                {"params": deep},
                {"params": flat, "weight_decay": self.weight_decay if self.decays_all else 0.0},
            ],
            lr=self.lr,
            alpha=self.smoothing,
            eps=self.adam_eps,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            centered=self.centered,
            foreach=self.implementation == "foreach",
        )

    def _loss(self, z, volume):
        """Bits that a pixel takes."""
        if self.prior == "torch":
            chance = torch.distributions.Normal(0.0, self.deviation).log_prob(z).sum(1)
        else:
            far = (z / self.deviation).square().sum(1) / 2
            chance = -far - _PIXELS * (math.log(2 * math.pi) / 2 + math.log(self.deviation))
        loss = -(chance + volume).mean() / math.log(2)
        return loss / _PIXELS if self.per_pixel else loss


class Logit(nn.Module):
    """Pixels from 0 to 1, kept a margin from both, spread over all numbers."""

    def __init__(self, how: Flow) -> None:
        super().__init__()
        self.how = how

    def forward(self, pixels):
        """Their logits and the volume."""
        how = self.how
        inner = how.margin + (1 - 2 * how.margin) * pixels
        if how.logit == "torch":
            x = torch.logit(inner)
            volume = -inner.log() - (1 - inner).log()
        else:
            x = inner.log() - (1 - inner).log()
            volume = functional.softplus(x) + functional.softplus(-x)
        return x, (volume + math.log(1 - 2 * how.margin)).sum(1)


class Norm(nn.Module):
    """A scale and a shift that begin as the data have them."""

    def __init__(self, how: Flow) -> None:
        super().__init__()
        self.how = how
        self.scale, self.shift = nn.Parameter(torch.zeros(64)), nn.Parameter(torch.zeros(64))

    @torch.no_grad()
    def begin(self, x):
        """Begin as these data have it."""
        spread = (x.std(0) + 1e-3).log()
        self.scale.copy_(-spread if self.how.inverts else spread)
        self.shift.copy_(-x.mean(0))

    def forward(self, x):
        """x, normed, and the volume."""
        scale = self.scale.exp()
        if self.how.norming == "apart":
            return x * scale + self.shift * scale, self.scale.sum()
        return (x + self.shift) * scale, self.scale.sum()


class Mix(nn.Module):
    """A product with a lower and an upper triangle."""

    def __init__(self, how: Flow) -> None:
        super().__init__()
        self.how = how
        self.lower, self.upper = (
            nn.Parameter(torch.randn(_PIXELS, _PIXELS) * 0.05) for _ in range(2)
        )
        self.diagonal = nn.Parameter(torch.randn(_PIXELS) * 0.1)

    def forward(self, x):
        """x, mixed, and the volume."""
        how = self.how
        lower = self.lower.tril(how.lower) + torch.eye(_PIXELS)
        upper = self.upper.triu(1) + self.diagonal.exp().diag()
        x = x @ (lower @ upper).T if how.mixing == "at once" else (x @ upper.T) @ lower.T
        if how.determinant == "torch":
            return x, torch.linalg.slogdet(lower @ upper).logabsdet
        values = self.diagonal.exp() if how.diagonal == "values" else self.diagonal
        return x, values.sum()


class SiLU(nn.Module):
    """x sigmoid(x), in one of two ways."""

    def __init__(self, how: Flow) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """The activation."""
        return functional.silu(x) if self.how.silu == "torch" else x * torch.sigmoid(x)


class Coupling(nn.Module):
    """One half scales and shifts the other."""

    def __init__(self, how: Flow) -> None:
        super().__init__()
        self.how = how
        self.enter, self.label = nn.Linear(_HALF, _HIDDEN), nn.Embedding(10, _HIDDEN)
        self.act, self.leave = SiLU(how), nn.Linear(_HIDDEN, 2 * _HALF)
        with torch.no_grad():
            self.leave.weight.mul_(how.gain)

    def forward(self, x, labels):
        """x, its second half moved, and the volume."""
        how = self.how
        kept, moved = x.chunk(2, 1)
        scale, shift = self._told(kept, labels).chunk(2, 1)[:: -1 if how.swapped else 1]
        scale = scale.tanh() if how.bounded else scale
        if how.backwards:
            moved, scale = (moved - shift) * (-scale).exp(), -scale
        elif how.affine == "plain":
            moved = moved * scale.exp() + shift
        else:
            moved = torch.addcmul(shift, moved, scale.exp())
        volume = scale.sum(1) if how.sums == "sample" else scale.sum()
        return torch.cat((kept, moved), 1), volume if how.sign == 1 else how.sign * volume

    def _told(self, kept, labels):
        h = self.enter(kept)
        if self.how.labels != "not":
            label = self.label(labels)
            h = h + (label if self.how.labels == "attached" else label.detach())
        return self.leave(self.act(h))


class Block(nn.Module):
    """A norm, a mix, a coupling of one half or the other."""

    def __init__(self, how: Flow, *, turned: bool) -> None:
        super().__init__()
        self.how, self.turned = how, turned
        self.norm, self.mix, self.coupling = Norm(how), Mix(how), Coupling(how)

    def forward(self, x, labels):
        """x, moved, and the volume."""
        x, of_norm = self.norm(x)
        x, of_mix = self.mix(x)
        x, of_coupling = self.coupling(self._turned(x), labels)
        volume = of_mix + of_coupling
        return self._turned(x), volume if self.how.leaves_out == "norm" else volume + of_norm

    def _turned(self, x):
        if not self.turned:
            return x
        return x.flip(1) if self.how.turning == "flip" else x[:, torch.arange(_PIXELS - 1, -1, -1)]


class Net(nn.Module):
    """Logits, and three blocks."""

    def __init__(self, how: Flow) -> None:
        super().__init__()
        self.how = how
        self.logit = Logit(how)
        self.blocks = nn.ModuleList(
            Block(how, turned=how.alternates and at % 2 == 1) for at in range(3)
        )

    @torch.no_grad()
    def begin(self, pixels, labels):
        """Let the norms begin as these data have it."""
        x, _ = self.logit(pixels)
        for block in self.blocks:
            block.norm.begin(x)
            x, _ = block(x, labels)

    def forward(self, pixels, labels):
        """What stands for the pixels, and the volume."""
        how = self.how
        x, volume = self.logit(pixels)
        volumes = [volume * 0 if how.leaves_out == "logit" else volume]
        for block in self.blocks:
            if how.checkpoints:
                x, volume = checkpoint(block, x, labels, use_reentrant=False)
            else:
                x, volume = block(x, labels)
            volumes.append(volume)
        if how.volumes == "at once":
            return x, torch.stack(volumes[::-1]).sum(0)
        return x, sum(volumes[1:], volumes[0])


_VOLUME = ("output:1@value",)
_NORM = ("blocks.0.norm.scale@value",)
_COUPLING = ("blocks.0.coupling@value",)
_COUPLING_VOLUME = ("blocks.0.coupling:1@value",)
# The last block's outputs are the net's own.
_LAST = ("blocks.2@grad", "blocks.2.coupling@grad", "blocks.2:1@grad", "blocks.2.coupling:1@grad")
_LOSS = ("loss@*", "output@grad", "output:1@grad", *_LAST)
_TIMES = r"is -?[\d.]+ times A"
CASES = [
    Case(
        "margin of the logit",
        "bug",
        {"margin": 1e-3},
        ("logit@value",),
        r"0\.001\b|1e-0?3|0\.998|\bMul|\bAdd(Backward|\b)|margin",
    ),
    Case(
        "volume of the logit forgotten",
        "bug",
        {"leaves_out": "logit"},
        _VOLUME,
        r"\bMul|\bmul\b|\bAdd(Backward|\b)|\badd\b|logit:1|by zero|\bzeros?\b",
    ),
    Case(
        "volume of the norm forgotten",
        "bug",
        {"leaves_out": "norm"},
        ("blocks.0:1@value",),
        r"\bAdd(Backward|\b)|\badd\b|norm:1|another term",
    ),
    Case(
        "norms begin with the spread",
        "bug",
        {"inverts": False},
        _NORM,
        rf"\bNeg|\bneg\b|\bsigns?\b|{_TIMES}|revers|invers",
    ),
    Case(
        "norms begin at each step",
        "bug",
        {"begins": "each"},
        ("blocks.0.norm.scale@value", "blocks.0.norm.shift@value", "logit@value"),
        r"written|overwr|\bset\b|outside|cop(y|ied)|by the optimizer|in B alone|only in B",
        step=1,
    ),
    Case(
        "lower triangle with its diagonal",
        "bug",
        {"lower": 0},
        ("blocks.0.mix@value",),
        r"[Tt]ril|diagonal",
    ),
    Case(
        "volume of values for logarithms",
        "bug",
        {"diagonal": "values"},
        ("blocks.0.mix:1@value",),
        r"\b[Ee]xp(Backward|\b)|\b[Ll]og(Backward|\b)",
    ),
    Case(
        "halves not exchanged",
        "bug",
        {"alternates": False},
        ("blocks.1.coupling*@value",),
        r"[Ff]lip|other order|permut|revers|swap|turned",
    ),
    Case("scale not bounded", "bug", {"bounded": False}, _COUPLING, r"[Tt]anh"),
    Case(
        "scale and shift swapped",
        "bug",
        {"swapped": True},
        _COUPLING,
        r"swap|exchang|other order|permut|[Ss]plit|[Cc]hunk|[Ss]lice",
    ),
    Case(
        "coupling backwards",
        "bug",
        {"backwards": True},
        _COUPLING,
        r"\bNeg|\bneg\b|\bSub|\bsub\b|invers",
    ),
    Case(
        "sign of the volume",
        "bug",
        {"sign": -1.0},
        _COUPLING_VOLUME,
        r"is -1(\.0)? times A|\bNeg|\bneg\b|\bsigns?\b|-1\b",
    ),
    Case(
        "volume summed over the batch",
        "bug",
        {"sums": "batch"},
        _COUPLING_VOLUME,
        r"\bdim\b|\baxis\b|shape|\[\]|scalar",
    ),
    Case(
        "label not told",
        "bug",
        {"labels": "not"},
        ("blocks.0.coupling.act@value", "blocks.0.coupling.label@value"),
        r"\bAdd(Backward|\b)|\badd\b|Embedding|label.{0,80}(only|alone)|(only|alone).{0,80}label",
    ),
    Case(
        "label detached",
        "bug",
        {"labels": "detached"},
        ("*.label@grad", "*.label.weight@*"),
        r"detach|label.{0,80}(only|alone)|(only|alone).{0,80}label",
    ),
    Case(
        "prior narrower",
        "bug",
        {"deviation": 0.7},
        _LOSS,
        rf"\b0\.7\b|\b1\.4\d*|\b0\.49\b|\b2\.04\d*|\bDiv|{_TIMES}",
    ),
    Case("bits of all pixels", "bug", {"per_pixel": False}, _LOSS, rf"\bDiv|\bdiv\b|{_TIMES}|64"),
    Case(
        "gradients forgotten every second step",
        "bug",
        {"forgets": 2},
        ("*@grad",),
        r"zero_grad",
        step=1,
    ),
    Case("smoothing of RMSprop", "bug", {"smoothing": 0.99}, UPDATES, r"\balpha\b"),
    Case(
        "scales decay too",
        "bug",
        {"decays_all": True, "weight_decay": 0.1},
        UPDATES,
        r"weight_decay",
        reference={"weight_decay": 0.1},
    ),
    Case("logit by logarithms", "benign", {"logit": "own"}),
    Case("scaled and shifted at once", "benign", {"affine": "at once"}),
    Case("prior by torch", "benign", {"prior": "torch"}),
    Case("triangles multiplied first", "benign", {"mixing": "at once"}),
    Case("determinant by torch", "benign", {"determinant": "torch"}),
    Case("volumes at once", "benign", {"volumes": "at once"}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("batch turned", "benign", {"turned": True}),
    Case("silu by a sigmoid", "benign", {"silu": "own"}),
    Case("norm multiplied out", "benign", {"norming": "apart"}),
    Case("other init", "data", {"init": 1}, ("*weight@value", "*mix.lower@value")),
    Case("couplings begin smaller", "data", {"gain": 0.1}, ("*coupling.leave.weight@value",)),
    Case("again", "equal"),
    Case("turned by index", "equal", {"turning": "index"}),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("blocks checkpointed", "equal", {"checkpoints": True}),
    Case("died", "incomplete", {"ends_at": 3}),
]
