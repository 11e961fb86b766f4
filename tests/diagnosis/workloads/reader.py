"""A reader that finds the answer to a question in a passage: where it starts and where it ends."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from functools import cache

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
from tests.diagnosis.workloads.reader_net import CLS, PAD, SEP, Reader

_STOP, _ASKS, _KEYS, _WORDS = 3, (4, 8), (8, 20), (20, 40)
"""The token behind each sentence, and ranges of question words, names and other words."""
_LONGEST, _WINDOW = 32, 18
"""Tokens in a row, and tokens of a passage that are kept."""
_SAMPLES, _SHOWN = 240, 8
_IGNORED = -100
"""The position of an answer that the window cuts off."""


@dataclass(frozen=True)
class Reading(Workload):
    """Each passage says something of some names, and each question asks for one of them.

    masks: what is masked where it is padding, "keys" or "queries", or keys "behind" the softmax.
    separator: the segment of the separator behind the question, "question" or "passage". bars:
        what cannot be an answer, the "question" and padding, or "padding". dropout: its share.
    ending: the token that an answer ends at, its "last" or the one "behind". taught: the positions
        that the head of the ends learns, "ends" or "starts".
    parts: micro-batches a step. shares: what their losses are divided by, the answers of the whole
        "batch", or each by those of its own "part".
    warmup: steps of rising rate. horizon: the step at which the rate has fallen to 0. all_decay:
        whether biases and norms decay too. clip: the norm of gradients.
    wakes: whether the model is in training mode again after an evaluation.
    low: whether the net runs under autocast to bfloat16.
    pads: to the "most" tokens that a row may have, or to the "longest" of its micro-batch.
    packs: whether the net runs on one row of all tokens but padding. sorts: whether the batch is
        sorted by length.
    attention, masking, projection, adds, keeps, costs: other ways to write the same
        mathematics.
    """

    lr: float = 5e-3
    adam_eps: float = 1e-6
    weight_decay: float = 0.1
    evaluates: bool = True
    masks: str = "keys"
    separator: str = "question"
    bars: str = "question"
    dropout: float = 0.1
    ending: str = "last"
    taught: str = "ends"
    parts: int = 2
    shares: str = "batch"
    warmup: int = 2
    horizon: int = 6
    all_decay: bool = False
    clip: float = 1.0
    wakes: bool = True
    low: bool = False
    pads: str = "most"
    packs: bool = False
    sorts: bool = False
    attention: str = "own"
    masking: str = "filled"
    projection: str = "apart"
    adds: str = "positions first"
    keeps: str = "all"
    costs: str = "torch"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Reader(self, _WORDS[1], _LONGEST)
            optimizer = self.adam(self._groups(model))
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._rate)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for step, batch in enumerate(self._batches(seed)):
                if self.evaluates and step == self.steps // 2:
                    self._evaluate(model)
                clear(optimizer, self)
                for part in cut(self.parts, *batch):
                    self._learn(model, part, batch)
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                schedule.step()

    def _groups(self, model):
        """What decays, and what does not: biases and norms."""
        flat = self.weight_decay if self.all_decay else 0.0
        return [
            {
                "params": [one for one in model.parameters() if (one.ndim > 1) is deep],
                "weight_decay": self.weight_decay if deep else flat,
            }
            for deep in (True, False)
        ]

    def _rate(self, step):
        """The factor of the learning rate, which rises and falls along lines."""
        if step < self.warmup:
            return step / self.warmup
        return max(0.0, (self.horizon - step) / (self.horizon - self.warmup))

    def _batches(self, seed):
        """Rows of tokens and where their answers start and end, step by step."""
        corpus = [one[_SHOWN:] for one in _corpus()]
        dealing = torch.Generator().manual_seed(91 + 1000 * seed + self.order)
        for step in range(self.steps):
            chosen = torch.randint(0, len(corpus[0]), (self.batch,), generator=dealing)
            chosen = chosen.flip(0) if self.turned else chosen
            if self.sorts:
                lengths = (corpus[0][chosen] != PAD).sum(1)
                chosen = chosen[lengths.argsort(descending=True, stable=True)]
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield self._labelled(*(one[chosen] for one in corpus))

    def _labelled(self, ids, starts, ends):
        """The same, with ends as the head of the ends learns them."""
        behind = torch.where(ends > 0, ends + 1, ends)
        return ids, starts, behind if self.ending == "behind" else ends

    @torch.no_grad()
    def _evaluate(self, model):
        """The loss of questions that are not learnt from."""
        model.eval()
        shown = self._labelled(*(one[:_SHOWN] for one in _corpus()))
        anchorlib.anchor(sum(self._losses(model, shown, shown)), "eval_loss")
        model.train(self.wakes)

    def _learn(self, model, part, batch):
        """The gradients of one micro-batch."""
        _, starts, ends = part
        anchorlib.anchor(starts, "starts")
        anchorlib.anchor(ends, "ends")
        first, last = self._losses(model, part, batch)
        loss = first + last
        for one, name in ((first, "start_loss"), (last, "end_loss"), (loss, "loss")):
            anchorlib.anchor(one, name)
        loss.backward()

    def _losses(self, model, part, batch):
        """A part's share of both positions' losses."""
        ids, starts, ends = part
        if self.pads == "longest":
            ids = ids[:, : int((ids != PAD).sum(1).max())]
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = model(ids)
        first, last = (one.to(model.span.weight.dtype) for one in told)
        wanted = starts if self.taught == "starts" else ends
        if self.shares == "batch":
            count = (batch[1] != _IGNORED).sum()
        else:
            count = (starts != _IGNORED).sum() * (len(batch[1]) / len(starts))
        return self._cost(first, starts) / (2 * count), self._cost(last, wanted) / (2 * count)

    def _cost(self, logits, positions):
        """The cross-entropy of positions, summed over answers that the window shows."""
        if self.costs == "torch":
            return functional.cross_entropy(
                logits, positions, ignore_index=_IGNORED, reduction="sum"
            )
        shown = positions != _IGNORED
        places = functional.one_hot(positions.clamp(min=0), logits.shape[1])
        costs = logits.logsumexp(-1) - (places * logits).sum(-1)
        return (costs * shown).sum()


@cache
def _corpus():
    """Rows of tokens, and where their answers start and end: 0, 0 if the passage has none."""
    source = torch.Generator().manual_seed(4711)
    samples = [_sample(source) for _ in range(_SAMPLES)]
    ids, starts, ends = (list(one) for one in zip(*samples, strict=True))
    return torch.tensor(ids), torch.tensor(starts), torch.tensor(ends)


def _sample(source):
    """One question with its passage: each sentence is a name, one to three words and a stop."""
    names = (torch.randperm(_KEYS[1] - _KEYS[0], generator=source)[:6] + _KEYS[0]).tolist()
    asked, passage, span = _drawn(source, (0, 5)), [], (0, 0)
    sentences = _drawn(source, (3, 6))
    more = [_drawn(source, _ASKS) for _ in range(_drawn(source, (0, 3)))]
    question = [CLS, _drawn(source, _ASKS), names[asked], *more, SEP]
    for at, name in enumerate(names[:sentences]):
        words = [_drawn(source, _WORDS) for _ in range(_drawn(source, (1, 4)))]
        passage += [name, *words, _STOP]
        if at == asked:
            last = len(question) + len(passage) - 2
            span = last - len(words) + 1, last
            span = span if len(passage) <= _WINDOW else (_IGNORED, _IGNORED)
    row = [*question, *passage[:_WINDOW], SEP]
    return row + [PAD] * (_LONGEST - len(row)), *span


def _drawn(source, among):
    """A drawn number."""
    return int(torch.randint(*among, (), generator=source))


_MIXED = (
    "layers.0.attention.drop@value",
    "layers.0.attention.drop.input*@value",
    "layers.0.attention.out@value",
    "layers.0.attention.out.input*@value",
    "layers.0.attention@value",
)
_LOGITS = ("output@value", "output:1@value")
_START = ("start_loss@*", "output@grad")
_END = ("end_loss@*", "output:1@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_MASK = r"\bmask|masked_?fill|\bwhere\b"
CASES = [
    Case(
        "padding masked behind the softmax",
        "bug",
        {"masks": "behind"},
        _MIXED,
        rf"{_MASK}|\bMul",
    ),
    Case(
        "mask along queries",
        "bug",
        {"masks": "queries"},
        _MIXED,
        rf"{_MASK}|\bdim\b|\baxis\b|unsqueeze|expand|transpose",
    ),
    Case(
        "separator in the passage's segment",
        "bug",
        {"separator": "passage"},
        (
            "embeddings.segments@value",
            "embeddings.segments.input*@value",
            "embeddings.input*@value",
        ),
        rf"\bindices\b|cumsum|\bSub(Backward|\b)|{_GIVEN}",
    ),
    Case(
        "question not barred",
        "bug",
        {"bars": "padding"},
        _LOGITS,
        _MASK,
    ),
    Case(
        "ends behind the answer",
        "bug",
        {"ending": "behind"},
        ("ends@value", *_END),
        rf"{_GIVEN}|\bAdd(Backward|\b)|plus 1\b|\+ ?1\b|by 1\b|1 (more|greater|larger|further)"
        rf"|\bwhere\b|{_ORDER}",
    ),
    Case(
        "ends learn starts",
        "bug",
        {"taught": "starts"},
        _END,
        rf"{_GIVEN}|nll\w* .{{0,40}}\btarget",
    ),
    Case(
        "each part by its own answers",
        "bug",
        {"shares": "part"},
        (*_START, *_END),
        rf"{_TIMES}|\bDiv|{_GIVEN}",
    ),
    Case(
        "decay counted in micro-batches",
        "bug",
        {"horizon": 12},
        UPDATES,
        r"\blr\b",
        step=3,
    ),
    Case("norms and biases decay", "bug", {"all_decay": True}, UPDATES, r"weight_decay"),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("embeddings.drop@value",),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        step=3,
    ),
    Case("attention by torch", "benign", {"attention": "torch"}),
    Case("segments added before positions", "benign", {"adds": "segments first"}),
    Case("losses by one-hot positions", "benign", {"costs": "one-hot"}),
    Case("padded to the longest", "benign", {"pads": "longest"}, reference={"dropout": 0.0}),
    Case("packed without padding", "benign", {"packs": True}, reference={"dropout": 0.0}),
    Case("one part for two", "benign", {"parts": 1}, reference={"dropout": 0.0}),
    Case("sorted by length", "benign", {"sorts": True}, reference={"dropout": 0.0, "parts": 1}),
    Case(
        "one projection for three, low precision",
        "benign",
        {"projection": "joined"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case(
        "other order",
        "data",
        {"order": 1},
        ("input*@value", "starts@value", "ends@value"),
    ),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("mask added", "equal", {"masking": "added"}),
    Case("layers computed again", "equal", {"keeps": "edges"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
