"""A tagger of sounds: log mel spectra with SpecAugment, an encoder, and attention pooling."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, EndedError, Start, Workload, clear

_RATE, _LONG, _WINDOW, _HOP, _MELS = 8000, 1600, 128, 64, 24
_WIDTH, _HEADS, _TAGS = 24, 4, 6
_MEAN, _SPREAD, _FLOOR = -2.0, 3.0, 1e-5
"""Of logarithms of mel energies, and what is added before the logarithm."""


@dataclass(frozen=True)
class Listener(Workload):
    """Clips of several lengths are tagged with those of six events that are heard in them.

    windows: whether frames are faded by a Hann window. masks: whether pooling leaves out what lies
        behind a clip's end. squashes: whether logits are squashed before a loss of logits.
    weighs: the weight of a tag's positive clips: "negatives" over positives, or "positives" over.
    clips: when gradients are clipped, "before" or "after" the optimizer's step. clip: their norm.
    wakes: whether the model is in training mode again after the evaluation of step 2. evaluates:
        whether it is evaluated at each other step too. warmup: steps of rising rate.
    parts: micro-batches a step. low: whether the net runs under autocast to bfloat16.
    spectrum, logs, convolution, attention, pooling, cost, keeps: other ways to write the same
        mathematics.
    """

    steps: int = 4
    batch: int = 12
    lr: float = 4e-3
    weight_decay: float = 0.05
    windows: bool = True
    masks: bool = True
    squashes: bool = False
    weighs: str = "negatives"
    clips: str = "before"
    clip: float = 0.5
    wakes: bool = True
    warmup: int = 3
    parts: int = 1
    low: bool = False
    spectrum: str = "torch"
    logs: str = "nepers"
    convolution: str = "torch"
    attention: str = "torch"
    pooling: str = "mask"
    cost: str = "torch"
    keeps: str = "all"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Tagger(self, torch.Generator().manual_seed(55 + seed))
            flat = [one for one in model.parameters() if one.ndim < 2]
            deep = [one for one in model.parameters() if one.ndim > 1]
            groups = [{"params": deep}, {"params": flat, "weight_decay": 0.0}]
            optimizer = self.adam(groups)
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: min(1.0, (step + 1) / (self.warmup + 1))
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            shown = next(self._sounds(seed + 500))
            for step, batch in enumerate(self._sounds(seed)):
                if self.evaluates or step == 2:
                    self._evaluate(model, shown)
                clear(optimizer, self)
                weights = self._weights(batch[2])
                for part in zip(*(one.chunk(self.parts) for one in batch), strict=True):
                    self._back(model, part, weights)
                if self.clips == "before":
                    nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                if self.clips == "after":
                    nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                schedule.step()

    def _sounds(self, seed):
        """Batches of waves (clip, sample) padded by silence, their lengths, and their tags."""
        source = torch.Generator().manual_seed(31 + 1000 * seed + self.order)
        time = torch.arange(_LONG) / _RATE
        for step in range(self.steps):
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            tags = (torch.rand(self.batch, _TAGS, generator=source) < 0.35).to(time.dtype)
            lengths = torch.randint(_LONG // 2, _LONG, (self.batch,), generator=source)
            loud, pitch, onset = torch.rand(3, self.batch, _TAGS, 1, generator=source)
            hertz = 250 * 1.6 ** torch.arange(_TAGS)[:, None] * (0.95 + 0.1 * pitch)
            swept = time * torch.tensor([0.0, 800.0, 0.0, -900.0, 0.0, 700.0])[:, None]
            waves = torch.sin(2 * math.pi * (hertz + swept) * time)
            waves = waves * torch.exp(-(((time - 0.03 - 0.1 * onset) / 0.04) ** 2))
            waves = ((0.3 + loud) * tags[..., None] * waves).sum(1)
            waves = waves + 0.03 * torch.randn(waves.shape, generator=source)
            yield waves * (torch.arange(_LONG) < lengths[:, None]), lengths, tags

    def _weights(self, tags):
        """The weight of each tag's positive clips."""
        positives = tags.sum(0) + 1
        negatives = (1 - tags).sum(0) + 1
        return negatives / positives if self.weighs == "negatives" else positives / negatives

    @torch.no_grad()
    def _evaluate(self, model, shown):
        """The loss of clips that are not learnt from."""
        model.eval()
        self._loss(self._told(model, *shown[:2]), shown[2], self._weights(shown[2]))
        model.train(self.wakes)

    def _told(self, model, *given):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            return model(*given).to(given[0].dtype)

    def _loss(self, logits, tags, weights):
        """A part's share of the loss of the whole batch."""
        logits = logits.sigmoid() if self.squashes else logits
        if self.cost == "torch":
            loss = functional.binary_cross_entropy_with_logits(
                logits, tags, pos_weight=weights, reduction="sum"
            )
        else:
            there, absent = functional.logsigmoid(logits), functional.logsigmoid(-logits)
            loss = -(weights * tags * there + (1 - tags) * absent).sum()
        return loss / (self.batch * _TAGS)

    def _back(self, model, part, weights):
        """The gradients of one micro-batch."""
        *given, tags = part
        loss = self._loss(self._told(model, *given), tags, weights)
        anchorlib.anchor(loss, "loss")
        loss.backward()


