"""A captioner of digits: attention over places spells which digit it is, and whether it is odd."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut
from tests.diagnosis.workloads.speller import Speller

_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TEXTS = [f"{name} {('even', 'odd')[digit % 2]}" for digit, name in enumerate(_NAMES)]
_LETTERS = sorted(set("".join(_TEXTS)))
_PAD, _BEGIN, _END, _FIRST = range(4)


@dataclass(frozen=True)
class Captioner(Workload):
    """Each letter is told from the letters before it, which are given, and from the image.

    lays: how places and channels are told apart, "moved" or by a "view". tunes: whether the
        encoder learns. over: what attention is shared among, "places" or "images". bent: its
        activation. gates: whether what is seen is gated. begins: whether the first state is made
        from the image. carries: whether hidden and cell state go on "rightly" or "exchanged".
        forgets: whether forget gates begin open. letters: how far vectors of letters are drawn.
    shift: by how many places targets are ahead of what is given. pads: whether padding is left out
        of the loss. smoothing: of the targets. shares: what a part's loss is divided by, the
        letters of the whole "batch", of the "part", or of each of its "captions".
    penalty: the weight of the demand that all places are seen. sees: the axis that it sums over,
        "steps" or "places". masks: whether steps of padding are left out of it. flows: whether it
        has a gradient.
    slow: the factor of the encoder's learning rate. falls: the factor of the rate at each step.
    clip: of gradients. early: whether they are clipped before they are unscaled.
    parts: micro-batches a step. low: whether the net runs under autocast to bfloat16.
    convolution, scoring, softmax, seen, cell, lookup, projects, tells, loss, summed, again,
        backward, scale: other ways to write the same mathematics.
    """

    steps: int = 5
    batch: int = 12
    weight_decay: float = 0.1
    lays: str = "moved"
    tunes: bool = True
    over: str = "places"
    bent: str = "tanh"
    gates: bool = True
    begins: bool = True
    carries: str = "rightly"
    forgets: bool = True
    letters: float = 0.5
    shift: int = 1
    pads: bool = True
    smoothing: float = 0.1
    shares: str = "batch"
    penalty: float = 1.0
    sees: str = "steps"
    masks: bool = True
    flows: bool = True
    slow: float = 0.2
    falls: float = 0.9
    clip: float = 0.5
    early: bool = False
    parts: int = 1
    low: bool = False
    convolution: str = "torch"
    scoring: str = "linear"
    softmax: str = "torch"
    seen: str = "sum"
    cell: str = "torch"
    lookup: str = "torch"
    projects: str = "once"
    tells: str = "each"
    loss: str = "torch"
    summed: str = "at once"
    again: bool = False
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
            model = Speller(self, len(_LETTERS) + _FIRST)
            encoder = set(model.encoder.parameters())
            rest = [one for one in model.parameters() if one not in encoder]
            optimizer = self.adam(
                [
                    {"params": list(model.encoder.parameters()), "lr": self.lr * self.slow},
                    {"params": rest},
                ]
            )
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.falls)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for images, labels in self.images(seed):
                captions = _captions(labels)
                clear(optimizer, self)
                for part in cut(self.parts, images, captions):
                    self._back(self._losses(model, *part, captions))
                self._bound(model)
                optimizer.step()
                schedule.step()

    def _losses(self, model, images, captions, batch):
        """A part's share of the loss of the letters and of the penalty."""
        given, wanted = captions[:, :-1], captions[:, self.shift :]
        wanted = wanted[:, : given.shape[1]]
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            logits, shares = model(images, given)
        logits, shares = logits.to(images.dtype), shares.to(images.dtype)
        named = self._spelt(logits, wanted, (batch[:, 1:] != _PAD).sum())
        part = len(captions) / len(batch)
        return {"letter_loss": named, "place_loss": self._unseen(shares, wanted) * part}

    def _spelt(self, logits, wanted, count):
        """The cross entropy of the letters, towards smoothed targets."""
        counts = (wanted != _PAD) | (not self.pads)
        count = count if self.shares == "batch" and self.pads else counts.sum()
        if self.shares == "captions":
            flat = logits.flatten(0, 1), wanted.flatten()
            told = functional.cross_entropy(
                *flat, ignore_index=_PAD, reduction="none", label_smoothing=self.smoothing
            ).view(wanted.shape)
            return (told.sum(1) / counts.sum(1)).mean()
        if self.loss == "torch":
            told = functional.cross_entropy(
                logits.flatten(0, 1),
                wanted.flatten(),
                ignore_index=_PAD if self.pads else -100,
                reduction="sum",
                label_smoothing=self.smoothing,
            )
        elif self.loss == "packed":
            told = functional.cross_entropy(
                logits[counts], wanted[counts], reduction="sum", label_smoothing=self.smoothing
            )
        else:
            chances = logits.log_softmax(-1)
            right = chances.gather(-1, wanted[..., None])[..., 0]
            costs = (1 - self.smoothing) * right + self.smoothing * chances.mean(-1)
            told = -(costs * counts).sum()
        return told / count

    def _unseen(self, shares, wanted):
        """By how much the places of an image were not seen once in all."""
        shares = shares if self.flows else shares.detach()
        if self.masks:
            shares = shares * (wanted != _PAD)[..., None]
        if self.summed == "at once":
            seen = shares.sum(1 if self.sees == "steps" else 2)
            return self.penalty * (1 - seen).square().mean()
        seen = 0
        for one in shares.unbind(1):
            seen = seen + one
        return self.penalty * (seen * seen - 2 * seen + 1).mean()

    def _back(self, losses):
        """Both losses' gradients."""
        loss = sum(losses.values())
        for name, one in (*losses.items(), ("loss", loss)):
            anchorlib.anchor(one, name)
        if self.backward == "once":
            (loss * self.scale).backward()
        else:
            for one in losses.values():
                (one * self.scale).backward(retain_graph=True)

    @torch.no_grad()
    def _bound(self, model):
        """Gradients, unscaled and clipped."""
        learnt = [one for one in model.parameters() if one.grad is not None]
        if self.early:
            nn.utils.clip_grad_norm_(learnt, self.clip)
        if self.scale != 1:
            for one in learnt:
                one.grad.div_(self.scale)
        if not self.early:
            nn.utils.clip_grad_norm_(learnt, self.clip)


