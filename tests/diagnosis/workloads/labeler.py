"""A tagger of the rows of two digits each: where a digit begins, goes on, and of which kind."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

import anchorlib
from tests.diagnosis.workloads.base import Case, Start, Workload, clear, cut, digits, renamed
from tests.diagnosis.workloads.chain import Model

_KINDS = 3
_TAGS = 1 + 2 * _KINDS
"""Outside; and for each kind of digit, its first row and a further row."""
_SHOWN = 12
"""Digits that the evaluation sees."""


@dataclass(frozen=True)
class Labeler(Workload):
    """Sequences are rows of two digits with blank rows between; a BiLSTM-CRF tags each row.

    packs: whether the LSTM is told how long sequences are. carries: whether it goes on from the
        states of the batch before. dropout: its share. soft: whether emissions are made
        probabilities.
    restores: whether what was sorted is brought back into its order, or sorted once more.
    starts: whether the right path has a score of its first tag. last: whether it ends with its own
        last tag, or with what stands at the end of the padding. exchanged: whether its transitions
        are read from the later tag to the earlier.
    masks: whether padding is left out of the sum over paths. into: the tags that paths are summed
        for, the "next" or the "former" ones. best: whether the best path stands for all paths.
        short: whether masks end one row early.
    over: what the loss is divided by, "sequences" or "rows".
    quick: the factor of the chain's learning rate. falls: how fast rates fall. clip, clips: of
        gradients, by their "torch" norm or their "own" norm. forgets: whether gradients are
        forgotten at each step. wakes: whether the model is in training mode again after an
        evaluation.
    parts: micro-batches a step. low: whether the LSTM runs under autocast to bfloat16.
    named: what a layer is called. spare: whether there is a module that is not used.
    lstm, linear, golden, every, sequences: other ways to write the same mathematics.
    """

    batch: int = 20
    lr: float = 1e-2
    packs: bool = True
    carries: bool = False
    dropout: float = 0.1
    soft: bool = False
    restores: bool = True
    starts: bool = True
    last: bool = True
    exchanged: bool = False
    masks: bool = True
    into: str = "next"
    best: bool = False
    short: bool = False
    over: str = "sequences"
    quick: float = 5.0
    falls: float = 0.1
    clip: float = 2.0
    clips: str = "torch"
    forgets: bool = True
    wakes: bool = True
    parts: int = 1
    low: bool = False
    named: str = "lift"
    spare: bool = False
    lstm: str = "packed"
    linear: str = "torch"
    golden: str = "at once"
    every: str = "torch"
    sequences: str = "padded"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Model(self, _TAGS)
            renamed(model, {"lift": self.named})
            optimizer = self.adam(self._groups(model))
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: 1 / (1 + self.falls * step)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            cutting = torch.Generator().manual_seed(31 + 1000 * seed + self.order)
            images, labels = digits()
            shown = self._sequences(images[:_SHOWN], labels[:_SHOWN], cutting)
            for step, batch in enumerate(self.images(seed)):
                sequences = self._sequences(*batch, cutting)
                if self.forgets:
                    clear(optimizer, self)
                for part in cut(self.parts, *sequences):
                    self._learn(model, part, sequences)
                self._bound(model)
                optimizer.step()
                schedule.step()
                if step % 2 == 1:
                    self._evaluate(model, *shown)

    def _groups(self, model):
        """The net's matrices, which decay; its biases; and the chain, which learns faster."""
        own = list(model.crf.parameters())
        rest = [one for name, one in model.named_parameters() if not name.startswith("crf")]
        return [
            {"params": [one for one in rest if one.ndim > 1]},
            {"params": [one for one in rest if one.ndim < 2], "weight_decay": 0.0},
            {"params": own, "lr": self.lr * self.quick, "weight_decay": 0.0},
        ]

    def _sequences(self, images, labels, cutting):
        """Rows (sequence, time, pixel) and their tags, both padded, and how long sequences are."""
        count = len(images) // 2
        heights = torch.randint(4, 9, (count, 2), generator=cutting)
        blanks = torch.randint(0, 4, (count,), generator=cutting)
        images, kinds = images.view(count, 2, 8, 8), (labels % _KINDS).view(count, 2)
        if self.turned and len(labels) == self.batch:
            images, kinds = images.flip(1), kinds.flip(1)
            heights, blanks = heights.flip(0), blanks.flip(0)
        rows, tags = [], []
        for digits_, both, sizes, blank in zip(images, kinds, heights, blanks, strict=True):
            (one, other), (high, low) = digits_, sizes
            rows.append(torch.cat((one[:high], torch.full((int(blank), 8), -1.0), other[:low])))
            told = [_told(kind, size) for kind, size in zip(both, sizes, strict=True)]
            outside = torch.zeros(int(blank), dtype=torch.long)
            tags.append(torch.cat((told[0], outside, told[1])))
        lengths = torch.tensor([len(one) for one in rows])
        return pad_sequence(rows, True), pad_sequence(tags, True), lengths

    def _learn(self, model, part, whole):
        """The gradients of one micro-batch."""
        likelihood = model(*part)
        count = len(whole[2]) if self.over == "sequences" else whole[2].sum()
        loss = -likelihood.sum() / count
        anchorlib.anchor(loss, "loss")
        loss.backward()

    @torch.no_grad()
    def _bound(self, model):
        """Gradients, clipped."""
        if self.clips == "torch":
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)
            return
        grads = [one.grad for one in model.parameters()]
        length = torch.cat([grad.flatten() for grad in grads]).square().sum().sqrt()
        for grad in grads:
            grad.mul_((self.clip / (length + 1e-6)).clamp(max=1))

    @torch.no_grad()
    def _evaluate(self, model, rows, tags, lengths):
        """How many rows of sequences that are not learnt from are tagged rightly."""
        model.eval()
        paths = [torch.tensor(path) for path in model.decode(rows, lengths)]
        right = [(path == told[: len(path)]) for path, told in zip(paths, tags, strict=True)]
        anchorlib.anchor(torch.cat(right).to(rows.dtype).mean(), "accuracy")
        model.train(self.wakes)