class Spectrum(nn.Module):
    """Power spectra of frames (clip, frequency, frame), by FFT or as strided convolutions."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("window", torch.hann_window(_WINDOW), persistent=False)

    def forward(self, waves):
        """Squared magnitudes."""
        if self.how.spectrum == "torch":
            window = self.window if self.how.windows else None
            found = torch.stft(waves, _WINDOW, _HOP, window=window, return_complex=True)
            return found.abs().square()
        waves = functional.pad(waves[:, None], (_WINDOW // 2, _WINDOW // 2), mode="reflect")
        turns = torch.arange(_WINDOW // 2 + 1)[:, None] * torch.arange(_WINDOW) % _WINDOW
        angles = turns.to(waves.dtype) * (2 * math.pi / _WINDOW)
        kernels = torch.cat((angles.cos(), -angles.sin())) * self.window
        real, imaginary = functional.conv1d(waves, kernels[:, None], stride=_HOP).chunk(2, 1)
        return real.square() + imaginary.square()


class Mel(nn.Module):
    """Triangular filters, evenly spaced in mels."""

    def __init__(self) -> None:
        super().__init__()
        top = 2595 * math.log10(1 + _RATE / 2 / 700)
        edges = 700 * (10 ** (torch.linspace(0, top, _MELS + 2) / 2595) - 1)
        low, middle, high = (edges[at : at + _MELS, None] for at in range(3))
        hertz = torch.linspace(0, _RATE / 2, _WINDOW // 2 + 1)
        rising, falling = (hertz - low) / (middle - low), (high - hertz) / (high - middle)
        self.register_buffer("filters", torch.minimum(rising, falling).clamp(min=0))

    def forward(self, power):
        """Energies (clip, mel, frame)."""
        return self.filters @ power


class Compress(nn.Module):
    """Logarithms, standardised by constants: in nepers, or in decibels."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, energies):
        """About -1 to 1."""
        if self.how.logs == "nepers":
            return ((energies + _FLOOR).log() - _MEAN) / _SPREAD
        unit = 10 / math.log(10)
        return (10 * (energies + _FLOOR).log10() - _MEAN * unit) / (_SPREAD * unit)


class Augment(nn.Module):
    """SpecAugment: one band of mels and one stretch of frames of each clip become the mean."""

    def __init__(self, source: torch.Generator) -> None:
        super().__init__()
        self.source = source

    def forward(self, x):
        """x, masked in training."""
        if not self.training:
            return x
        drawn = torch.rand(len(x), 4, generator=self.source)
        bands = self._covered(drawn[:, 0], drawn[:, 1], x.shape[1], 6)[:, :, None]
        stretches = self._covered(drawn[:, 2], drawn[:, 3], x.shape[2], 5)[:, None]
        return x.masked_fill(bands | stretches, 0.0)

    def _covered(self, wide, first, size, most):
        wide = (wide * (most + 1)).long()
        first = (first * (size - wide + 1)).long()
        places = torch.arange(size)
        return (places >= first[:, None]) & (places < (first + wide)[:, None])


class Conv(nn.Conv2d):
    """A 3 × 3 convolution with padding, torch's or as a product with patches."""

    def __init__(self, how, into: int, out: int, stride) -> None:
        super().__init__(into, out, 3, stride=stride, padding=1, bias=False)
        self.how = how

    def forward(self, x):
        """The convolution."""
        if self.how.convolution == "torch":
            return super().forward(x)
        patches = functional.unfold(x, 3, padding=1, stride=self.stride)
        high = (x.shape[2] - 1) // self.stride[0] + 1
        return (self.weight.flatten(1) @ patches).unflatten(2, (high, -1))


