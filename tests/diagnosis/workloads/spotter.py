"""A spotter of keywords in short sounds, padded and partly hidden: a focal loss, one cycle."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, EndedError, Start, Workload, clear
from tests.diagnosis.workloads.spotter_net import CHANNELS, KEYWORDS, LONGEST, RATE, Spotter

_SHOWN = 16
"""Sounds that are kept for the evaluation."""
_OTHERS = 3
"""How many times as many sounds are no keyword as there are of one keyword."""


@dataclass(frozen=True)
class Spotting(Workload):
    """Sounds are drawn glides of a few pitches, as loud and as long as they happen to be.

    begins: the running mean of energies begins with the "first" frame or with "zero". subtracts:
        whether compressed energies are moved back, so that silence is zero.
    inclusive: whether hidden bands are one wider.
    squeezes: the frames that channels are weighed by, "valid" ones or "all". hides: whether the
        pool leaves out padding. dropout: its share.
    gamma: of the focal loss. sure: the probability is of the "plain" or the "weighted" cross
        entropy. focus: whether the factor of the focal loss is "attached" or "detached".
    cycles: in how many trainings as long as this one the rate's cycle ends. clip: of gradients.
    rests: whether the evaluation runs in eval mode.
    masking, fourier, smoothing, gaining, depthwise, squeezing, attention, focal: other ways to
        write the same mathematics.
    """

    lr: float = 1e-2
    weight_decay: float = 0.05
    begins: str = "first"
    subtracts: bool = True
    inclusive: bool = False
    squeezes: str = "valid"
    hides: bool = True
    dropout: float = 0.1
    gamma: float = 2.0
    sure: str = "plain"
    focus: str = "attached"
    cycles: int = 1
    clip: float = 1.0
    rests: bool = True
    masking: str = "fill"
    fourier: str = "torch"
    smoothing: str = "loop"
    gaining: str = "power"
    depthwise: str = "torch"
    squeezing: str = "sum"
    attention: str = "torch"
    focal: str = "torch"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Spotter(self)
            optimizer = self.adam(self._groups(model))
            schedule = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, self.lr, self.cycles * self.steps, pct_start=0.4, div_factor=10
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for step, (sounds, lengths, labels, bands) in enumerate(self._sounds(seed)):
                clear(optimizer, self)
                loss = self._loss(model(sounds, lengths, bands), labels)
                anchorlib.anchor(loss, "loss")
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                schedule.step()
                if step % 2 == 1:
                    self._evaluate(model)

    def _groups(self, model):
        """What decays, and what does not: biases, norms and the constants of the energies."""
        parameters = list(model.parameters())
        flat = [one for name, one in model.named_parameters() if _flat(name, one)]
        known = {id(one) for one in flat}
        return [
            {"params": [one for one in parameters if id(one) not in known]},
            {"params": flat, "weight_decay": 0.0},
        ]

    def _sounds(self, seed):
        """Sounds, their lengths, their names and what is hidden of them, step by step."""
        sounds, lengths, labels = (one[_SHOWN:] for one in _drawn())
        dealing = torch.Generator().manual_seed(61 + 1000 * seed + self.order)
        hiding = torch.Generator().manual_seed(62 + 1000 * seed)
        for step in range(self.steps):
            chosen = torch.randint(0, len(sounds), (self.batch,), generator=dealing)
            bands = torch.stack([self._bands(hiding, *one) for one in ((CHANNELS, 4), (20, 6))], 1)
            if self.turned:
                chosen, bands = chosen.flip(0), bands.flip(0)
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            dealt = sounds[chosen].to(torch.get_default_dtype())
            yield dealt, lengths[chosen], labels[chosen], bands

    def _bands(self, hiding, size, widest):
        """Where a band of each sound begins, and how wide it is: perhaps it hides nothing."""
        width = torch.randint(0, widest + 1, (self.batch,), generator=hiding)
        begin = torch.rand(self.batch, generator=hiding, dtype=torch.float64) * (size - width)
        return torch.stack((begin.long(), width), 1)

    def _loss(self, logits, labels):
        """The focal loss; the rarer a name, the more it counts."""
        weights = _weights().to(logits.dtype)
        if self.focal == "own":
            missed = -logits.log_softmax(1).gather(1, labels[:, None])[:, 0]
            anchorlib.anchor(missed, "missed")
            factor = (-torch.expm1(-missed)) ** self.gamma
            return (weights[labels] * factor * missed).mean()
        if self.sure == "weighted":
            missed = functional.cross_entropy(logits, labels, weights, reduction="none")
        else:
            missed = functional.cross_entropy(logits, labels, reduction="none")
        anchorlib.anchor(missed, "missed")
        sure = torch.exp(-missed.detach() if self.focus == "detached" else -missed)
        loss = (1 - sure) ** self.gamma * missed
        return (loss if self.sure == "weighted" else weights[labels] * loss).mean()

    @torch.no_grad()
    def _evaluate(self, model):
        """The cross entropy of sounds that are not learnt from, whole."""
        sounds, lengths, labels = (one[:_SHOWN] for one in _drawn())
        model.train(not self.rests)
        logits = model(sounds.to(torch.get_default_dtype()), lengths)
        anchorlib.anchor(functional.cross_entropy(logits, labels), "eval_loss")
        model.train()


def _flat(name, parameter):
    return parameter.ndim < 2 or name.startswith("pcen")


def _weights():
    """Weights of names, the inverse of how often they are drawn."""
    often = torch.ones(KEYWORDS)
    often[0] = _OTHERS
    return often.sum() / (KEYWORDS * often)


@cache
def _drawn():
    """Sounds (sample, time), their lengths and names; name 0 is of noises that are no keyword."""
    drawing = torch.Generator().manual_seed(60)
    count = 144

    def draw(*size):
        return torch.rand(*size, generator=drawing, dtype=torch.float64)

    labels = torch.randint(0, KEYWORDS + _OTHERS - 1, (count,), generator=drawing)
    labels = (labels - _OTHERS + 1).clamp(min=0)
    lengths = torch.randint(LONGEST // 3, LONGEST + 1, (count,), generator=drawing)
    time = torch.arange(LONGEST, dtype=torch.float64)
    part = time / lengths[:, None]  # 0 to 1 within the sound
    kind = labels[:, None].double()
    pitch = (120 + 70 * kind) * (0.9 + 0.2 * draw(count, 1))
    glide = torch.where(labels[:, None] % 2 == 0, 0.6, -0.4) + 0.2 * draw(count, 1)
    phase = (2 * math.pi / RATE * pitch * (1 + glide * part)).cumsum(1)
    voice = sum((number * phase + draw(count, 1)).sin() / number for number in (1, 2, 3))
    noise = 2 * draw(count, LONGEST) - 1
    sound = torch.where(kind == 0, 0.8 * noise + 0.3 * voice, voice + 0.2 * noise)
    sound = sound * (0.1 + (math.pi * part).sin().clamp(min=0)) * (0.1 + draw(count, 1))
    return torch.where(part < 1, sound, 0.0), lengths, labels


_LOSS = ("missed@*", "loss@*", "output@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "running mean begins with zero",
        "bug",
        {"begins": "zero"},
        ("pcen.smoother@value",),
        rf"\bMul|\bAdd(Backward|\b)|\bSub(Backward|\b)|\bzeros|unbind|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "silence not moved to zero",
        "bug",
        {"subtracts": False},
        ("pcen@value",),
        r"\bSub(Backward|\b)|\bR?sub\b",
    ),
    Case(
        "hidden bands one wider",
        "bug",
        {"inclusive": True},
        ("augment@value",),
        r"\bmask|masked_?fill|\ble\b|\blt\b|\bzeros?\b",
    ),
    Case(
        "channels weighed by padding too",
        "bug",
        {"squeezes": "all"},
        (
            "blocks.0.squeeze.down@value",
            "blocks.0.squeeze.down.input*@value",
            "blocks.0.squeeze@value",
        ),
        r"\bmask|masked_?fill|\bMean(Backward|\b)|\bSum(Backward|\b)|\bDiv(Backward|\b)",
    ),
    Case(
        "padding attended to",
        "bug",
        {"hides": False},
        ("attention@value",),
        r"\bmask|masked_?fill|\binf\b",
    ),
    Case(
        "probability of the weighted loss",
        "bug",
        {"sure": "weighted"},
        _LOSS,
        rf"nll\w* .{{0,40}}\bweight\b|\bMul(Backward|\b)|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "focal factor detached",
        "bug",
        {"focus": "detached"},
        ("missed@grad", "output@grad"),
        rf"{_DETACHED}|\b(Exp|Pow|Neg|Rsub)\w* .{{0,60}}(lacks|alone)"
        r"|(lacks|alone).{0,60}\b(Exp|Pow|Neg|Rsub)",
    ),
    Case("cycle of the rate too long", "bug", {"cycles": 4}, UPDATES, r"\blr\b|\bbetas?\b", step=1),
    Case(
        "evaluated in training mode",
        "bug",
        {"rests": False},
        ("stem.norm@value", "stem.norm.running*@value"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
    ),
    Case("own Fourier transform", "benign", {"fourier": "own"}),
    Case("running means as a product", "benign", {"smoothing": "product"}),
    Case("gain by logarithms", "benign", {"gaining": "log"}),
    Case("depthwise taps summed", "benign", {"depthwise": "taps"}),
    Case("squeeze as a product", "benign", {"squeezing": "product"}),
    Case("own softmax of the attention", "benign", {"attention": "own"}),
    Case("focal loss by log_softmax", "benign", {"focal": "own"}),
    Case("sounds turned", "benign", {"turned": True}, reference={"dropout": 0.0}),
    Case("other init", "data", {"init": 1}, ("*weight@value", "*bias@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("masks by where", "equal", {"masking": "where"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
