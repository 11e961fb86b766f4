"""Digits that are read aloud: phonemes to mel frames at once, by how long each of them lasts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear
from tests.diagnosis.workloads.talker_net import Talker, padding

_SAID = (5, 3, 6, 2, 4, 4)
"""How many phonemes the utterances of a batch have."""


@dataclass(frozen=True)
class Speaking(Workload):
    """A phoneme is a digit: its frames are the columns with ink, its pitch how high that lies.

    inclusive: whether the first padded place counts as a real one. zeroes: whether blocks leave
        zeros where there is padding. placed: whether frames know their places. stops: whether the
        durations' gradient ends at the encoder. forces: whether frames are made of the true pitch.
        right: whether a phoneme begins behind the last frame of the one before it.
    dropout: its share. logs: whether logarithms of durations are learnt.
    frames: those that have a loss, the "real" ones or "all".
    warmup: steps of rising rate. clip: of gradients.
    wakes: whether the model is in training mode again after it was listened to.
    multiple: of how many frames a batch is made. sorts: whether the longest utterance comes first.
        parts: micro-batches a step.
    low: whether the net runs under autocast to bfloat16.
    attention, convolution, regulator, sinusoids, keeps, masks: other ways to write the same
        mathematics.
    """

    batch: int = sum(_SAID)
    lr: float = 5e-3
    betas: tuple[float, float] = (0.9, 0.98)
    adam_eps: float = 1e-9
    weight_decay: float = 0.0
    decoupled: bool = False
    inclusive: bool = False
    zeroes: bool = True
    placed: bool = True
    stops: bool = True
    forces: bool = True
    right: bool = True
    dropout: float = 0.1
    logs: bool = True
    frames: str = "real"
    warmup: int = 3
    clip: float = 1.0
    wakes: bool = True
    multiple: int = 1
    sorts: bool = False
    parts: int = 1
    low: bool = False
    attention: str = "own"
    convolution: str = "torch"
    regulator: str = "gather"
    sinusoids: str = "exp"
    keeps: str = "all"
    masks: str = "select"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Talker(self)
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._rate)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for step, (images, labels) in enumerate(self.images(seed)):
                utterances = _utterances(images.to(model.mel.weight.dtype), labels)
                if self.sorts:
                    utterances.sort(key=lambda one: len(one[0]), reverse=True)
                clear(optimizer, self)
                count = len(utterances) // self.parts
                for at in range(0, len(utterances), count):
                    self._learn(model, utterances[at : at + count], utterances)
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                schedule.step()
                if self.evaluates and step % 2:
                    self._listen(model, utterances)

    def _rate(self, step):
        """The factor of the learning rate: it rises, then falls as the inverse of a root."""
        return min((step + 1) / self.warmup, (self.warmup / (step + 1)) ** 0.5)

    def _learn(self, model, own, whole):
        """The gradients of one micro-batch."""
        phonemes, durations, pitch, mel = (
            pad_sequence(one, True) for one in zip(*own, strict=True)
        )
        mel = functional.pad(mel, (0, 0, 0, -mel.shape[1] % self.multiple))
        lengths, spoken = (torch.tensor([len(one[column]) for one in own]) for column in (0, 3))
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = model(phonemes, lengths, durations, pitch, mel.shape[1])
        frames, lasting, high = (one.to(mel.dtype) for one in told)
        wanted = durations.to(mel.dtype)
        wanted = anchorlib.anchor((wanted + 1).log() if self.logs else wanted, "wanted_durations")
        real = ~padding(self, lengths, phonemes.shape[1])
        heard = ~padding(self, spoken, mel.shape[1])
        heard = heard if self.frames == "real" else torch.ones_like(heard)
        said, sounding = (sum(len(one[column]) for one in own) for column in (0, 3))
        of_said, of_sounding = (sum(len(one[column]) for one in whole) for column in (0, 3))
        losses = {
            "mel_loss": self._mean((frames - mel).abs(), heard) * (sounding / of_sounding),
            "duration_loss": self._mean((lasting - wanted).square(), real) * (said / of_said),
            "pitch_loss": self._mean((high - pitch).square(), real) * (said / of_said),
        }
        loss = sum(losses.values())
        for name, one in (*losses.items(), ("loss", loss)):
            anchorlib.anchor(one, name)
        loss.backward()

    def _mean(self, missed, real):
        """The mean over what is no padding."""
        real = real if missed.ndim == 2 else real[..., None].expand_as(missed)
        if self.masks == "select":
            return missed.masked_select(real).mean()
        each = [one[seen] for one, seen in zip(missed, real, strict=True)]
        return sum(one.mean() * (one.numel() / real.sum()) for one in each)

    @torch.no_grad()
    def _listen(self, model, utterances):
        """Let the model speak by its own durations and pitches."""
        model.eval()
        phonemes = [one[0] for one in utterances]
        lengths = torch.tensor([len(one) for one in phonemes])
        frames, *_ = model(pad_sequence(phonemes, True), lengths)
        anchorlib.anchor(frames.abs().mean(), "loudness")
        model.train(self.wakes)


def _utterances(images, labels):
    """What is said: phonemes, how many frames each lasts, how high it is, and all mel frames."""
    inked = (images > -1).any(1)
    ink = images + 1
    pitch = ((ink.sum(2) * (torch.arange(8) - 3.5)).sum(1) / ink.sum((1, 2)) + 0.2) / 0.3
    columns = images.transpose(1, 2)
    mels = [one[seen] for one, seen in zip(columns, inked, strict=True)]
    utterances, at = [], 0
    for count in _SAID:
        own = slice(at, at + count)
        utterances.append((labels[own] + 1, inked[own].sum(1), pitch[own], torch.cat(mels[own])))
        at += count
    return utterances


_MEL = ("mel_loss@*", "loss@*", "output@grad", "mel@grad")
_DURATION = ("wanted_durations@value", "duration_loss@*")
_MIXED = (
    "encoder.input*@value",
    "encoder.blocks.0.input*@value",
    "encoder.blocks.0.attention.input*@value",
    "encoder.blocks.0.attention.out*@value",
    "encoder.blocks.0.attention@value",
)
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
_MASK = r"\bmask|masked_?(fill|select)|\bWhere"
CASES = [
    Case(
        "loss of padded frames",
        "bug",
        {"frames": "all"},
        _MEL,
        rf"{_MASK}|\bMean|\bshapes?\b|\bsizes?\b|\bnumel|elements|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "mask a place too late",
        "bug",
        {"inclusive": True},
        _MIXED,
        rf"{_MASK}|\bSoftmax|padd|{_GIVEN}",
    ),
    Case(
        "padding not zeroed",
        "bug",
        {"zeroes": False},
        (
            "encoder.blocks.0.feed.input*@value",
            "encoder.blocks.0.feed.conv1*@value",
            "encoder.blocks.0.feed@value",
        ),
        rf"{_MASK}|\bzeros?\b|padd",
    ),
    Case(
        "durations without logarithm",
        "bug",
        {"logs": False},
        _DURATION,
        rf"\b[Ll]og(1p)?(Backward|\b)|\bExp(Backward|\b)|{_GIVEN}|{_TIMES}",
    ),
    Case(
        "phonemes a frame too late",
        "bug",
        {"right": False},
        ("regulator@value", "decoder.input*@value"),
        rf"\bgather|\bindex|indices|searchsorted|\bright\b|{_ORDER}|{_GIVEN}",
    ),
    Case(
        "frames do not know their places",
        "bug",
        {"placed": False},
        ("decoder.positions@value",),
        r"\bAdd(Backward|\b)|Positions|Identity",
    ),
    Case(
        "frames of the pitch that is told",
        "bug",
        {"forces": False},
        ("pitch_embedding.input*@value", "pitch_embedding@value"),
        rf"{_GIVEN}|{_DETACHED}|computes it from|comes? from|made (from|of)|same tensor"
        r"|\binputs?\b.{0,60}\bpitch\b",
    ),
    Case(
        "durations not stopped",
        "bug",
        {"stops": False},
        (
            "encoder@*grad",
            "encoder.blocks.1@*grad",
            "encoder.blocks.1.norm2*@*grad",
            "duration.input*@*grad",
            "pitch.input*@*grad",
        ),
        _DETACHED,
    ),
    Case(
        "still in eval mode after listening",
        "bug",
        {"wakes": False},
        ("encoder.blocks.0.drop1@value",),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        step=2,
        reference={"evaluates": True},
    ),
    Case("beta of 0.999", "bug", {"betas": (0.9, 0.999)}, UPDATES, r"\bbetas?\d?\b|0\.999"),
    Case("sinusoids by powers", "benign", {"sinusoids": "powers"}),
    Case("attention by torch", "benign", {"attention": "torch"}),
    Case(
        "convolutions of windows", "benign", {"convolution": "windows"}, reference={"dropout": 0.0}
    ),
    Case("losses utterance by utterance", "benign", {"masks": "each"}),
    Case("frames padded to 16", "benign", {"multiple": 16}, reference={"dropout": 0.0}),
    Case("longest utterance first", "benign", {"sorts": True}, reference={"dropout": 0.0}),
    Case("2 micro-batches", "benign", {"parts": 2}, reference={"dropout": 0.0}),
    Case(
        "regulator by a path, low precision",
        "benign",
        {"regulator": "path"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("regulator by a loop", "equal", {"regulator": "loop"}),
    Case("blocks computed again", "equal", {"keeps": "edges"}),
    Case("listened to", "equal", {"evaluates": True}),
    Case("died", "incomplete", {"ends_at": 3}),
]