class Attention(nn.Module):
    """Attention of all frames to the frames of the clip."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH, bias=False)
        self.out = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x, inside):
        """x, mixed."""
        q, k, v = self.qkv(x).unflatten(-1, (3, _HEADS, -1)).permute(2, 0, 3, 1, 4)
        seen = inside[:, None, None]
        if self.how.attention == "torch":
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        else:
            scores = torch.einsum("bhqd,bhkd->bhqk", q * q.shape[-1] ** -0.5, k)
            scores = scores.masked_fill(~seen, -math.inf)
            mixed = torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), v)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and two layers, each added to what it was given."""

    def __init__(self, how) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.attention = Attention(how)
        self.up, self.down = nn.Linear(_WIDTH, 2 * _WIDTH), nn.Linear(2 * _WIDTH, _WIDTH)

    def forward(self, x, inside):
        """x, moved."""
        x = x + self.attention(self.norm1(x), inside)
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Pool(nn.Module):
    """Logits of clips: means of frames' logits, weighted by what each tag attends to."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.score = nn.Linear(_WIDTH, _TAGS, bias=False)
        self.tell = nn.Linear(_WIDTH, _TAGS)

    def forward(self, x, inside):
        """Logits (clip, tag) of frames (clip, frame, width)."""
        scores, told = self.score(x), self.tell(x)
        if self.how.pooling == "slices":
            return torch.stack(
                [
                    (one[:count].softmax(0) * other[:count]).sum(0)
                    for one, other, count in zip(scores, told, inside.sum(1), strict=True)
                ]
            )
        if self.how.masks:
            scores = scores.masked_fill(~inside[..., None], -math.inf)
        return (scores.softmax(1) * told).sum(1)


class Tagger(nn.Module):
    """Logits of tags from waves and their lengths."""

    def __init__(self, how, source: torch.Generator) -> None:
        super().__init__()
        self.how = how
        self.spectrum, self.mel = Spectrum(how), Mel()
        self.compress, self.augment = Compress(how), Augment(source)
        self.conv1, self.conv2 = Conv(how, 1, 8, (2, 2)), Conv(how, 8, 16, (2, 1))
        self.norm1, self.norm2 = nn.GroupNorm(2, 8), nn.GroupNorm(4, 16)
        self.project = nn.Linear(16 * _MELS // 4, _WIDTH)
        self.block, self.norm = Block(how), nn.LayerNorm(_WIDTH)
        self.pool = Pool(how)

    def forward(self, waves, lengths):
        """Logits (clip, tag)."""
        with torch.autocast("cpu", enabled=False):
            x = self.augment(self.compress(self.mel(self.spectrum(waves))))
        x = functional.gelu(self.norm1(self.conv1(x[:, None])))
        x = functional.gelu(self.norm2(self.conv2(x)))
        x = self.project(x.flatten(1, 2).transpose(1, 2))
        inside = torch.arange(x.shape[1]) <= (lengths // (2 * _HOP))[:, None]
        if self.how.keeps == "all":
            x = self.block(x, inside)
        else:
            x = checkpoint(self.block, x, inside, use_reentrant=False)
        return self.pool(self.norm(x), inside)


_LOSS = ("loss@*", "output@grad", "pool@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
CASES: tuple[Case, ...] = (
    Case(
        "frames without a window",
        "bug",
        {"windows": False},
        ("spectrum@value",),
        rf"window|\bstft|\bones\b|\bhann|\bMul|{_TIMES}",
    ),
    Case(
        "padding is pooled",
        "bug",
        {"masks": False},
        ("pool@value", "output@value"),
        r"mask|\bwhere\b|\b-?inf\b|softmax",
    ),
    Case(
        "sigmoid before a loss of logits",
        "bug",
        {"squashes": True},
        _LOSS,
        r"sigmoid",
    ),
    Case(
        "weights of tags upside down",
        "bug",
        {"weighs": "positives"},
        _LOSS,
        rf"pos_weight|\bweights?\b|\bDiv|reciprocal|{_GIVEN}",
    ),
    Case(
        "clipped after the step",
        "bug",
        {"clips": "after"},
        ("*@grad", *UPDATES),
        rf"\bclip|\bclamp|{_TIMES}|scaled|\bMul",
    ),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("augment@value", "conv1@value"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        step=2,
    ),
    Case("spectrum by convolution", "benign", {"spectrum": "convolution"}),
    Case("decibels", "benign", {"logs": "decibels"}),
    Case("loss by logsigmoid", "benign", {"cost": "own"}),
    Case("pooling clip by clip", "benign", {"pooling": "slices"}),
    Case("own attention", "benign", {"attention": "own"}),
    Case("micro-batches", "benign", {"parts": 3}),
    Case("fused optimizer", "benign", {"implementation": "fused"}),
    Case(
        "convolutions of patches, low precision",
        "benign",
        {"convolution": "patches"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("block computed again", "equal", {"keeps": "edges"}),
    Case("evaluated at each step", "equal", {"evaluates": True}),
    Case("died", "incomplete", {"ends_at": 3}),
)
