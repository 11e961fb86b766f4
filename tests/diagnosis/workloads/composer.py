"""A decoder that continues digits, told as tokens of how bright their pixels are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut, warmed
from tests.diagnosis.workloads.grouped import Composer as Model

_LEVELS = 8
_BEGIN, _PAD = _LEVELS, _LEVELS + 1
_PLACES = 16
"""Tokens of an image, behind the one that begins it."""


@dataclass(frozen=True)
class Composer(Workload):
    """Sequences end together and begin at different places; what is before them is padding.

    places: what tells where a token stands, "alibi" or "rotary". slopes: heads are counted "from
        one" or "from zero". rotation: of "halves", of "neighbours", or "back". ahead: how many
        tokens ahead are seen. pads: whether padding is "masked" or "seen". repeats: keys serve
        "each" query of a group, or the queries in "turn". norm_eps: of the norms. centres: whether
        norms subtract the mean. bent: by "silu" or "sigmoid". feeds: what the second layers read,
        "normed" or "plain" tokens. head: "tied" to the embeddings or "apart".
    shift: how far ahead labels are. ignores: whether padding has no loss. weight_z: of the square
        of logsumexp. flows: whether that has a gradient.
    parts: micro-batches a step. shares: what their losses are divided by, the tokens of the whole
        "batch", or each by its own "part". forgets: whether each part clears the gradients.
    clip, clips: of gradients, by their "torch" norm, their "own" norm, or after each "part".
    all_decay: whether norms and embeddings decay too. warmup: steps of rising rate.
    low: whether the net runs under autocast to bfloat16.
    attention, distance, norming, packing, adding, losses, backward, scale, again: other ways to
        write the same mathematics.
    """

    steps: int = 5
    lr: float = 1e-2
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    places: str = "alibi"
    slopes: str = "from one"
    rotation: str = "halves"
    ahead: int = 0
    pads: str = "masked"
    repeats: str = "each"
    norm_eps: float = 1e-5
    centres: bool = False
    bent: str = "silu"
    feeds: str = "normed"
    head: str = "tied"
    shift: int = 1
    ignores: bool = True
    weight_z: float = 1e-2
    flows: bool = True
    parts: int = 2
    shares: str = "batch"
    forgets: bool = False
    clip: float = 0.5
    clips: str = "torch"
    all_decay: bool = False
    warmup: int = 2
    low: bool = False
    attention: str = "plain"
    distance: str = "both"
    norming: str = "torch"
    packing: str = "apart"
    adding: str = "in turn"
    losses: str = "torch"
    backward: str = "once"
    scale: float = 1.0
    again: bool = False

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Model(self, _LEVELS + 2)
            optimizer = self.adam(self._groups(model))
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 8)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for images, labels in self.images(seed):
                tokens, real = _tokens(images, labels)
                wanted, counts = self._wanted(tokens, real)
                clear(optimizer, self)
                for part in cut(self.parts, tokens, real, wanted, counts):
                    if self.forgets:
                        clear(optimizer, self)
                    self._learn(model, part, counts)
                    if self.clips == "part":
                        nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                self._bound(model)
                optimizer.step()
                schedule.step()

    def _groups(self, model):
        """What decays, and what does not: norms and embeddings."""
        named = [
            (one.ndim > 1 and not name.startswith("embed"), one)
            for name, one in model.named_parameters()
        ]
        still = self.weight_decay if self.all_decay else 0.0
        return [
            {
                "params": [one for deep, one in named if deep is decays],
                "weight_decay": self.weight_decay if decays else still,
            }
            for decays in (True, False)
        ]

    def _wanted(self, tokens, real):
        """Labels of each place, and which of them count."""
        last = tokens.shape[1] - 1
        wanted = tokens[:, self.shift : last + self.shift]
        wanted = functional.pad(wanted, (0, last - wanted.shape[1]), value=_PAD)
        counts = real[:, :last] & (wanted != _PAD) if self.ignores else wanted >= 0
        return wanted, counts

    def _learn(self, model, part, counts):
        """The gradients of one micro-batch."""
        tokens, real, wanted, own = part
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            logits = model(tokens, real)
        logits = logits[:, :-1].to(model.norm.weight.dtype)
        count = (counts if self.shares == "batch" else own).sum()
        named, spread = (one / count for one in self._losses(logits, wanted, own))
        spread = self.weight_z * (spread if self.flows else spread.detach())
        loss = named + spread
        for one, name in ((named, "name_loss"), (spread, "z_loss"), (loss, "loss")):
            anchorlib.anchor(one, name)
        if self.backward == "once":
            (loss * self.scale).backward()
        else:
            (named * self.scale).backward(retain_graph=True)
            (spread * self.scale).backward()

    def _losses(self, logits, wanted, counts):
        """The sums of both losses over the tokens that count."""
        whole = logits.logsumexp(-1)
        if self.losses == "own":
            told = logits.gather(-1, wanted[..., None])[..., 0]
            return ((whole - told) * counts).sum(), (whole.square() * counts).sum()
        missed = functional.cross_entropy(
            logits.flatten(0, 1),
            wanted.masked_fill(~counts, -100).flatten(),
            reduction="sum",
        )
        return missed, whole[counts].square().sum()

    @torch.no_grad()
    def _bound(self, model):
        """Gradients, unscaled and clipped."""
        grads = [one.grad for one in model.parameters()]
        if self.scale != 1:
            for grad in grads:
                grad.div_(self.scale)
        if self.clips == "torch":
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)
        elif self.clips == "own":
            length = torch.cat([grad.flatten() for grad in grads]).square().sum().sqrt()
            for grad in grads:
                grad.mul_((self.clip / (length + 1e-6)).clamp(max=1))


def _tokens(images, labels):
    """An image's brightness by fours of pixels (sample, token), and which tokens are real.

    The larger the digit, the fewer of its pixels are told.
    """
    bright = (images.view(-1, 4, 2, 4, 2).mean((2, 4)) + 1) / 2
    levels = (bright * _LEVELS).long().clamp(max=_LEVELS - 1).flatten(1)
    tokens = torch.cat((levels.new_full((len(levels), 1), _BEGIN), levels), 1)
    count = _PLACES - labels.div(2, rounding_mode="floor")[:, None] * 2
    before = _PLACES - count
    at = torch.arange(_PLACES + 1)
    tokens = tokens.gather(1, (at - before).clamp(min=0))
    return torch.where(at >= before, tokens, _PAD), at >= before


_MIXED = ("blocks.0.attention.out@value", "blocks.0.attention@value")
_FED = ("blocks.0.feed*@value",)
_LOSS = ("name_loss@*", "z_loss@*", "loss@*", "output@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
_MASK = r"\bmask|AddBackward\d? (self|other)|WhereBackward|aten\.where"
_TURNED = {"places": "rotary"}
CASES = [
    Case(
        "keys serve queries in turn",
        "bug",
        {"repeats": "turn"},
        _MIXED,
        rf"\brepeat(_|Backward|\b)|\bexpand(Backward|\b)|interleave|{_ORDER}|{_GIVEN}",
    ),
    Case(
        "slopes from zero",
        "bug",
        {"slopes": "from zero"},
        _MIXED,
        rf"\bAdd(Backward|\b)|\bMul(Backward|tipli|\b)|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "next token seen",
        "bug",
        {"ahead": 1},
        _MIXED,
        rf"causal|\btri[lu]\b|diagonal|{_MASK}",
    ),
    Case(
        "padding seen",
        "bug",
        {"pads": "seen"},
        _MIXED,
        rf"padding|{_MASK}",
    ),
    Case(
        "rotation of neighbours",
        "bug",
        {"rotation": "neighbours"},
        _MIXED,
        rf"{_ORDER}|interleave|\bcat(Backward|\b)|\brepeat(_|Backward|\b)|\bMul(Backward|tipli|\b)|{_GIVEN}",
        reference=_TURNED,
    ),
    Case(
        "rotated back",
        "bug",
        {"rotation": "back"},
        _MIXED,
        rf"\bneg(Backward|\b)|other sign|{_ORDER}|\bcat(Backward|\b)|{_TIMES}|\bMul\w* other",
        reference=_TURNED,
    ),
    Case(
        "norms subtract the mean",
        "bug",
        {"centres": True},
        ("blocks.0.norm@value",),
        r"MeanBackward|aten\.mean|\bmean\(|\bSub(Backward|\b)|layer_?norm",
    ),
    Case("sigmoid for silu", "bug", {"bent": "sigmoid"}, _FED, r"\b[Ss]ilu|\b[Ss]igmoid"),
    Case(
        "feed of plain tokens",
        "bug",
        {"feeds": "plain"},
        _FED,
        rf"computes it from|{_GIVEN}",
    ),
    Case(
        "head apart",
        "bug",
        {"head": "apart"},
        ("embed.weight@*", "head*@*"),
        r"\bhead\b|\btied\b|\bshared\b|(lacks|alone|without).{0,60}\bmm|Embedding\w* .{0,60}alone",
    ),
    Case(
        "labels not shifted",
        "bug",
        {"shift": 0},
        _LOSS,
        rf"targets? differ|places? on along|{_ORDER}|nll\w* .{{0,60}}target",
    ),
    Case(
        "padding has a loss",
        "bug",
        {"ignores": False},
        _LOSS,
        r"ignore_index|\bmask|targets? differ|nll\w* .{0,60}target|\bIndex|indices|\bDivBackward",
    ),
    Case(
        "z-loss detached",
        "bug",
        {"flows": False, "weight_z": 0.1},
        ("output@grad", "z_loss@grad"),
        rf"{_DETACHED}|[Ll]ogsumexp\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}[Ll]ogsumexp",
        reference={"weight_z": 0.1},
    ),
    Case(
        "each part by itself",
        "bug",
        {"shares": "part"},
        _LOSS,
        rf"\bDiv(Backward|ide|\b)|{_TIMES}",
    ),
    Case(
        "first part forgotten",
        "bug",
        {"forgets": True},
        ("*@grad",),
        r"zero_grad|accumulat|(last|first|earlier) (pass|backward|micro)|only.{0,30}\bpass",
    ),
    Case("each part clipped", "bug", {"clips": "part"}, ("*@grad",), rf"\bclip|{_TIMES}"),
    Case("betas of Adam", "bug", {"betas": (0.9, 0.999)}, UPDATES, r"\bbetas?\d?\b"),
    Case("norms and embeddings decay", "bug", {"all_decay": True}, UPDATES, r"weight_decay"),
    Case("attention by torch", "benign", {"attention": "torch"}),
    Case("queries in groups", "benign", {"attention": "grouped"}),
    Case("own RMS norm", "benign", {"norming": "own"}),
    Case("distance by keys alone", "benign", {"distance": "keys"}),
    Case("rotation of complex numbers", "benign", {"rotation": "complex"}, reference=_TURNED),
    Case("branches added first", "benign", {"adding": "parts first"}),
    Case("losses from one logsumexp", "benign", {"losses": "own"}),
    Case("a backward for each loss", "benign", {"backward": "each"}),
    Case("one part for two", "benign", {"parts": 1}),
    Case("sequences turned", "benign", {"turned": True}, reference={"parts": 1}),
    Case("fused AdamW", "benign", {"implementation": "fused"}),
    Case(
        "attention by torch, low precision",
        "benign",
        {"attention": "torch"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("keys repeated by expanding", "equal", {"repeats": "expand"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
