"""A net that tells from a chain's residues how far each pair of them lies apart, in bins."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import Case, EndedError, Start, Workload, clear, cut, warmed

_RESIDUES, _LONGEST, _BINS = 20, 12, 8
_WIDTH, _HEADS, _FAR = 16, 2, 4
_BOND = 3.8


@dataclass(frozen=True)
class Folding(Workload):
    """Chains turn and rise by a law of their residues; the net bins the distances of all pairs.

    masks: what attention leaves out where it is padding, "keys" or "queries". columns: how the
        second attention runs down columns, "transposed", by "einsum", or "never" (along rows).
    squares: what is squared before distances are binned, "both" or the "distances" alone.
    over: losses are divided by the count of the "real" pairs or of "all". dropout: of rows.
    every: steps between evaluations. wakes: whether training mode is turned on after them.
    clip: of gradients' norm. scale: of losses. unscales: whether gradients are unscaled "before"
        or "after" they are clipped. warmup: steps in which the rate rises. parts: micro-batches.
    low: whether the net runs under bfloat16's autocast.
    pairs: which pairs have a loss, "both" halves of the map or the "upper" one.
    attention, packing, filling, symmetric, transition, scales: other ways to write the same
        mathematics.
    """

    steps: int = 5
    batch: int = 8
    lr: float = 5e-3
    weight_decay: float = 0.1
    masks: str = "keys"
    columns: str = "transposed"
    squares: str = "both"
    over: str = "real"
    dropout: float = 0.1
    every: int = 2
    wakes: bool = True
    clip: float = 0.7
    scale: float = 1.0
    unscales: str = "before"
    warmup: int = 2
    parts: int = 1
    low: bool = False
    pairs: str = "both"
    attention: str = "own"
    packing: str = "apart"
    filling: str = "fill"
    symmetric: str = "after"
    transition: str = "all"
    scales: str = "scores"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Fold(self)
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 8)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            shown = self._chains(torch.Generator().manual_seed(7))
            for step, chains in enumerate(self._batches(seed)):
                if step and step % self.every == 0:
                    self._evaluate(model, shown)
                clear(optimizer, self)
                count = self._counted(chains[1]).sum()
                for part in cut(self.parts, *chains):
                    loss = anchorlib.anchor(self._loss(model, *part, count), "loss")
                    (loss * self.scale).backward()
                self._bound(model)
                optimizer.step()
                schedule.step()

    def _batches(self, seed):
        dealing = torch.Generator().manual_seed(31 + 1000 * seed + self.order)
        for step in range(self.steps):
            chains = self._chains(dealing)
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield tuple(one.flip(0) for one in chains) if self.turned else chains

    def _chains(self, dealing):
        """Residues (chain, place), 0 where a chain has ended; where it has not; bins of pairs."""
        sizes = torch.randint(_LONGEST // 2, _LONGEST + 1, (self.batch, 1), generator=dealing)
        residues = torch.randint(1, _RESIDUES + 1, (self.batch, _LONGEST), generator=dealing)
        real = torch.arange(_LONGEST) < sizes
        angles = (residues * 0.37).sin().cumsum(1)
        steps = torch.stack((angles.cos(), angles.sin(), (residues * 1.3).cos()), -1)
        places = (_BOND * functional.normalize(steps, dim=-1)).cumsum(1)
        squared = (places[:, :, None] - places[:, None]).square().sum(-1)
        edges = torch.linspace(4.0, 22.0, _BINS - 1)
        edges = edges.square() if self.squares == "both" else edges
        return residues * real, real, torch.bucketize(squared, edges)

    def _counted(self, real):
        """The pairs that have a loss."""
        both = real[:, :, None] & real[:, None]
        ones = torch.ones_like(both[0])
        return both & (ones.triu(1) if self.pairs == "upper" else ones.triu(1) | ones.tril(-1))

    def _loss(self, model, residues, real, bins, count):
        """A part's share of the cross entropy of its pairs."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            logits = model(residues, real)
        logits = logits.float() if self.low else logits
        missed = functional.cross_entropy(logits.movedim(-1, 1), bins, reduction="none")
        count = count if self.over == "real" else bins.numel() * self.parts
        return (missed * self._counted(real)).sum() / count

    @torch.no_grad()
    def _evaluate(self, model, shown):
        """The loss of chains that are not learnt from."""
        model.eval()
        anchorlib.anchor(self._loss(model, *shown, self._counted(shown[1]).sum()), "eval_loss")
        model.train(self.wakes)

    @torch.no_grad()
    def _bound(self, model):
        """Gradients, unscaled and clipped."""
        if self.unscales == "after":
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)
        if self.scale != 1:
            for parameter in model.parameters():
                parameter.grad.div_(self.scale)
        if self.unscales == "before":
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)


