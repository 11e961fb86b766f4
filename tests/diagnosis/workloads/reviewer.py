"""Reviews and their stars: documents are classified by hierarchical attention."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, EndedError, Start, Workload, clear, cut
from tests.diagnosis.workloads.reviewer_net import PAD, Net

_STARS = 5
_OWN, _COMMON = 6, 30
"""Words that each number of stars has for itself, and words of all reviews."""
_KNOWN = 1 + _STARS * _OWN + _COMMON
_SENTENCES, _WORDS = 6, 9
"""How long reviews and sentences are; both hold at least two."""
_PLACES = (8, 14)
"""How many sentences and words the corpus has places for."""
_SHOWN = 20
"""Reviews that validate."""


@dataclass(frozen=True)
class Reviewer(Workload):
    """Sentences are read word by word, and reviews sentence by sentence, with attention at both.

    dropout: of embeddings and of sentences. recurrence: how GRUs treat padding: "packed",
        "cells" and "turned" pass over it, "padded" reads it. masks: whether attention leaves out
        padding. short: by how much its mask is too short. over: the axis of its softmax.
    regroups: how sentences are dealt back to reviews, "rightly" or as if axes were exchanged.
    weighs: classes by their "rareness" or by their "frequency". smoothing: of labels.
    clip, clips: of gradients, "before" or "after" the optimizer's step.
    plateau: whether the rate falls where the validation's loss stops to fall ("min") or to rise
        ("max"). falls, patience, least: the rate's factor, the validations that it waits, and the
        relative change that counts.
    wakes: whether the model is in training mode again after a validation.
    parts: micro-batches a step. pads: to the longest of the "batch", or to all places of the
        "corpus". sorts: whether the longest reviews come first in their batch.
    rows: whether the places of missing sentences are read too, "real" or "all".
    pooling, criterion, keeps: other ways to write the same mathematics.
    """

    lr: float = 2e-2
    weight_decay: float = 1e-2
    dropout: float = 0.2
    recurrence: str = "packed"
    masks: bool = True
    short: int = 0
    over: int = 1
    regroups: str = "rightly"
    weighs: str = "rareness"
    smoothing: float = 0.1
    clip: float = 0.25
    clips: str = "before"
    plateau: str = "min"
    falls: float = 0.5
    patience: int = 0
    least: float = 1e-4
    wakes: bool = True
    parts: int = 1
    pads: str = "batch"
    sorts: bool = False
    rows: str = "real"
    pooling: str = "softmax"
    criterion: str = "torch"
    keeps: str = "all"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self, _KNOWN, _STARS)
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
                optimizer, self.plateau, self.falls, self.patience, self.least
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for batch in self._batches(seed):
                clear(optimizer, self)
                for part in cut(self.parts, *batch):
                    self._learn(model, *part, batch[1])
                if self.clips == "before":
                    nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                if self.clips == "after":
                    nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                schedule.step(self._validate(model))

    def _batches(self, seed):
        """Reviews and their stars, step by step."""
        reviews, stars = (one[_SHOWN:] for one in _corpus())
        dealing = torch.Generator().manual_seed(31 + 1000 * seed + self.order)
        for step in range(self.steps):
            chosen = torch.randint(0, len(reviews), (self.batch,), generator=dealing)
            chosen = chosen.flip(0) if self.turned else chosen
            if self.sorts:
                count = (reviews[chosen] != PAD).any(2).sum(1)
                chosen = chosen[count.argsort(descending=True, stable=True)]
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            found = reviews[chosen]
            yield found if self.pads == "corpus" else _trimmed(found), stars[chosen]

    def _learn(self, model, reviews, stars, whole):
        """The gradients of one micro-batch of the whole one."""
        stars = anchorlib.anchor(stars, "targets")
        anchorlib.anchor(self._loss(model(reviews), stars, whole), "loss").backward()

    def _loss(self, logits, stars, whole):
        """Cross entropy against smoothed labels, with weights of classes."""
        weights = self._weights()
        if self.criterion == "own":
            wanted = functional.one_hot(stars, _STARS) * (1 - self.smoothing)
            wanted = (wanted + self.smoothing / _STARS) * weights
            return -(wanted * logits.log_softmax(1)).sum() / weights[whole].sum()
        if self.parts == 1:
            return functional.cross_entropy(logits, stars, weights, label_smoothing=self.smoothing)
        costs = functional.cross_entropy(
            logits, stars, weights, reduction="sum", label_smoothing=self.smoothing
        )
        return costs / weights[whole].sum()

    def _weights(self):
        _, stars = _corpus()
        share = _STARS * stars[_SHOWN:].bincount(minlength=_STARS) / len(stars[_SHOWN:])
        return 1 / share if self.weighs == "rareness" else share

    @torch.no_grad()
    def _validate(self, model):
        """The loss of reviews that are not learnt from."""
        reviews, stars = (one[:_SHOWN] for one in _corpus())
        model.eval()
        loss = functional.cross_entropy(model(_trimmed(reviews)), stars)
        model.train(self.wakes)
        return anchorlib.anchor(loss, "valid_loss").item()


@cache
def _corpus():
    """Reviews (review, sentence, word), padded, and their stars less one; most are content."""
    source = torch.Generator().manual_seed(2016)
    shares = torch.tensor([0.1, 0.1, 0.15, 0.25, 0.4], dtype=torch.float32)
    stars = shares.multinomial(200, replacement=True, generator=source)
    size = (len(stars), _SENTENCES, _WORDS)
    own = torch.randint(0, _OWN, size, generator=source) + stars[:, None, None] * _OWN + 1
    ranks = torch.arange(1, _COMMON + 1, dtype=torch.float32)
    common = (1 / ranks).multinomial(own.numel(), replacement=True, generator=source).view(size)
    words = torch.where(torch.randint(0, 10, size, generator=source) < 4, own, _KNOWN - 1 - common)
    count = torch.randint(2, _SENTENCES + 1, (len(stars), 1, 1), generator=source)
    length = torch.randint(2, _WORDS + 1, (*size[:2], 1), generator=source)
    seen = (torch.arange(_SENTENCES)[:, None] < count) & (torch.arange(_WORDS) < length)
    places = (0, _PLACES[1] - _WORDS, 0, _PLACES[0] - _SENTENCES)
    return functional.pad(words.where(seen, PAD), places, value=PAD), stars


def _trimmed(reviews):
    """Without places that are padding in all reviews."""
    seen = reviews != PAD
    return reviews[:, : seen.any(2).sum(1).max(), : seen.sum(2).max()]


_ATTENTION = ("word_attention@value", "words.attend@value")
_LOSS = ("loss@*", "output@grad", "head@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_STILL = {"dropout": 0.0}
"""Where B draws other dropout if there is any."""
CASES = [
    Case(
        "padding attended to",
        "bug",
        {"masks": False},
        _ATTENTION,
        r"mask|\binf\b",
    ),
    Case(
        "last one masked",
        "bug",
        {"short": 1},
        _ATTENTION,
        r"\bmask",
    ),
    Case(
        "padding read by GRUs",
        "bug",
        {"recurrence": "padded"},
        ("words.encode@value",),
        r"pack|\bpad|batch_sizes|\blengths?\b|\bGRU|Rnn",
    ),
    Case(
        "softmax over sequences",
        "bug",
        {"over": 0},
        _ATTENTION,
        r"\bdim\b",
    ),
    Case(
        "sentences dealt to other reviews",
        "bug",
        {"regroups": "exchanged"},
        ("drop_sentences@value",),
        rf"transpose|permute|\bview|reshape|{_ORDER}",
    ),
    Case(
        "classes weighted by frequency",
        "bug",
        {"weighs": "frequency"},
        _LOSS,
        rf"{_GIVEN}|nll\w* .{{0,40}}\bweight\b|class weights|\bMul",
    ),
    Case(
        "labels not smoothed",
        "bug",
        {"smoothing": 0.0},
        _LOSS,
        rf"smooth|\bMul|\bSum(Backward|\b)|\bAdd(Backward|\b)|{_GIVEN}",
    ),
    Case(
        "clipped after the step",
        "bug",
        {"clips": "after"},
        ("*@grad",),
        rf"\bclip|{_TIMES}",
        step=0,
    ),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("drop@value",),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        step=1,
    ),
    Case(
        "plateau of what rises",
        "bug",
        {"plateau": "max"},
        UPDATES,
        r"\blr\b",
        step=2,
    ),
    Case("masked cells for packing", "benign", {"recurrence": "cells"}),
    Case("turned within lengths for packing", "benign", {"recurrence": "turned"}),
    Case("softmax by masked powers", "benign", {"pooling": "exp"}),
    Case("missing sentences read too", "benign", {"rows": "all"}),
    Case("smoothed labels by hand", "benign", {"criterion": "own"}),
    Case("padded to fixed lengths", "benign", {"pads": "corpus"}, reference=_STILL),
    Case("2 micro-batches", "benign", {"parts": 2}, reference=_STILL),
    Case("longest reviews first", "benign", {"sorts": True}, reference=_STILL),
    Case("other init", "data", {"init": 1}, ("*weight*@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value", "targets@value")),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("sentences computed again", "equal", {"keeps": "reviews"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
