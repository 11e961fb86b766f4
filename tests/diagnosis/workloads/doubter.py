"""A Bayesian net on digits: its weights are normal, and evaluation asks it several times."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, digits

_CHANNELS, _WIDTH = 6, 20
_ASKED = 4
"""How often the net is asked about each image of an evaluation."""
_SHOWN = 24
"""Images that the evaluation sees."""


@dataclass(frozen=True)
class Doubter(Workload):
    """Bayes by backprop: a likelihood, a divergence from the prior, and a temperature for doubt.

    spread: what makes deviations of free numbers, "softplus" or "exp". root: what noise is
        multiplied by, the "root" of a variance or the "variance". squares: whether inputs are
        squared where variances are told. noise: one for each "sample" or one for the "batch".
    prior: the prior's deviation. side: of the divergence, "ours" or the "prior"'s. over: weights'
        divergences are a "sum" or a "mean". share: the part of the divergence that each batch
        bears, its own "part" or the "whole". warm: steps in which the divergence rises.
    mixes: what is averaged over the answers, "chances" or "logits". axis: the one that softmax is
        over. calibrates: whether the answers are "detached" from the temperature's loss.
    rests: whether the net is in eval mode while it is evaluated. momentum: of the running
        statistics.
    clears: whether gradients are forgotten before each step. quick: the factor of the learning rate
        of deviations. heats: the factor of the temperature's.
    low: whether the net runs under autocast to bfloat16.
    soft, linear, convolution, rooted, divergence, likelihood, chances, norming, scale,
        idle: other ways to write the same mathematics.
    """

    lr: float = 5e-3
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    decoupled: bool = False
    spread: str = "softplus"
    root: str = "root"
    squares: bool = True
    noise: str = "sample"
    prior: float = 0.5
    side: str = "ours"
    over: str = "sum"
    share: str = "part"
    warm: int = 3
    mixes: str = "chances"
    axis: int = -1
    calibrates: str = "detached"
    rests: bool = True
    momentum: float = 0.1
    clears: bool = True
    quick: float = 3.0
    heats: float = 2.0
    low: bool = False
    soft: str = "torch"
    linear: str = "torch"
    convolution: str = "torch"
    rooted: str = "sqrt"
    divergence: str = "own"
    likelihood: str = "torch"
    chances: str = "softmax"
    norming: str = "torch"
    scale: float = 1.0
    idle: str = "nothing"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self, seed)
            optimizer = self.adam(self._groups(model))
            session.watch(model, tensors="*", optimizer=optimizer)
            images, labels = digits()
            images, labels = images[-_SHOWN:].to(model.norm.weight.dtype), labels[-_SHOWN:]
            shown = (images.flip(0), labels.flip(0)) if self.turned else (images, labels)
            torch.manual_seed(seed)
            for step, (images, labels) in enumerate(self.images(seed)):
                if self.clears:
                    clear(optimizer, self)
                told = self._learn(model, images, labels, min(1.0, (step + 1) / self.warm))
                told["calibration_loss"] = self._doubt(model, *shown)
                self._back(told)
                if self.scale != 1:
                    for parameter in model.parameters():
                        parameter.grad.div_(self.scale)
                optimizer.step()

    def _groups(self, model):
        """Means, deviations and the temperature, each with a learning rate of its own."""
        named = list(model.named_parameters())
        rates = {"rho": self.lr * self.quick, "log_heat": self.lr * self.heats}
        kinds = [next((kind for kind in rates if name.endswith(kind)), "") for name, _ in named]
        return [
            {
                "params": [one for own, (_, one) in zip(kinds, named, strict=True) if own == kind],
                "lr": rates.get(kind, self.lr),
            }
            for kind in ("", *rates)
        ]

    def _told(self, model, images):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            logits = model(images[:, None])
        return logits.to(model.norm.weight.dtype)

    def _learn(self, model, images, labels, risen):
        """How unlikely the labels are, and how far weights are from the prior; each a batch's."""
        logits = self._told(model, images)
        if self.likelihood == "torch":
            unlikely = functional.cross_entropy(logits, labels)
        else:
            unlikely = logits.logsumexp(1).mean() - logits.gather(1, labels[:, None]).mean()
        far = anchorlib.anchor(sum(layer.far() for layer in model.layers()), "divergence")
        share = 1 / len(digits()[0]) if self.share == "part" else 1 / len(images)
        return {"likelihood_loss": unlikely, "complexity_loss": far * (risen * share)}

    def _doubt(self, model, images, labels):
        """The loss of the chances that several answers tell of images that are not learnt."""
        model.train(not self.rests)
        with torch.set_grad_enabled(self.calibrates == "attached"):
            logits = torch.stack([self._told(model, images) for _ in range(_ASKED)])
        model.train()
        logits = model.heat(logits)
        if self.mixes == "logits":
            told = logits.mean(0).log_softmax(-1)
        elif self.chances == "softmax":
            told = logits.softmax(self.axis).mean(0).log()
        else:
            told = logits.log_softmax(-1).logsumexp(0) - math.log(_ASKED)
        doubt = -(told.exp() * told).sum(-1)
        anchorlib.anchor(doubt.detach(), "doubt")
        return functional.nll_loss(told, labels)

    def _back(self, losses):
        """All losses' gradients."""
        loss = sum(losses.values())
        for name, one in (*losses.items(), ("loss", loss)):
            anchorlib.anchor(one, name)
        (loss * self.scale).backward()