class Pair(nn.Module):
    """What two residues are together, and how far apart they stand in the chain."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.relative = nn.Embedding(2 * _FAR + 1, _WIDTH)
        places = torch.arange(_LONGEST)
        offsets = (places - places[:, None]).clamp(-_FAR, _FAR) + _FAR
        self.register_buffer("offsets", offsets, persistent=False)

    def forward(self, x):
        """A vector for each pair (chain, row, column, channel)."""
        return self.left(x)[:, :, None] * self.right(x)[:, None] + self.relative(self.offsets)


class Axial(nn.Module):
    """Gated attention of each pair to the pairs of its row, or of its column."""

    def __init__(self, how: Folding, down: bool) -> None:
        super().__init__()
        self.how, self.down = how, down
        self.q, self.k, self.v = (nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(3))
        self.gate, self.out = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x, real):
        """x, mixed."""
        turns = self.down and self.how.columns == "transposed"
        x = x.transpose(1, 2) if turns else x
        q, k, v, gate = self._parts(x)
        q, k, v = (part.unflatten(-1, (_HEADS, -1)) for part in (q, k, v))
        q = q / math.sqrt(_WIDTH // _HEADS) if self.how.scales == "queries" else q
        if self.down and self.how.columns == "einsum":
            scores = torch.einsum("bijhd,bkjhd->bjhik", q, k)
            mixed = torch.einsum("bjhik,bkjhd->bijhd", self._weights(scores, real), v)
        else:
            q, k, v = (part.transpose(2, 3) for part in (q, k, v))
            mixed = self._mixed(q, k, v, real).transpose(2, 3)
        x = self.out(gate.sigmoid() * mixed.flatten(-2))
        return x.transpose(1, 2) if turns else x

    def _parts(self, x):
        if self.how.packing == "apart":
            return self.q(x), self.k(x), self.v(x), self.gate(x)
        parts = (self.q, self.k, self.v, self.gate)
        *found, gate = functional.linear(x, torch.cat([one.weight for one in parts])).chunk(4, -1)
        return *found, gate + self.gate.bias

    def _mixed(self, q, k, v, real):
        if self.how.attention == "torch":
            mask = real[:, None, None, None]
            return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self._weights(q @ k.transpose(-1, -2), real) @ v

    def _weights(self, scores, real):
        """How much each place (the last axis but one) attends to each (the last)."""
        if self.how.scales == "scores":
            scores = scores / math.sqrt(_WIDTH // _HEADS)
        real = real[:, None, None]
        real = real[..., None, :] if self.how.masks == "keys" else real[..., None]
        least = torch.finfo(scores.dtype).min
        if self.how.filling == "fill":
            return scores.masked_fill(~real, least).softmax(-1)
        return torch.where(real, scores, least).softmax(-1)


class Block(nn.Module):
    """Attention along rows, attention down columns and two layers, each added to its input."""

    def __init__(self, how: Folding) -> None:
        super().__init__()
        self.how = how
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(_WIDTH) for _ in range(3))
        self.row, self.column = Axial(how, False), Axial(how, True)
        self.drop = nn.Dropout(how.dropout)
        self.transition = nn.Sequential(
            nn.Linear(_WIDTH, 2 * _WIDTH), nn.GELU(), nn.Linear(2 * _WIDTH, _WIDTH)
        )

    def forward(self, x, real):
        """x, moved."""
        x = x + self.drop(self.row(self.norm1(x), real))
        x = x + self.column(self.norm2(x), real)
        if self.how.transition == "all":
            return x + self.transition(self.norm3(x))
        both = real[:, :, None] & real[:, None]
        moved = self.transition(self.norm3(x[both]))
        return x.index_put(both.nonzero(as_tuple=True), moved.to(x.dtype), accumulate=True)


class Fold(nn.Module):
    """Logits of the bins of each pair's distance, the same both ways."""

    def __init__(self, how: Folding) -> None:
        super().__init__()
        self.how = how
        self.embed = nn.Embedding(_RESIDUES + 1, _WIDTH, padding_idx=0)
        self.pair = Pair()
        self.blocks = nn.ModuleList(Block(how) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, _BINS)

    def forward(self, residues, real):
        """The logits (chain, row, column, bin)."""
        x = self.pair(self.embed(residues))
        for block in self.blocks:
            x = block(x, real)
        x = self.norm(x)
        if self.how.symmetric == "before":
            return self.head((x + x.transpose(1, 2)) / 2)
        logits = self.head(x)
        return (logits + logits.transpose(1, 2)) / 2


