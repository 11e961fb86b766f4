"""A summarizer of digits: it names each digit of a sequence once, in words or by pointing."""

from __future__ import annotations

import math
import os
import signal
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
    cut,
)
from tests.diagnosis.workloads.pointer import PAD, STOP, Summarizer

_LONGEST, _SHORTEST, _WRITTEN = 10, 5, 6
"""Digits of the longest and the shortest sequence, and of a summary with its end."""


@dataclass(frozen=True)
class Summary(Workload):
    """A summary has the first digits of a sequence that it did not have before, and an end.

    Three of the digits are no words of the vocabulary, so that they can only be copied.

    packs: whether the encoder stops at the end of each sequence. joins: the states of both
        directions, of each of the "sequences" or as they "lie". forget: the forget gates' bias.
        spread: of the embeddings. remembers: whether gradients reach what is attended to.
    masks: when places behind the end are left out of the softmax, "before", "after" or "never".
        over: what it is over, "places" or "sequences". lowest: the score of such places.
    covers: whether the sum of weights so far is "attached". inclusive: whether a step's overlap
        counts the step itself. cover: the weight of the coverage loss.
    shares: how words and copies are mixed, "rightly" or "exchanged". copying: places with the same
        digit are added ("adds", or as a "product") or the last of them "stays". points: whether
        "all" digits can be copied, or "words" alone.
    peeks: whether the decoder is given the word that it should tell. forces: whose chance the ratio
        is, the "teacher"'s or the "student"'s. falls: how slowly the ratio falls, 0: never.
    named: losses are of "chances", or of chances as if they were "logits". ends: whether losses
        behind the end are left out. means: over each of the "sequences", or over all "digits".
    clip, clips: of gradients by their norm, "rightly" or too "early".
    initial: what Adagrad's sums of squares start with. parts: micro-batches a step.
    low: whether the net runs under autocast to bfloat16.
    reading, cell, scoring, gate, chances, overlap, keeps: other ways to write the same
        mathematics.
    """

    lr: float = 0.15
    packs: bool = True
    joins: str = "sequences"
    forget: float = 1.0
    spread: float = 0.5
    remembers: bool = True
    masks: str = "before"
    over: str = "places"
    lowest: float = -math.inf
    covers: str = "attached"
    inclusive: bool = False
    cover: float = 1.0
    shares: str = "rightly"
    copying: str = "adds"
    points: str = "all"
    peeks: bool = False
    forces: str = "teacher"
    falls: float = 3.0
    named: str = "chances"
    ends: bool = True
    means: str = "sequences"
    clip: float = 0.1
    clips: str = "rightly"
    initial: float = 0.1
    parts: int = 1
    low: bool = False
    reading: str = "torch"
    cell: str = "torch"
    scoring: str = "summed"
    gate: str = "sigmoid"
    chances: str = "softmax"
    overlap: str = "least"
    keeps: str = "all"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Summarizer(self)
            optimizer = torch.optim.Adagrad(
                model.parameters(),
                lr=self.lr,
                initial_accumulator_value=self.initial,
                foreach=self.implementation == "foreach",
                fused=self.implementation == "fused",
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            tossing = torch.Generator().manual_seed(seed)
            for step, batch in enumerate(self._sequences(seed)):
                forced = self._forced(step, tossing)
                clear(optimizer, self)
                if self.clips == "early":
                    nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                for part in cut(self.parts, *batch):
                    self._learn(model, part, forced, batch[1])
                if self.clips == "rightly":
                    nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()

    def _sequences(self, seed):
        """Sequences of digits and their summaries, both padded, step by step."""
        dealing = torch.Generator().manual_seed(91 + 1000 * seed + self.order)
        for step in range(self.steps):
            digits = torch.randint(0, 10, (self.batch, _LONGEST), generator=dealing)
            lengths = torch.randint(_SHORTEST, _LONGEST + 1, (self.batch,), generator=dealing)
            lengths[self.batch // 2] = _LONGEST  # no place is padding in all
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            source = (digits + 4).masked_fill(torch.arange(_LONGEST) >= lengths[:, None], PAD)
            wanted = torch.tensor([_summary(one) for one in source.tolist()])
            yield (source.flip(0), wanted.flip(0)) if self.turned else (source, wanted)

    def _forced(self, step, tossing):
        """Of each written digit, whether the next one is told after the right one."""
        ratio = 1.0 if not self.falls else self.falls / (self.falls + math.exp(step / self.falls))
        tossed = torch.rand(_WRITTEN, generator=tossing)
        return (tossed < ratio if self.forces == "teacher" else tossed >= ratio).tolist()

    def _learn(self, model, part, forced, whole):
        """The gradients of one micro-batch."""
        source, wanted = part
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = model(source, wanted, forced)
        chances, weights, covered = (one.to(model.embed.weight.dtype) for one in told)
        word_loss = self._mean(self._missed(chances, wanted), wanted, whole)
        before = covered + weights if self.inclusive else covered
        if self.overlap == "least":
            overlap = torch.minimum(weights, before)
        else:
            overlap = torch.minimum(weights, weights.cumsum(1) - weights)
        cover_loss = self.cover * self._mean(overlap.sum(2), wanted, whole)
        loss = word_loss + cover_loss
        for one, name in ((word_loss, "word_loss"), (cover_loss, "cover_loss"), (loss, "loss")):
            anchorlib.anchor(one, name)
        loss.backward()

    def _missed(self, chances, wanted):
        """What each written digit costs (sample, step)."""
        if self.named == "logits":
            return functional.cross_entropy(chances.transpose(1, 2), wanted, reduction="none")
        return -(chances.gather(2, wanted[..., None])[..., 0] + 1e-10).log()

    def _mean(self, costs, wanted, whole):
        """A part's share of the mean over a batch, of which each sequence has a mean itself."""
        counts, of = (one != PAD if self.ends else one >= PAD for one in (wanted, whole))
        if self.means == "digits":
            return (costs * counts).sum() / of.sum()
        return ((costs * counts).sum(1) / counts.sum(1)).sum() / len(whole)


def _summary(words):
    """The first words that stand for different digits, and an end."""
    found = [word for word in dict.fromkeys(words) if word != PAD][: _WRITTEN - 1]
    return [*found, STOP] + [PAD] * (_WRITTEN - 1 - len(found))


_WEIGHTS = ("decoder.attention@value", "decoder:1@value")
_CHANCES = ("decoder@value", "decoder.output@value")
_WORD = ("word_loss@*", "output@grad", "decoder@grad")
_COVER = ("cover_loss@*", "output:1@grad", "output:2@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "padding attended to",
        "bug",
        {"masks": "never"},
        _WEIGHTS,
        r"masked_?fill|\bmask",
    ),
    Case("softmax over sequences", "bug", {"over": "sequences"}, _WEIGHTS, r"\bdim\b"),
    Case(
        "overlap with the step itself",
        "bug",
        {"inclusive": True},
        _COVER,
        rf"\bAdd(Backward|\b)|[Mm]inimum|{_GIVEN}",
    ),
    Case(
        "coverage detached",
        "bug",
        {"covers": "detached"},
        ("decoder:1@grad", "decoder.attention@grad"),
        rf"{_DETACHED}|\bAdd\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}\bAdd",
    ),
    Case(
        "words and copies exchanged",
        "bug",
        {"shares": "exchanged"},
        _CHANCES,
        rf"\b[RS]?[Ss]ub(Backward|\b)|\bMul|{_GIVEN}|{_ORDER}",
    ),
    Case(
        "copies not added",
        "bug",
        {"copying": "stays"},
        _CHANCES,
        r"[Ss]catter",
    ),
    Case(
        "unknown digits not copied",
        "bug",
        {"points": "words"},
        _CHANCES,
        rf"[Ss]catter|\bind(ex|ices)\b|masked_?fill|{_GIVEN}",
    ),
    Case(
        "chances taken for logits",
        "bug",
        {"named": "logits"},
        _WORD,
        r"[Ss]oftmax|\b[Ll]og(Backward|\b)|[Cc]ross|[Nn]ll",
    ),
    Case(
        "padding counts in losses",
        "bug",
        {"ends": False},
        _WORD + _COVER,
        rf"\bMul|\bmask|\bDiv|{_GIVEN}",
    ),
    Case(
        "losses over all digits",
        "bug",
        {"means": "digits"},
        _WORD + _COVER,
        rf"\bSum(Backward|\b)|\bdim\b|\bDiv|\bMean|{_TIMES}",
    ),
    Case(
        "decoder's inputs not shifted",
        "bug",
        {"peeks": True},
        ("embed@value", "decoder.input@value", "decoder.enter.input@value", "embed.input@value"),
        rf"\bind(ex|ices)\b|\b[Ee]mbedding|{_ORDER}|{_GIVEN}|\bshift",
    ),
    Case(
        "coin the other way round",
        "bug",
        {"forces": "student"},
        ("embed@value", "decoder.input@value", "decoder.enter.input@value", "embed.input@value"),
        rf"\bind(ex|ices)\b|\b[Ee]mbedding|{_ORDER}|{_GIVEN}|[Aa]rg[Mm]ax",
    ),
    Case(
        "sequences not packed",
        "bug",
        {"packs": False},
        ("encoder@value", "encoder:?@value"),
        r"\bpack|batch_sizes|\blengths?\b",
    ),
    Case(
        "directions' states as they lie",
        "bug",
        {"joins": "lie"},
        ("encoder:?@value", "state@value", "cell@value"),
        rf"permute|[Tt]ranspose|{_ORDER}|\b[Vv]iew|reshape",
    ),
    Case(
        "memory detached",
        "bug",
        {"remembers": False},
        ("encoder@grad", "encoder.*@*grad"),
        rf"{_DETACHED}|(lacks|alone).{{0,60}}Backward|Backward.{{0,60}}(lacks|alone)",
    ),
    Case("gradients clipped too early", "bug", {"clips": "early"}, ("*@grad",), r"\bclip"),
    Case(
        "Adagrad's sums start at zero",
        "bug",
        {"initial": 0.0},
        UPDATES,
        r"initial_accumulator_value|\bopt\.sum\b",
    ),
    Case(
        "forget gates' bias of zero",
        "data",
        {"forget": 0.0},
        ("encoder.bias_ih*@value", "decoder.cell.bias_ih@value"),
    ),
    Case("LSTM of loops", "benign", {"reading": "loops"}),
    Case("cell by einsum", "benign", {"cell": "own"}),
    Case("scores of joined inputs", "benign", {"scoring": "joined"}),
    Case("masked and normed again", "benign", {"masks": "after"}),
    Case("copies by a product", "benign", {"copying": "product"}),
    Case("share by tanh", "benign", {"gate": "tanh"}),
    Case("words by log-softmax", "benign", {"chances": "logarithms"}),
    Case("coverage all at once", "benign", {"overlap": "at once"}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("sequences turned", "benign", {"turned": True}),
    Case(
        "scores joined, low precision",
        "benign",
        {"scoring": "joined"},
        reference={"low": True, "falls": 0.0},
    ),
    Case(
        "copies by a product, low precision",
        "benign",
        {"copying": "product"},
        reference={"low": True, "falls": 0.0},
    ),
    Case("other init", "data", {"init": 1}, ("*weight*@value", "*bias*@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("lowest score of padding", "equal", {"lowest": -1e9}),
    Case("decoder computed twice", "equal", {"keeps": "edges"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