class Bayes(nn.Module):
    """A layer with normal weights, of which only the sums' noise is drawn."""

    biased = True

    def __init__(self, how, name: str, seed: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.how, self.name = how, name
        self.mean = nn.Parameter(torch.randn(shape) / math.sqrt(math.prod(shape[1:])))
        self.rho = nn.Parameter(torch.randn(shape) * 0.1 - 2)
        if self.biased:
            self.bias_mean = nn.Parameter(torch.randn(shape[0]) * 0.1)
            self.bias_rho = nn.Parameter(torch.randn(shape[0]) * 0.1 - 2)
        self.draws = torch.Generator().manual_seed(31 + 1000 * seed + math.prod(shape))

    def forward(self, x):
        """Sums of x, with their noise."""
        how = self.how
        inputs = x.square() if how.squares else x.abs()
        normals = self._normals()
        mean = self._sums(x, *(mean for mean, _ in normals))
        wide = self._sums(inputs, *(spread.square() for _, spread in normals))
        if how.root == "root":
            wide = wide.sqrt() if how.rooted == "sqrt" else wide * wide.rsqrt()
        return mean + wide * self._noise(mean)

    def far(self):
        """The divergence of all weights from the prior."""
        found = torch.cat([self._far(*normal).flatten() for normal in self._normals()])
        return found.sum() if self.how.over == "sum" else found.mean()

    def _normals(self):
        """Means and deviations, of the weights and of biases."""
        found = [(self.mean, self._spread(self.rho))]
        if self.biased:
            found.append((self.bias_mean, self._spread(self.bias_rho)))
        return found

    def _far(self, mean, spread):
        how = self.how
        if how.divergence == "torch":
            return kl_divergence(Normal(mean, spread), Normal(0.0, how.prior))
        ratio = spread / how.prior
        if how.side == "ours":
            return (ratio.square() + (mean / how.prior).square() - 1) / 2 - ratio.log()
        return ((1 + (mean / how.prior).square()) / ratio.square() - 1) / 2 + ratio.log()

    def _spread(self, rho):
        if self.how.spread == "exp":
            return rho.exp()
        if self.how.soft == "torch":
            return functional.softplus(rho)
        return torch.logaddexp(rho, torch.zeros_like(rho))

    def _noise(self, like):
        shape = (1 if self.how.noise == "batch" else len(like), *like.shape[1:])
        drawn = torch.randn(shape, generator=self.draws, dtype=self.mean.dtype)
        drawn = drawn.flip(0) if self.how.turned else drawn
        return anchorlib.anchor(drawn, f"{self.name}_noise").to(like.dtype)


class Dense(Bayes):
    """A linear layer."""

    def _sums(self, x, weight, bias):
        if self.how.linear == "torch":
            return functional.linear(x, weight, bias)
        return torch.einsum("oi,ni->no", weight, x) + bias


class Conv(Bayes):
    """A 3 × 3 convolution that halves the image, without biases."""

    biased = False

    def _sums(self, x, weight):
        if self.how.convolution == "torch":
            return functional.conv2d(x, weight, stride=2, padding=1)
        patches = functional.unfold(x, 3, padding=1, stride=2)
        return (weight.flatten(1) @ patches).unflatten(2, (4, 4))


class Norm(nn.BatchNorm2d):
    """A batch norm, torch's or by its formula."""

    def __init__(self, how) -> None:
        super().__init__(_CHANNELS, momentum=how.momentum)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "torch":
            return super().forward(x)
        sizes = (1, -1, 1, 1)
        x = x.to(self.weight.dtype)
        spread, mean = self.running_var, self.running_mean
        if self.training:
            spread, mean = torch.var_mean(x, (0, 2, 3), correction=0)
            count = x.numel() // x.shape[1]
            with torch.no_grad():
                self.num_batches_tracked += 1
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(spread * (count / (count - 1)), self.momentum)
        factor = self.weight * (spread + self.eps).rsqrt()
        return (x - mean.view(sizes)) * factor.view(sizes) + self.bias.view(sizes)


class Heat(nn.Module):
    """Logits divided by a learnt temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.log_heat = nn.Parameter(torch.tensor([0.3]))

    def forward(self, logits):
        """The logits, cooler or hotter."""
        return logits / self.log_heat.exp()


class Net(nn.Module):
    """A convolution, a hidden layer and logits; the temperature stands beside them."""

    def __init__(self, how, seed: int) -> None:
        super().__init__()
        self.how = how
        self.conv = Conv(how, "conv", seed, (_CHANNELS, 1, 3, 3))
        self.norm = Norm(how)
        self.hidden = Dense(how, "hidden", seed, (_WIDTH, _CHANNELS * 16))
        self.name = Dense(how, "name", seed, (10, _WIDTH))
        self.heat = Heat()

    def layers(self):
        """The layers whose weights are in doubt."""
        return self.conv, self.hidden, self.name

    def forward(self, x):
        """Logits of images (sample, 1, 8, 8), once."""
        x = functional.silu(self.norm(self.conv(x))).flatten(1)
        if self.how.idle == "dropout":
            x = functional.dropout(x, 0.0)
        elif self.how.idle == "contiguous":
            x = x.contiguous()
        return self.name(functional.silu(self.hidden(x)))


_FIRST = ("conv@value",)
_FAR = ("divergence@*", "complexity_loss@*")
_CALIBRATION = ("calibration_loss@*", "doubt@value", "heat@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_DETACHED = r"detach|gradients come back|no_grad"
CASES = [
    Case(
        "exp for softplus",
        "bug",
        {"spread": "exp"},
        (*_FIRST, *_FAR),
        r"\b[Ee]xp(Backward|\b)|[Ss]oftplus",
    ),
    Case(
        "variances for deviations",
        "bug",
        {"root": "variance"},
        _FIRST,
        rf"\b[Ss]qrt|\bMul(Backward|\b)|{_GIVEN}",
    ),
    Case(
        "inputs of variances not squared",
        "bug",
        {"squares": False},
        _FIRST,
        rf"\b[Pp]ow|\b[Ss]quare|\b[Aa]bs(Backward|\b)|{_GIVEN}",
    ),
    Case(
        "one noise for all samples",
        "bug",
        {"noise": "batch"},
        ("conv_noise@value", *_FIRST),
        r"broadcast|\bshapes?\b|\bsizes?\b|\bexpand|\[1, 6, 4, 4\]|\(1, 6, 4, 4\)",
    ),
    Case(
        "divergence turned round",
        "bug",
        {"side": "prior"},
        _FAR,
        rf"\b[Ll]og(Backward|\b)|\bDiv|\bPow|\bSub(Backward|\b)|{_GIVEN}",
    ),
    Case(
        "divergence as a mean",
        "bug",
        {"over": "mean"},
        _FAR,
        rf"\bMean|\bSum(Backward|\b)|{_TIMES}",
    ),
    Case(
        "divergence not shared by batches",
        "bug",
        {"share": "whole"},
        ("complexity_loss@*", "divergence@grad"),
        rf"\bMul(Backward|\b)|{_TIMES}",
    ),
    Case(
        "divergence does not rise",
        "bug",
        {"warm": 1},
        ("complexity_loss@*", "divergence@grad"),
        rf"\bMul(Backward|\b)|{_TIMES}",
    ),
    Case(
        "logits averaged",
        "bug",
        {"mixes": "logits"},
        _CALIBRATION,
        r"\b[Mm]ean|[Ss]oftmax|\b[Ll]og(Backward|\b)",
    ),
    Case(
        "softmax over answers",
        "bug",
        {"axis": 0},
        _CALIBRATION,
        r"\bdim\b",
    ),
    Case(
        "answers attached to the calibration",
        "bug",
        {"calibrates": "attached"},
        ("output*@grad", "name*@*grad", "hidden*@*grad", "norm*@*grad", "conv*@*grad"),
        _DETACHED,
    ),
    Case(
        "evaluated in training mode",
        "bug",
        {"rests": False},
        ("norm@value", "norm.running*@value", "norm.num_batches*@value"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
    ),
    Case(
        "gradients not cleared",
        "bug",
        {"clears": False},
        ("*@grad",),
        r"zero_grad|accumulat|not (cleared|zeroed)|earlier steps?|step before|previous step",
        step=1,
    ),
    Case("deviations as slow as means", "bug", {"quick": 1.0}, UPDATES, r"\blr\b"),
    Case("beta2 of 0.9", "bug", {"betas": (0.9, 0.9)}, UPDATES, r"\bbetas?2?\b"),
    Case("softplus by logaddexp", "benign", {"soft": "logaddexp"}),
    Case("linear by einsum", "benign", {"linear": "einsum"}),
    Case("convolutions of patches", "benign", {"convolution": "patches"}),
    Case("root by rsqrt", "benign", {"rooted": "rsqrt"}),
    Case("divergence by torch", "benign", {"divergence": "torch"}),
    Case("likelihood by logsumexp", "benign", {"likelihood": "own"}),
    Case("chances in logarithms", "benign", {"chances": "logsumexp"}),
    Case("own batch norm", "benign", {"norming": "own"}),
    Case("digits turned", "benign", {"turned": True}),
    Case("fused Adam", "benign", {"implementation": "fused"}),
    Case(
        "linear by einsum, low precision", "benign", {"linear": "einsum"}, reference={"low": True}
    ),
    Case("loss scaled, gradients unscaled", "benign", {"scale": 1000.0}),
    Case("other init", "data", {"init": 1}, ("*mean@value", "*rho@value", "norm.*@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("dropout of nothing", "equal", {"idle": "dropout"}),
    Case("contiguous once more", "equal", {"idle": "contiguous"}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("died", "incomplete", {"ends_at": 4}),
]
