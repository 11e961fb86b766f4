"""A translator of the upper rows of a digit to lower ones: encoder, decoder, tied embedding."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut

_WIDTH, _HEADS, _LONG = 32, 4, 16
_LEVELS, _PAD, _BEGIN = 17, 17, 18


@dataclass(frozen=True)
class Translator(Workload):
    """attention, packed, written, masking: how it is written, of one mathematics.

    masks: what padding of the source is hidden from: the "encoder", the "cross" attention or both.
    over: the axis of the cross attention's softmax. swapped: whether its keys and values change
        places. scaled_by: the width under the root of its scale. merged: how its heads are joined.
    first: the first place of the target that the decoder is given.
    residual: whether a sum takes what stands "before" or "behind" the norm.
    smooths_padding: whether padding is smoothed too. counts: the places that the loss is a mean
        of: those of the "batch" or of the "part". late: by how many steps the schedule is late.
    """

    batch: int = 8
    lr: float = 4e-3
    betas: tuple[float, float] = (0.9, 0.98)
    adam_eps: float = 1e-9
    weight_decay: float = 0.0
    decoupled: bool = False
    dropout: float = 0.0
    smoothing: float = 0.1
    smooths_padding: bool = False
    masks: tuple[str, ...] = ("encoder", "cross")
    over: int = -1
    swapped: bool = False
    scaled_by: int = _WIDTH // _HEADS
    merged: str = "by place"
    first: int = 0
    scaled: bool = True
    interleaved: bool = True
    last_eps: float = 1e-5
    residual: str = "before"
    tied: str = "both ways"
    warmup: int = 3
    late: int = 0
    clip: float = 0.25
    clip_by: float = 2.0
    parts: int = 1
    counts: str = "batch"
    attention: str = "manual"
    masking: str = "filled"
    packed: bool = False
    written: str = "torch"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._rate)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for images, labels in self.images(seed):
                source, target = self._tokens(images, labels)
                clear(optimizer, self)
                places = (target[:, 1:] != _PAD).sum()
                for one, other in cut(self.parts, source, target):
                    loss = self._loss(model(one, other), other[:, 1:], places)
                    anchorlib.anchor(loss, "loss")
                    loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), self.clip, self.clip_by)
                optimizer.step()
                schedule.step()

    def _rate(self, step: int) -> float:
        now = step + 1 - self.late
        return min(now / self.warmup, math.sqrt(self.warmup / max(now, 1)))

    def _tokens(self, images, labels):
        """Rows as tokens, padded at their ends: the source, and the target behind its beginning."""
        tokens = ((images.flatten(1) + 1) * 8).long()
        at = torch.arange(_LONG)
        source = tokens[:, 8 : 8 + _LONG].masked_fill(at >= _LONG - labels[:, None], _PAD)
        target = tokens[:, 32 : 32 + _LONG].masked_fill(at >= 7 + labels[:, None], _PAD)
        return source, functional.pad(target, (1, 0), value=_BEGIN)

    def _loss(self, logits, targets, places):
        logits, targets = logits.flatten(0, 1), targets.flatten()
        real = targets != _PAD
        if self.counts == "part":
            places = real.sum() * self.parts
        if self.written == "own":
            told = logits.log_softmax(-1)
            right = -told.gather(1, targets[:, None])[:, 0] * real
            any_ = -told.mean(1) if self.smooths_padding else -told.mean(1) * real
            return ((1 - self.smoothing) * right + self.smoothing * any_).sum() / places
        return (
            functional.cross_entropy(
                logits, targets, ignore_index=_PAD, label_smoothing=self.smoothing, reduction="sum"
            )
            / places
        )


class Attention(nn.Module):
    """Attention of several heads, of a sequence to itself or to another."""

    def __init__(self, how: Translator, *, cross: bool = False) -> None:
        super().__init__()
        self.how, self.cross = how, cross
        self.q, self.k, self.v, self.out = (nn.Linear(_WIDTH, _WIDTH) for _ in range(4))

    def forward(self, x, memory, seen):
        """x, each place a mix of what it sees of the memory."""
        how = self.how
        q, (k, v) = self.q(x), self._keys_and_values(memory)
        q, k, v = (part.unflatten(-1, (_HEADS, -1)).transpose(1, 2) for part in (q, k, v))
        if self.cross and how.swapped:
            k, v = v, k
        scale = (how.scaled_by if self.cross else _WIDTH // _HEADS) ** -0.5
        if how.attention == "torch":
            mixed = functional.scaled_dot_product_attention(q, k, v, seen, scale=scale)
        else:
            scores = self._masked(q @ k.transpose(-1, -2) * scale, seen)
            mixed = scores.softmax(how.over if self.cross else -1) @ v
        if self.cross and how.merged == "by head":
            return self.out(mixed.reshape(len(x), -1, _WIDTH))
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _keys_and_values(self, memory):
        if self.how.packed and self.cross:
            weight = torch.cat((self.k.weight, self.v.weight))
            return functional.linear(memory, weight, torch.cat((self.k.bias, self.v.bias))).chunk(
                2, -1
            )
        return self.k(memory), self.v(memory)

    def _masked(self, scores, seen):
        if self.how.masking == "filled":
            return scores.masked_fill(~seen, -1e9)
        return torch.where(seen, scores, torch.full_like(scores, -1e9))


class Layer(nn.Module):
    """Attention to itself, attention to the memory where there is one, and a transition."""

    def __init__(self, how: Translator, *, crosses: bool) -> None:
        super().__init__()
        self.how = how
        self.norm1, self.mix = nn.LayerNorm(_WIDTH), Attention(how)
        if crosses:
            self.norm2, self.cross = nn.LayerNorm(_WIDTH), Attention(how, cross=True)
        self.norm3, self.drop = nn.LayerNorm(_WIDTH), nn.Dropout(how.dropout)
        self.wide, self.act = nn.Linear(_WIDTH, 2 * _WIDTH), nn.ReLU()
        self.narrow = nn.Linear(2 * _WIDTH, _WIDTH)

    def forward(self, x, seen, memory=None, memory_seen=None):
        """One layer."""
        h = self.norm1(x)
        x = x + self.drop(self.mix(h, h, seen))
        if memory is not None:
            h = self.norm2(x)
            x = x + self.drop(self.cross(h, memory, memory_seen))
        h = self.norm3(x)
        x = h if self.how.residual == "behind" else x
        return x + self.drop(self.narrow(self.act(self.wide(h))))


class Net(nn.Module):
    """An encoder, a decoder, and an embedding that is the head's weight too."""

    def __init__(self, how: Translator) -> None:
        super().__init__()
        self.how = how
        self.embed, self.drop = nn.Embedding(_LEVELS + 2, _WIDTH), nn.Dropout(how.dropout)
        nn.init.normal_(self.embed.weight, std=_WIDTH**-0.5)
        self.register_buffer("positions", _waves(how))
        self.encoder, self.decoder = Layer(how, crosses=False), Layer(how, crosses=True)
        self.norm = nn.LayerNorm(_WIDTH)
        self.last = nn.LayerNorm(_WIDTH, eps=how.last_eps)

    def forward(self, source, target):
        """Logits of each place of the target, which is one longer than they."""
        how, first = self.how, self.how.first
        real = (source != _PAD)[:, None, None]
        every = torch.ones_like(real)
        seen = [real if name in how.masks else every for name in ("encoder", "cross")]
        memory = self.norm(self.encoder(self._placed(source), seen[0]))
        before = torch.ones(_LONG, _LONG, dtype=torch.bool).tril()
        h = self.decoder(self._placed(target[:, first : first + _LONG]), before, memory, seen[1])
        weight = self.embed.weight
        return functional.linear(self.last(h), weight.detach() if how.tied == "one way" else weight)

    def _placed(self, tokens):
        x = self.embed(tokens)
        x = x * math.sqrt(_WIDTH) if self.how.scaled else x
        return self.drop(x + self.positions)