_TIMES = r"is -?[\d.e-]+ times A|a factor"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target|mask|condition) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
CASES: tuple[Case, ...] = (
    Case(
        "queries masked for keys",
        "bug",
        {"masks": "queries"},
        ("blocks.0.row@value", "blocks.0.row.out@value"),
        rf"\bmask|\b[Ww]here\b|MaskedFill|\bshapes?\b|broadcast|\[\d+, ?\d+|{_GIVEN}",
    ),
    Case(
        "columns not transposed",
        "bug",
        {"columns": "never"},
        ("blocks.0.column@value", "blocks.0.column.[qkv]@value", "blocks.0.column.gate@value"),
        rf"transpose|permute|strides?\b|{_ORDER}",
    ),
    Case(
        "edges of bins not squared",
        "bug",
        {"squares": "distances"},
        ("loss@*", "eval_loss@*", "output@grad"),
        rf"\btargets?\b|bucketize|\bNll|nll_loss|CrossEntropy|{_GIVEN}",
    ),
    Case(
        "loss over padding's count",
        "bug",
        {"over": "all"},
        ("loss@*", "eval_loss@*", "output@grad"),
        rf"\bDiv|\bSum|\bMean|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("blocks.0.drop@value",),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        step=2,
    ),
    Case(
        "clipped before unscaled",
        "bug",
        {"unscales": "after"},
        ("*.weight@grad", "*.bias@grad"),
        rf"\bclip|scale|{_TIMES}",
        reference={"scale": 1024.0},
    ),
    Case("attention by torch", "benign", {"attention": "torch"}),
    Case("columns by einsum", "benign", {"columns": "einsum"}),
    Case("symmetrised before the head", "benign", {"symmetric": "before"}),
    Case("upper half of the map", "benign", {"pairs": "upper"}),
    Case("2 micro-batches", "benign", {"parts": 2}, reference={"dropout": 0.0}),
    Case("transition of real pairs alone", "benign", {"transition": "real"}),
    Case("queries scaled for scores", "benign", {"scales": "queries"}),
    Case("one projection, low precision", "benign", {"packing": "joined"}, reference={"low": True}),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("mask by where", "equal", {"filling": "where"}),
    Case("evaluated at each step", "equal", {"every": 1}),
    Case("died", "incomplete", {"ends_at": 3}),
)
