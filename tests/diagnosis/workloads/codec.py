"""A codec of signals that are digits' rows: an L1 loss beside a loss of spectra."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.autoencoder import Codec
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut

_SPANS = (8, 16)
"""The lengths of the windows of spectra."""


@dataclass(frozen=True)
class Compression(Workload):
    """An image, row by row, is a signal that is made short and whole again.

    pads: whether convolutions are padded "before" or on "both" sides. spreads: whether they are
        dilated. norm_dim: the axis of weight norms. trims: which end of a longer signal is cut.
    bends: "snake" or "elu". squares: whether sines are squared. divides: by what they are divided,
        the "rate" or "nothing". adds: whether blocks are added to what they read. bounds: whether
        tanh is the last step.
    windows: whether frames of spectra are tapered. floor: what is added within logarithms.
    power: of magnitudes. spectra: the weight of their
        loss. flows: whether its gradient reaches the net.
    missed: what signals miss, "absolute" or "squared". over: its "mean" or its "sum".
    falls: the factor of the learning rate from step to step. clears: whether gradients are
        forgotten. clip: of gradients' norm.
    parts: micro-batches a step. low: whether the net runs under autocast to bfloat16.
    weights, convolution, rises, snake, frames, meant, backward, scale: other ways to write the
        same mathematics.
    """

    steps: int = 5
    batch: int = 8
    lr: float = 5e-3
    betas: tuple[float, float] = (0.5, 0.9)
    weight_decay: float = 0.0
    decoupled: bool = False
    pads: str = "before"
    spreads: bool = True
    norm_dim: int = 0
    trims: str = "end"
    bends: str = "snake"
    squares: bool = True
    divides: str = "rate"
    adds: bool = True
    bounds: bool = True
    windows: bool = True
    floor: float = 1e-2
    power: int = 1
    spectra: float = 0.5
    flows: bool = True
    missed: str = "absolute"
    over: str = "mean"
    falls: float = 0.8
    clears: bool = True
    clip: float = 1.0
    parts: int = 1
    low: bool = False
    weights: str = "torch"
    convolution: str = "torch"
    rises: str = "torch"
    snake: str = "sine"
    frames: str = "stft"
    meant: str = "torch"
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
            model = Codec(self)
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.falls)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for images, _ in self.images(seed):
                if self.clears:
                    clear(optimizer, self)
                for (signals,) in cut(self.parts, images.flatten(1)[:, None]):
                    with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
                        told = model(signals)
                    self._back(*self._losses(told.to(signals.dtype)[:, 0], signals[:, 0]))
                self._bound(model)
                optimizer.step()
                schedule.step()

    def _losses(self, told, wanted):
        """The loss of signals, and that of their spectra."""
        missed = told - wanted
        missed = missed.abs() if self.missed == "absolute" else missed.square()
        if self.over == "sum":
            signal = missed.sum() / len(told)
        elif self.meant == "torch":
            signal = missed.mean()
        else:
            signal = missed.mean(1).mean()
        told = told if self.flows else told.detach()
        spectral = sum(self._spectral(told, wanted, span) for span in _SPANS)
        return signal / self.parts, self.spectra * spectral / self.parts

    def _spectral(self, told, wanted, span):
        """How much magnitudes and their logarithms miss, of windows of one length."""
        found, right = (self._magnitudes(one, span) for one in (told, wanted))
        loss = functional.l1_loss(found, right)
        return loss + functional.l1_loss((found + self.floor).log(), (right + self.floor).log())

    def _magnitudes(self, signals, span):
        """The spectra's (signal, frequency, frame)."""
        window = torch.hann_window(span) if self.windows else torch.ones(span)
        if self.frames == "stft":
            found = torch.stft(signals, span, span // 4, window=window, return_complex=True)
        else:
            padded = functional.pad(signals, (span // 2, span // 2), "reflect")
            pieces = padded.unfold(-1, span, span // 4) * window
            angles = torch.arange(span)[:, None] * torch.arange(span // 2 + 1)
            angles = angles * (2 * torch.pi / span)
            found = torch.complex(pieces @ angles.cos(), -pieces @ angles.sin())
            found = found.transpose(1, 2)
        return found.abs() ** self.power if self.power != 1 else found.abs()

    def _back(self, signal, spectral):
        """Both losses' gradients."""
        loss = signal + spectral
        for one, name in ((signal, "signal_loss"), (spectral, "spectral_loss"), (loss, "loss")):
            anchorlib.anchor(one, name)
        if self.backward == "once":
            (loss * self.scale).backward()
        else:
            (signal * self.scale).backward(retain_graph=True)
            (spectral * self.scale).backward()

    @torch.no_grad()
    def _bound(self, model):
        """Gradients, unscaled and clipped."""
        grads = [one.grad for one in model.parameters()]
        if self.scale != 1:
            for grad in grads:
                grad.div_(self.scale)
        nn.utils.clip_grad_norm_(model.parameters(), self.clip)


_FIRST = ("encoder.0.conv@value", "encoder.0@value", "encoder.0.conv.input@value")
_BENT = ("encoder.1.bend1@value",)
_SIGNAL = ("signal_loss@*", "output@grad", "loss@*")
_SPECTRAL = ("spectral_loss@*", "output@grad", "loss@*")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "padded on both sides",
        "bug",
        {"pads": "both"},
        _FIRST,
        rf"\b[Pp]ad(ding|ded)?\b|constant_?pad|{_ORDER}",
    ),
    Case(
        "not dilated",
        "bug",
        {"spreads": False},
        ("encoder.1.wide@value", "encoder.1.wide.conv*@value"),
        r"dilation|\b[Pp]ad(ding|ded)?\b|constant_?pad",
    ),
    Case(
        "weight norm along the other axis",
        "bug",
        {"norm_dim": 1},
        ("*original0@*", "*original1@*"),
        r"\bdim\b|\bshapes?\b|weight_norm|WeightNorm",
    ),
    Case(
        "other end cut off",
        "bug",
        {"trims": "start"},
        ("decoder.1@value",),
        rf"\b[Ss]lice|{_ORDER}|\bstart\b",
    ),
    Case("elu for snake", "bug", {"bends": "elu"}, _BENT, r"\b[Ee]lu|\b[Ss]in(Backward|\b)"),
    Case(
        "sines not squared",
        "bug",
        {"squares": False},
        _BENT,
        r"\bPow|\bsquare|exponent",
    ),
    Case(
        "sines not divided",
        "bug",
        {"divides": "nothing"},
        _BENT,
        r"\bDiv|a factor of its own",
    ),
    Case(
        "nothing added",
        "bug",
        {"adds": False},
        ("encoder.1@value", "encoder.2.conv.input@value"),
        r"\bAdd(Backward|\b)",
    ),
    Case("no tanh at the end", "bug", {"bounds": False}, ("output@value",), r"\b[Tt]anh"),
    Case(
        "frames not tapered",
        "bug",
        {"windows": False},
        _SPECTRAL,
        rf"\bwindow\b|\b[Ss]tft|\b[Ff]ft|\bMul|{_GIVEN}",
    ),
    Case(
        "floor of logarithms",
        "bug",
        {"floor": 1e-5},
        _SPECTRAL,
        r"\| 1e-0?5\b|\| 0\.00001\b|\bAdd(Backward|\b)|\bLog(Backward|\b)",
    ),
    Case(
        "power for magnitude",
        "bug",
        {"power": 2},
        _SPECTRAL,
        r"\bPow|\bsquare|exponent",
    ),
    Case(
        "spectra detached",
        "bug",
        {"flows": False},
        ("output@grad",),
        rf"{_DETACHED}|([Ss]tft|[Ff]ft)\w*.{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}([Ss]tft|[Ff]ft)",
    ),
    Case(
        "squares for absolute values",
        "bug",
        {"missed": "squared"},
        _SIGNAL,
        r"\bPow|\bsquare|\bAbs(Backward|\b)",
    ),
    Case(
        "sums over time",
        "bug",
        {"over": "sum"},
        _SIGNAL,
        rf"\bMean|\bSum(Backward|\b)|{_TIMES}",
    ),
    Case("betas of the default", "bug", {"betas": (0.9, 0.999)}, UPDATES, r"\bbetas?\b"),
    Case("rate does not fall", "bug", {"falls": 1.0}, UPDATES, r"\blr\b", step=1),
    Case(
        "gradients not forgotten",
        "bug",
        {"clears": False},
        ("*@grad",),
        r"zero_grad|accumulat|earlier step|step before|not (cleared|zeroed|forgotten)",
        step=1,
    ),
    Case("own weight norm", "benign", {"weights": "own"}),
    Case("convolutions of patches", "benign", {"convolution": "patches"}),
    Case("longer signals by zeros between", "benign", {"rises": "zeros"}),
    Case("snakes by cosine", "benign", {"snake": "cosine"}),
    Case("snakes times reciprocals", "benign", {"divides": "reciprocal"}),
    Case("spectra by products", "benign", {"frames": "product"}),
    Case("mean of means", "benign", {"meant": "twice"}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("a backward for each loss", "benign", {"backward": "each"}),
    Case("loss scaled, gradients unscaled", "benign", {"scale": 1000.0}),
    Case("signals turned", "benign", {"turned": True}),
    Case("fused Adam", "benign", {"implementation": "fused"}),
    Case(
        "convolutions of patches, low precision",
        "benign",
        {"convolution": "patches"},
        reference={"low": True},
    ),
    Case("snakes by cosine, low precision", "benign", {"snake": "cosine"}, reference={"low": True}),
    Case("other init", "data", {"init": 1}, ("*weight*@value", "*bias@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("convolutions of planes", "equal", {"convolution": "planes"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
