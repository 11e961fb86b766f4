"""A recurrent language model of padded rows: tied weights, parameter groups, a running average."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, warmed

_LEVELS, _WIDTH, _LONG, _PAD = 17, 24, 20, 17


@dataclass(frozen=True)
class Tagger(Workload):
    """tied: whether the head's weight is the embedding's. scaled: whether tokens are scaled.

    masks: whether padding is left out of the loss. over: the "tokens" or "all" places that the loss
    is a mean of. resets: "after" or "before" the recurrent product, by cells. place: of dropout.
    late: whether the schedule moves before the step. groups: whether norms and biases decay too.
    low: under autocast. average: the decay of a running average of the model.
    """

    lr: float = 4e-3
    tied: bool = True
    scaled: bool = True
    masks: bool = True
    over: str = "tokens"
    smoothing: float = 0.0
    cells: bool = False
    resets: str = "after"
    dropout: float = 0.0
    place: str = "norm"
    checkpoints: bool = False
    keeps_random: bool = True
    groups: bool = True
    head_lr: float = 1.0
    warmup: int = 2
    late: bool = False
    clip: float = 0.5
    clips: str = "before"
    low: bool = False
    average: float = 0.9
    averages: str = "after"
    position: int = 0
    carries_padding: bool = False

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            kept = copy.deepcopy(model).requires_grad_(False)
            optimizer = torch.optim.AdamW(
                self._groups(model), lr=self.lr, eps=self.adam_eps, betas=self.betas,
                foreach=self.implementation == "foreach",
            )  # fmt: skip
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, self.steps)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            session.watch(kept, tensors="*@value", prefix="kept")
            torch.manual_seed(seed)
            for images, labels in self.images(seed):
                tokens = self._tokens(images, labels)
                clear(optimizer, self)
                with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
                    logits = model(tokens)
                loss = self._loss(logits.float(), tokens)
                anchorlib.anchor(loss, "loss")
                loss.backward()
                if self.averages == "before":
                    self._average(kept, model)
                if self.clips == "before":
                    nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                if self.late:
                    schedule.step()
                optimizer.step()
                if not self.late:
                    schedule.step()
                if self.averages == "after":
                    self._average(kept, model)
                with torch.no_grad():
                    kept(tokens)

    def _groups(self, model):
        named = dict(model.named_parameters())
        flat = [one for one in named.values() if one.ndim < 2]
        head = [one for name, one in named.items() if name == "head.weight"]
        rest = [one for one in named.values() if one.ndim > 1 and not any(one is h for h in head)]
        groups = [
            {"params": rest, "weight_decay": self.weight_decay},
            {"params": flat, "weight_decay": 0.0 if self.groups else self.weight_decay},
        ]
        if head:
            groups.append({"params": head, "lr": self.lr * self.head_lr})
        return groups

    def _tokens(self, images, labels):
        tokens = ((images.flatten(1)[:, 8 : 8 + _LONG] + 1) * 8).long()
        ends = _LONG - labels
        return tokens.masked_fill(torch.arange(_LONG) >= ends[:, None], _PAD)

    def _loss(self, logits, tokens):
        targets = tokens[:, 1:].flatten()
        told = functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), targets.clamp(max=_LEVELS), reduction="none",
            label_smoothing=self.smoothing,
        )  # fmt: skip
        real = targets != _PAD if self.masks else torch.ones_like(targets, dtype=torch.bool)
        if self.over == "all":
            return (told * real).mean()
        return (told * real).sum() / real.sum()

    @torch.no_grad()
    def _average(self, kept, model):
        for one, new in zip(kept.parameters(), model.parameters(), strict=True):
            one.lerp_(new, 1 - self.average)


class Net(nn.Module):
    """Embedding, GRU, norm, head."""

    def __init__(self, how: Tagger) -> None:
        super().__init__()
        self.how = how
        self.embed = nn.Embedding(_LEVELS + 1, _WIDTH, padding_idx=_PAD)
        self.places = nn.Parameter(torch.randn(_LONG + 1, _WIDTH) * 0.1)
        self.gru = nn.GRU(_WIDTH, _WIDTH, batch_first=True)
        self.norm, self.drop = nn.LayerNorm(_WIDTH), nn.Dropout(how.dropout)
        self.mix = nn.Sequential(nn.Linear(_WIDTH, 2 * _WIDTH), nn.GELU(), nn.Linear(48, _WIDTH))
        self.head = nn.Linear(_WIDTH, _LEVELS + 1, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(self.embed.weight)
        if how.tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        """Logits of each next token."""
        how = self.how
        x = self.embed(tokens)
        x = x * _WIDTH**-0.5 if how.scaled else x
        x = x + self.places[how.position : how.position + _LONG]
        h = self._by_cells(x, tokens) if how.cells else self.gru(x)[0]
        h = self.drop(self.norm(h)) if how.place == "norm" else self.norm(self.drop(h))
        if how.checkpoints:
            made = checkpoint(
                self._mixed, h, use_reentrant=False, preserve_rng_state=how.keeps_random
            )
        else:
            made = self._mixed(h)
        return self.head(h + made)

    def _mixed(self, h):
        return self.drop(self.mix(h))

    def _by_cells(self, x, tokens):
        h = torch.zeros(len(x), _WIDTH)
        w, u, b, c = (getattr(self.gru, f"{n}_l0") for n in _NAMES)
        found = []
        for at, row in enumerate(x.unbind(1)):
            r, z, n = functional.linear(row, w, b).chunk(3, 1)
            hr, hz, hn = functional.linear(h, u, c).chunk(3, 1)
            r, z = torch.sigmoid(r + hr), torch.sigmoid(z + hz)
            if self.how.resets == "before":
                hn = functional.linear(r * h, u[2 * _WIDTH :], c[2 * _WIDTH :])
                made = torch.tanh(n + hn)
            else:
                made = torch.tanh(n + r * hn)
            new = (1 - z) * made + z * h
            if self.how.carries_padding:
                new = torch.where((tokens[:, at] == _PAD)[:, None], h, new)
            h = new
            found.append(h)
        return torch.stack(found, 1)


_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
CASES = [
    Case("weights not tied", "bug", {"tied": False}, ("embed.weight@*", "head.weight@*"), r"head"),
    Case("tokens not scaled", "bug", {"scaled": False}, ("gru*@value",), r"Mul|is [\d.]+ times A"),
    Case(
        "padding in the loss",
        "bug",
        {"masks": False},
        ("loss@value", "head@grad", "output@grad"),
        r"Div|Sum|Mul|targets",
    ),
    Case(
        "mean of all places",
        "bug",
        {"over": "all"},
        ("loss@value", "head@grad", "output@grad"),
        r"Mean|is [\d.]+ times A",
    ),
    Case(
        "label smoothing",
        "bug",
        {"smoothing": 0.1},
        ("loss@value", "head@grad", "output@grad"),
        r"smoothing",
    ),
    Case(
        "reset before the product",
        "bug",
        {"resets": "before"},
        ("norm@value", "gru*@value", "drop@value"),
        r"Mul|Addmm|Mm",
        reference={"cells": True},
    ),
    Case(
        "padding carried over",
        "bug",
        {"carries_padding": True},
        ("norm@value", "gru*@value"),
        r"Where",
        reference={"cells": True},
    ),
    Case(
        "dropout before the norm",
        "bug",
        {"place": "drop"},
        ("norm@value", "drop@value"),
        r"norm|drop",
        reference={"dropout": 0.2},
    ),
    Case(
        "mask drawn anew",
        "bug",
        {"keeps_random": False},
        ("*@grad", "*@pass_grad"),
        r"random|drop",
        reference={"dropout": 0.2, "checkpoints": True},
    ),
    Case(
        "norms decay",
        "bug",
        {"groups": False, "weight_decay": 0.3},
        UPDATES,
        r"weight_decay",
        reference={"weight_decay": 0.3},
    ),
    Case(
        "head's own rate",
        "bug",
        {"head_lr": 0.1},
        ("head.weight@updated", "head.weight@delta", "head.weight@opt.*"),
        r"\blr\b",
        reference={"tied": False},
    ),
    Case("schedule a step early", "bug", {"late": True}, UPDATES, r"\blr\b"),
    Case("warm-up longer", "bug", {"warmup": 4}, UPDATES, r"\blr\b"),
    Case("clip", "bug", {"clip": 0.05}, ("*@grad",), r"clip|is [\d.]+ times A"),
    Case(
        "never clipped",
        "bug",
        {"clips": "never", "clip": 0.05},
        ("*@grad",),
        r"clip|is [\d.]+ times A",
        reference={"clip": 0.05},
    ),
    Case(
        "running average's decay",
        "bug",
        {"average": 0.99},
        ("kept.*@value",),
        r"is 0?\.1\d* times A|lerp",
    ),
    Case(
        "averaged before the step", "bug", {"averages": "before"}, ("kept.*@value",), r"move|kept"
    ),
    Case("place off by one", "bug", {"position": 1}, ("gru*@value",), r"Slice|rows|start|Add"),
    Case("betas", "bug", {"betas": (0.9, 0.95)}, UPDATES, r"beta"),
    Case("cell by cell", "benign", {"cells": True}),
    Case("checkpointed", "benign", {"checkpoints": True}, reference={"dropout": 0.2}),
    Case("foreach optimizer", "benign", {"implementation": "foreach"}),
    Case("2 threads", "benign", {"threads": 2}),
    Case(
        "foreach optimizer, low precision",
        "benign",
        {"implementation": "foreach"},
        reference={"low": True},
    ),
    Case("batch turned", "benign", {"turned": True}),
    Case("other init", "data", {"init": 1}, ("*@value",)),
    Case("again", "equal"),
    Case(
        "again, checkpointed with dropout", "equal", reference={"dropout": 0.2, "checkpoints": True}
    ),
]