def _waves(how: Translator) -> torch.Tensor:
    """The places of a sequence as sines and cosines."""
    rates = torch.exp(torch.arange(0, _WIDTH, 2) * (-math.log(10000.0) / _WIDTH))
    angles = torch.arange(_LONG)[:, None] * rates
    both = (angles.sin(), angles.cos())
    return torch.stack(both, -1).flatten(1) if how.interleaved else torch.cat(both, 1)


_CROSS = ("decoder.cross@value", "decoder.cross.out*@value", "decoder.drop@value")
_LOSS = ("loss@*", "output@grad", "last@grad")
CASES = [
    Case(
        "padding seen by the decoder",
        "bug",
        {"masks": ("encoder",)},
        _CROSS,
        r"MaskedFill|masked_fill|\bmask\b",
    ),
    Case(
        "padding seen by the encoder",
        "bug",
        {"masks": ("cross",)},
        ("encoder.mix@value", "encoder.mix.out*@value", "encoder.drop@value"),
        r"MaskedFill|masked_fill|\bmask\b",
    ),
    Case("softmax over queries", "bug", {"over": -2}, _CROSS, r"\bdim\b"),
    Case("keys and values swapped", "bug", {"swapped": True}, _CROSS, r"swap|other order|permut"),
    Case(
        "scale of the whole width",
        "bug",
        {"scaled_by": _WIDTH},
        _CROSS,
        r"\bscale\b|Mul.*0\.(17|35)|is [\d.]+ times A",
    ),
    Case(
        "heads joined without a transpose",
        "bug",
        {"merged": "by head"},
        _CROSS,
        r"permut|[Tt]ranspose|other order",
    ),
    Case(
        "target not shifted",
        "bug",
        {"first": 1},
        ("embed@value",),
        r"Slice|slice|shift|start|rows",
    ),
    Case(
        "embedding not scaled",
        "bug",
        {"scaled": False},
        ("drop@value",),
        r"Mul|is [\d.]+ times A",
    ),
    Case(
        "sines beside cosines",
        "bug",
        {"interleaved": False},
        ("positions@value",),
        r"\bpositions\b",
    ),
    Case(
        "sum behind the norm",
        "bug",
        {"residual": "behind"},
        ("norm@value", "encoder@value"),
        r"norm3|LayerNorm|\bAdd",
    ),
    Case(
        "padding smoothed too",
        "bug",
        {"smooths_padding": True},
        _LOSS,
        r"Mul|MaskedFill|Where|smooth",
        reference={"written": "own"},
    ),
    Case(
        "micro-batches by their own count",
        "bug",
        {"counts": "part"},
        _LOSS,
        r"Div|is [\d.]+ times A|reduction",
        reference={"parts": 2},
    ),
    Case(
        "head detached",
        "bug",
        {"tied": "one way"},
        ("embed.weight@grad", "embed.weight@pass_grad"),
        r"detach|(only|alone).{0,60}(Mm|Linear)|(Mm|Linear).{0,60}(only|alone)",
    ),
    Case("schedule begins at zero", "bug", {"late": 1}, UPDATES, r"\blr\b"),
    Case("last norm's eps", "bug", {"last_eps": 1e-3}, ("last@value",), r"1e-0?3|eps\W+0\.001"),
    Case(
        "clipped by the largest element",
        "bug",
        {"clip_by": math.inf},
        ("*@grad",),
        r"clip|is [\d.]+ times A",
    ),
    Case(
        "dropout",
        "bug",
        {"dropout": 0.3},
        ("drop@value",),
        r"p=0\.[13]|\bp\b.*0\.3",
        reference={"dropout": 0.1},
    ),
    Case("fused attention", "benign", {"attention": "torch"}),
    Case("keys and values in one product", "benign", {"packed": True}),
    Case("own loss", "benign", {"written": "own"}),
    Case("foreach optimizer", "benign", {"implementation": "foreach"}),
    Case("fused optimizer", "benign", {"implementation": "fused"}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("2 threads", "benign", {"threads": 2}),
    Case("batch turned", "benign", {"turned": True}),
    Case("other init", "data", {"init": 1}, ("*.weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value", "embed@value")),
    Case("again", "equal"),
    Case("masked by where", "equal", {"masking": "where"}),
    Case("again, with dropout", "equal", reference={"dropout": 0.1}),
    Case("died", "incomplete", {"ends_at": 3}),
]