def _told(kind, size):
    """The tags of one digit's rows."""
    tags = torch.full((int(size),), int(2 + 2 * kind))
    tags[0] -= 1
    return tags


_PATH = ("gold@*", "crf@value")
_PATHS = ("normalizer@*", "crf@value")
_EMITTED = ("emissions@value",)
_LSTM = ("lstm@value",)
_CHAIN = tuple(f"crf.*@{kind}" for kind in ("updated", "delta", "opt.*"))
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target|index|indices|condition) "
"""Words that name other numbers which an operation was given."""
_ORDER = r"another order|arranged otherwise|places? on along|transpose|permute"
"""Words that name elements or operands which change places."""
_LOW = {"low": True}
_WHOLE = {"dropout": 0.0}
CASES = [
    Case(
        "paths go on in the padding",
        "bug",
        {"masks": False},
        _PATHS,
        r"\bWhere|\bmask|condition",
    ),
    Case(
        "right path ends in the padding",
        "bug",
        {"last": False},
        _PATH,
        rf"\b[Ii]ndex|indices|\b[Gg]ather|\b[Ss]elect|\bslice|{_GIVEN}",
    ),
    Case(
        "right path without its start",
        "bug",
        {"starts": False},
        _PATH,
        r"\bAdd(Backward|\b)|\b[Ii]ndex|crf\.start",
    ),
    Case(
        "transitions read backwards",
        "bug",
        {"exchanged": True},
        _PATH,
        rf"\b[Ii]ndex|indices|{_ORDER}|{_GIVEN}",
    ),
    Case(
        "summed over the next tags",
        "bug",
        {"into": "former"},
        _PATHS,
        r"\bdim\b|\baxis|\baxes|Logsumexp",
    ),
    Case(
        "best path for all paths",
        "bug",
        {"best": True},
        _PATHS,
        r"[Ll]ogsumexp|\b[Aa]?[Mm]ax",
    ),
    Case(
        "masks one row too short",
        "bug",
        {"short": True},
        (*_PATH, *_PATHS),
        rf"\bWhere|\bmask|condition|\bMul|{_GIVEN}",
    ),
    Case(
        "divided by the rows",
        "bug",
        {"over": "rows"},
        ("loss@*", "crf@grad", "output@grad", "gold@grad", "normalizer@grad"),
        rf"\bDiv|{_TIMES}",
    ),
    Case(
        "padding read too",
        "bug",
        {"packs": False},
        _LSTM,
        r"\bpack|pad_packed|length|batch_sizes|PackedSequence|\b(rnn|lstm|mkldnn)\w* ",
    ),
    Case(
        "states of the batch before",
        "bug",
        {"carries": True},
        _LSTM,
        r"\bhx\b|hidden|\bstates?\b|\bcx\b|zeros|initial|carried|step before",
        step=1,
    ),
    Case(
        "softmax before the chain",
        "bug",
        {"soft": True},
        (*_EMITTED, *_PATH, *_PATHS),
        r"softmax",
    ),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("embed.drop@value",),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        step=2,
    ),
    Case("chain as slow as the rest", "bug", {"quick": 1.0}, _CHAIN, r"\blr\b"),
    Case(
        "gradients never forgotten",
        "bug",
        {"forgets": False},
        ("*@grad",),
        r"zero_grad|accumulat|not (cleared|forgotten|zeroed)|added to|sum of|step before|stale",
        step=1,
    ),
    Case(
        "sorted twice",
        "bug",
        {"restores": False},
        _LSTM,
        rf"argsort|\b[Ii]ndex|indices|\b[Ss]ort|{_ORDER}|{_GIVEN}",
        reference={"lstm": "sorted"},
    ),
    Case("log of a sum by hand", "benign", {"every": "own"}),
    Case("paths by products", "benign", {"every": "products"}),
    Case("paths from the right", "benign", {"every": "right"}),
    Case("right path row by row", "benign", {"golden": "steps"}),
    Case("sequence by sequence", "benign", {"sequences": "each"}),
    Case("own LSTM", "benign", {"lstm": "own"}),
    Case("sorted by length", "benign", {"lstm": "sorted"}),
    Case("2 micro-batches", "benign", {"parts": 2}, reference=_WHOLE),
    Case("sequences turned", "benign", {"turned": True}, reference=_WHOLE),
    Case("norm of gradients at once", "benign", {"clips": "own"}),
    Case("emissions by einsum, low precision", "benign", {"linear": "einsum"}, reference=_LOW),
    Case("paths by products, low precision", "benign", {"every": "products"}, reference=_LOW),
    Case("other init", "data", {"init": 1}, ("*weight*@value", "crf.*@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("another name", "equal", {"named": "dense"}),
    Case("a module that is not used", "equal", {"spare": True}),
    Case("died", "incomplete", {"ends_at": 3}),
]
