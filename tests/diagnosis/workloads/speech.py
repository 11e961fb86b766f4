"""A recogniser of digits that are read out column by column: convolutions, a recurrent net, CTC."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut, warmed

_BANDS, _WIDTH, _HIDDEN, _SPOKEN, _LONG, _LABELS = 8, 24, 20, 3, 24, 11


@dataclass(frozen=True)
class Speech(Workload):
    """An utterance is three digits side by side, and its frames are their columns.

    spread_eps, correction, axis: of the features' norm. repairs: what frames behind the end hold
        before the second convolution, "zeros" or what the first one made of them.
    approximate: of the activation. norm: of the convolutions, "layer" or "batch", with its
        momentum. hides: by how many frames the hidden stretch is long.
    packs: whether the recurrent net stops at the end of an utterance. rounds: the lengths after the
        stride, "up" as the convolution does or "down".
    over: the axis of the logits' softmax. blank: its label. moved: by how much labels are moved.
    told: the lengths that the loss is given, their "own" or the "full" one. reduction: of the loss,
        a "mean" of what each label costs, a "sum", or one divided by the "batch".
    clips_by: the "norm" or the "value" of gradients. clips: "before" or "behind" the step.
    moves: after how many steps the schedule moves.
    forget: what is added to the biases of the forget gates.
    conv, softmax, norms, gelu, clipping, masking: how it is written, of one mathematics.
    """

    steps: int = 4
    batch: int = 24
    lr: float = 5e-3
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.05
    spread_eps: float = 1e-5
    correction: int = 0
    axis: int = 1
    repairs: str = "zeros"
    approximate: str = "none"
    norm: str = "layer"
    momentum: float = 0.1
    hides: int = 0
    dropout: float = 0.0
    packs: bool = True
    rounds: str = "up"
    over: int = -1
    blank: int = 0
    moved: int = 1
    told: str = "own"
    reduction: str = "mean"
    clip: float = 1.0
    clips_by: str = "norm"
    clips: str = "before"
    warmup: int = 4
    moves: int = 1
    forget: float = 0.0
    parts: int = 1
    conv: str = "torch"
    softmax: str = "torch"
    norms: str = "torch"
    gelu: str = "torch"
    clipping: str = "torch"
    masking: str = "filled"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 12)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for step, (images, labels) in enumerate(self.images(seed)):
                clear(optimizer, self)
                for frames, lengths, words, spoken in cut(self.parts, *_uttered(images, labels)):
                    told, ends = model(frames, lengths)
                    loss = self._loss(told, ends, words, spoken) / self.parts
                    anchorlib.anchor(loss, "loss")
                    loss.backward()
                if self.clips == "before":
                    self._clip(model)
                optimizer.step()
                if self.clips == "behind":
                    self._clip(model)
                if (step + 1) % self.moves == 0:
                    schedule.step()

    def _loss(self, told, ends, words, spoken):
        if self.told == "full":
            ends = torch.full_like(ends, told.shape[1])
        loss = functional.ctc_loss(
            told.transpose(0, 1),
            words + self.moved,
            ends,
            spoken,
            blank=self.blank,
            reduction="mean" if self.reduction == "mean" else "sum",
        )
        return loss / len(words) if self.reduction == "batch" else loss

    def _clip(self, model):
        if self.clips_by == "value":
            nn.utils.clip_grad_value_(model.parameters(), self.clip / 100)
        elif self.clipping == "torch":
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)
        else:
            gradients = [one.grad for one in model.parameters()]
            norm = torch.cat([one.flatten() for one in gradients]).square().sum().sqrt()
            for gradient in gradients:
                gradient.mul_((self.clip / (norm + 1e-6)).clamp(max=1))


def _uttered(images, labels):
    """Frames, how many of them there are, labels, how many of them: of each utterance."""
    frames = images.transpose(1, 2).reshape(-1, _LONG, _BANDS)
    words = labels.view(-1, _SPOKEN)
    spoken = _SPOKEN - (words[:, 2] % 2)
    lengths = spoken * _BANDS - words[:, 0] % 3
    return frames, lengths, words, spoken


class Norm(nn.Module):
    """A layer norm, torch's or by hand, or a batch norm."""

    def __init__(self, how: Speech) -> None:
        super().__init__()
        self.how = how
        self.of = (
            nn.LayerNorm(_WIDTH)
            if how.norm == "layer"
            else nn.BatchNorm1d(_WIDTH, momentum=how.momentum)
        )

    def forward(self, x):
        """x of (utterance, channel, frame), normed."""
        if self.how.norm == "batch":
            return self.of(x)
        x = x.transpose(1, 2)
        if self.how.norms == "torch":
            return self.of(x).transpose(1, 2)
        missed = x - x.mean(-1, keepdim=True)
        spread = (missed.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return (missed / spread * self.of.weight + self.of.bias).transpose(1, 2)


class Conv(nn.Conv1d):
    """A convolution over frames, by torch's kernel or as a matrix product."""

    way = "torch"

    def forward(self, x):
        """The convolution."""
        if self.way == "torch":
            return super().forward(x)
        windows = functional.pad(x, (1, 1)).unfold(2, 3, self.stride[0])
        return torch.einsum("bctk,ock->bot", windows, self.weight) + self.bias[:, None]


class Gelu(nn.Module):
    """GELU, torch's or by the error function."""

    def __init__(self, how: Speech) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """The activation."""
        if self.how.gelu == "torch":
            return functional.gelu(x, approximate=self.how.approximate)
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


class Net(nn.Module):
    """Features, two convolutions, a recurrent net of two directions, a head."""

    def __init__(self, how: Speech) -> None:
        super().__init__()
        self.how = how
        self.conv1 = Conv(_BANDS, _WIDTH, 3, stride=2, padding=1)
        self.conv2 = Conv(_WIDTH, _WIDTH, 3, padding=1)
        for one in (self.conv1, self.conv2):
            one.way = how.conv
        self.norm1, self.norm2 = Norm(how), Norm(how)
        self.act1, self.act2 = Gelu(how), Gelu(how)
        self.lstm = nn.LSTM(_WIDTH, _HIDDEN, batch_first=True, bidirectional=True)
        with torch.no_grad():
            self.lstm.bias_ih_l0[_HIDDEN : 2 * _HIDDEN] += how.forget
            self.lstm.bias_ih_l0_reverse[_HIDDEN : 2 * _HIDDEN] += how.forget
        self.drop, self.head = nn.Dropout(how.dropout), nn.Linear(2 * _HIDDEN, _LABELS)

    def forward(self, frames, lengths):
        """Logarithms of each label's chance at each place, and where places end."""
        how = self.how
        x = self._features(frames, lengths).transpose(1, 2)
        ends = (lengths - 1) // 2 + 1 if how.rounds == "up" else lengths // 2
        x = self.act1(self.norm1(self.conv1(x)))
        if how.repairs == "zeros":
            x = self._without(x, ends)
        x = self.act2(self.norm2(self.conv2(x))).transpose(1, 2)
        logits = self.head(self.drop(self._listened(x, ends)))
        if how.softmax == "torch":
            return logits.log_softmax(how.over), ends
        if how.softmax == "twice":
            return logits.log_softmax(-1).log_softmax(-1), ends
        return logits - logits.logsumexp(-1, keepdim=True), ends

    def _features(self, frames, lengths):
        how = self.how
        mean = frames.mean(how.axis, keepdim=True)
        spread = frames.var(how.axis, correction=how.correction, keepdim=True)
        x = (frames - mean) / (spread + how.spread_eps).sqrt()
        if how.hides:
            at = torch.arange(_LONG)
            first = torch.randint(0, _LONG // 2, (len(x), 1))
            x = x.masked_fill(((at >= first) & (at < first + how.hides))[..., None], 0.0)
        return x

    def _without(self, x, ends):
        """x, with zeros behind the ends."""
        behind = (torch.arange(x.shape[2]) >= ends[:, None])[:, None]
        if self.how.masking == "filled":
            return x.masked_fill(behind, 0.0)
        return torch.where(behind, torch.zeros_like(x), x)

    def _listened(self, x, ends):
        if not self.how.packs:
            return self.lstm(x)[0]
        packed = pack_padded_sequence(x, ends, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.shape[1])[
            0
        ]


_FEATURES = ("conv1@value",)
_HEARD = ("lstm*@value", "drop@value")
_LOSS = ("loss@*", "output*@grad", "head@grad")
_TIMES = r"is [\d.]+ times A"
CASES = [
    Case(
        "eps of the features",
        "bug",
        {"spread_eps": 1e-2},
        _FEATURES,
        r"\beps\b|0\.01\b|1e-0?2|\bAdd(Backward|\b)",
    ),
    Case(
        "unbiased spread of the features",
        "bug",
        {"correction": 1},
        _FEATURES,
        rf"correction|unbiased|{_TIMES}",
    ),
    Case(
        "features normed by frame",
        "bug",
        {"axis": 2},
        _FEATURES,
        r"\bdim\b|\baxis\b|\b[Mm]ean(Backward|\b)|\b[Vv]ar",
    ),
    Case(
        "padding leaks into the second convolution",
        "bug",
        {"repairs": "nothing"},
        ("conv2@value",),
        r"MaskedFill|masked_fill|\bmask\b|[Ww]here",
    ),
    Case("approximate gelu", "bug", {"approximate": "tanh"}, ("act1@value",), r"approximate|tanh"),
    Case(
        "momentum of the batch norm",
        "bug",
        {"momentum": 0.9},
        ("norm1.of.running_*@value",),
        r"momentum",
        reference={"norm": "batch"},
    ),
    Case(
        "hidden stretch a frame longer",
        "bug",
        {"hides": 6},
        _FEATURES,
        r"MaskedFill|masked_fill|\bmask\b|\brows\b|\bplaces?\b|positions?\b",
        reference={"hides": 5},
    ),
    Case(
        "not packed",
        "bug",
        {"packs": False},
        _HEARD,
        r"[Pp]ack|batch_sizes|length|input:1|\bpadd",
    ),
    Case(
        "lengths rounded down",
        "bug",
        {"rounds": "down"},
        ("conv2@value", "output:1@value"),
        r"[Pp]ack|batch_sizes|lengths?\b|masked_?[Ff]ill|\bmask\b|[Ff]loor|\bDiv|\b(place|position)s?\b",
    ),
    Case("softmax over time", "bug", {"over": 1}, ("output@value",), r"\bdim\b"),
    Case("another blank", "bug", {"blank": 10}, _LOSS, r"\bblank\b"),
    Case(
        "labels not moved past the blank",
        "bug",
        {"moved": 0},
        _LOSS,
        r"targets?\b|labels?\b|\bAdd(Backward|\b)",
    ),
    Case(
        "loss over padding",
        "bug",
        {"told": "full"},
        _LOSS,
        r"input_?lengths?|lengths?\b|padd",
    ),
    Case(
        "sum for a mean",
        "bug",
        {"reduction": "sum"},
        _LOSS,
        rf"reduction|{_TIMES}|\b[Mm]ean(Backward|\b)",
    ),
    Case(
        "not divided by the labels",
        "bug",
        {"reduction": "batch"},
        _LOSS,
        r"reduction|\b[Mm]ean(Backward|\b)|target_?lengths?|\bDiv",
    ),
    Case(
        "clipped by value",
        "bug",
        {"clips_by": "value"},
        ("*@grad",),
        r"clip|[Cc]lamp|no element of B|largest|\b0\.01\b",
    ),
    Case(
        "clipped behind the step",
        "bug",
        {"clips": "behind", "clip": 0.2},
        ("*@grad",),
        rf"clip|{_TIMES}",
        reference={"clip": 0.2},
    ),
    Case("schedule moves by epochs", "bug", {"moves": 2}, UPDATES, r"\blr\b", step=1),
    Case(
        "adam with decay in the gradient",
        "bug",
        {"decoupled": False},
        UPDATES,
        r"AdamW|decoupled|weight_decay",
    ),
    Case("own log-softmax", "benign", {"softmax": "own"}),
    Case("log-softmax twice", "benign", {"softmax": "twice"}),
    Case("convolution as einsum", "benign", {"conv": "einsum"}),
    Case("own layer norm", "benign", {"norms": "own"}),
    Case("gelu by erf", "benign", {"gelu": "own"}),
    Case("own clipping", "benign", {"clipping": "own", "clip": 0.2}, reference={"clip": 0.2}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("fused optimizer", "benign", {"implementation": "fused"}),
    Case("2 threads", "benign", {"threads": 2}),
    Case("other init", "data", {"init": 1}, ("*weight*@value", "*bias*@value")),
    Case("forget gates begin open", "data", {"forget": 1.0}, ("lstm.bias_*@value",)),
    Case("again", "equal"),
    Case("masked by where", "equal", {"masking": "where"}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("died", "incomplete", {"ends_at": 3}),
]