def _captions(labels):
    """Captions as numbers of letters, with a beginning, an end and padding."""
    longest = max(len(text) for text in _TEXTS)
    rows = [
        [_BEGIN, *(_LETTERS.index(letter) + _FIRST for letter in text), _END]
        + [_PAD] * (longest - len(text))
        for text in _TEXTS
    ]
    return torch.tensor(rows)[labels]


_LETTER = ("letter_loss@*", "loss@*", "output@grad")
_PLACE = ("place_loss@*", "loss@*", "output:1@grad")
_SEEN = ("attention@value", "attention:1@value")
_STATE = ("attention.query@value", "attention.gate@value", "lstm*@value")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back|requires_grad|frozen"
CASES = [
    Case(
        "places and channels mixed up by a view",
        "bug",
        {"lays": "view"},
        ("encoder@value", "hidden@value", "cell@value", "attention.keys@value"),
        rf"transpose|permute|\bview|reshape|{_ORDER}",
    ),
    Case("encoder detached", "bug", {"tunes": False}, ("encoder*@*grad",), _DETACHED),
    Case("softmax over images", "bug", {"over": "images"}, _SEEN, r"\bdim\b|softmax"),
    Case(
        "relu for tanh", "bug", {"bent": "relu"}, ("attention.score@value",), r"\b[Rr]elu|\b[Tt]anh"
    ),
    Case(
        "what is seen not gated",
        "bug",
        {"gates": False},
        (*_SEEN, "attention.gate@value"),
        r"\bMul|sigmoid|\bgate\b",
    ),
    Case(
        "first state of zeros",
        "bug",
        {"begins": False},
        _STATE,
        rf"zeros?\b|{_GIVEN}|\b[Tt]anh|computes it from",
    ),
    Case(
        "hidden and cell state exchanged",
        "bug",
        {"carries": "exchanged"},
        (*_STATE, "out@value"),
        rf"{_GIVEN}|{_ORDER}|exchang|swap|computes it from|output:1|\bcell\b",
    ),
    Case(
        "forget gates begin half open",
        "data",
        {"forgets": False},
        ("lstm.bias_ih@value",),
    ),
    Case(
        "letters drawn too small",
        "data",
        {"letters": 0.05},
        ("embed.weight@value",),
    ),
    Case(
        "targets not shifted",
        "bug",
        {"shift": 0},
        (*_LETTER, *_PLACE),
        rf"targets? differ|{_ORDER}|\bslice|\bshift|{_GIVEN}",
    ),
    Case(
        "padding counts",
        "bug",
        {"pads": False},
        _LETTER,
        r"ignore_index|\bDiv|\bmask|nll|total_weight|\bpad",
    ),
    Case(
        "targets not smoothed",
        "bug",
        {"smoothing": 0.0},
        _LETTER,
        r"label_smoothing|smooth",
    ),
    Case(
        "captions count alike",
        "bug",
        {"shares": "captions"},
        _LETTER,
        r"reduction|\bMean|\bSum(Backward|\b)|\bDiv",
    ),
    Case(
        "each part by its own letters",
        "bug",
        {"shares": "part"},
        _LETTER,
        rf"{_TIMES}|\bDiv|other",
        reference={"parts": 2},
    ),
    Case("penalty over places", "bug", {"sees": "places"}, _PLACE, r"\bdim\b|\bSum|\bshapes?\b"),
    Case(
        "padding must see too",
        "bug",
        {"masks": False},
        _PLACE,
        rf"\bMul|\bmask|{_GIVEN}|computes it from",
    ),
    Case("penalty detached", "bug", {"flows": False}, ("output:1@grad", *_PLACE), _DETACHED),
    Case(
        "clipped before unscaled",
        "bug",
        {"early": True},
        ("*@grad", *UPDATES),
        rf"\bclip|{_TIMES}",
        reference={"scale": 1000.0},
    ),
    Case("LSTM written out", "benign", {"cell": "own"}),
    Case("scores by products", "benign", {"scoring": "product"}),
    Case("sight by einsum", "benign", {"seen": "einsum"}),
    Case("letters by one-hot", "benign", {"lookup": "one-hot"}),
    Case("keys at each step", "benign", {"projects": "each"}),
    Case("smoothed loss written out", "benign", {"loss": "own"}),
    Case("penalty step by step", "benign", {"summed": "by steps"}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("a backward for each loss", "benign", {"backward": "each"}),
    Case("captions turned", "benign", {"turned": True}),
    Case(
        "softmax by its logarithm, low precision",
        "benign",
        {"softmax": "log"},
        reference={"low": True},
    ),
    Case(
        "convolutions of patches, low precision",
        "benign",
        {"convolution": "patches"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("encoder computed again", "equal", {"again": True}),
    Case("died", "incomplete", {"ends_at": 3}),
]
