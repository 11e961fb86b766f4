"""Two views of digits that should agree: a momentum encoder, and a queue of earlier keys."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear

_WIDTH, _CODE, _QUEUE = 16, 12, 48


@dataclass(frozen=True)
class Contrast(Workload):
    """temperature: of the loss. momentum_of_keys: of the encoder of keys.

    normed: whether "both" codes, "queries" alone or "none" are of length 1. axis: along which.
    detached: whether no gradient goes to keys. moves: whether the queue's place moves on.
    first: whether keys enter the queue before the loss. buffers: whether buffers are copied too.
    evals: whether keys are made in eval mode. mirrored: whether the loss is taken both ways.
    noise: of views. views: how the second view is made. dampening, nesterov: of SGD.
    """

    lr: float = 3e-2
    weight_decay: float = 1e-3
    temperature: float = 0.2
    momentum_of_keys: float = 0.9
    normed: str = "both"
    axis: int = 1
    moves: bool = True
    first: bool = False
    buffers: bool = False
    evals: bool = False
    mirrored: bool = False
    noise: float = 0.3
    dampening: float = 0.0
    nesterov: bool = False
    decays_flat: bool = True
    groups: int = 4
    pooled: str = "mean"
    written: str = "torch"
    stops: bool = True
    fills: float = 0.0

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Encoder(self)
            keys = copy.deepcopy(model).requires_grad_(not self.stops)
            flat = [one for one in model.parameters() if one.ndim < 2]
            wide = [one for one in model.parameters() if one.ndim > 1]
            optimizer = torch.optim.SGD(
                [
                    {"params": wide},
                    {"params": flat, "weight_decay": self.weight_decay * self.decays_flat},
                ],
                lr=self.lr, momentum=0.9, dampening=self.dampening, nesterov=self.nesterov,
                weight_decay=self.weight_decay, foreach=self.implementation == "foreach",
            )  # fmt: skip
            session.watch(model, tensors="*", optimizer=optimizer)
            session.watch(keys, tensors="*", prefix="keys")
            torch.manual_seed(seed)
            queue = functional.normalize(torch.randn(_QUEUE, _CODE), dim=1)
            at = 0
            for images, _ in self.images(seed):
                clear(optimizer, self)
                one, two = self._view(images), self._view(images)
                query = self._unit(model(one), "queries")
                keys.train(not self.evals)
                with torch.set_grad_enabled(not self.stops):
                    key = self._unit(keys(two), "keys")
                if self.first:
                    queue, at = self._entered(queue, at, key.detach())
                loss = self._loss(query, key, queue)
                anchorlib.anchor(loss, "loss")
                loss.backward()
                optimizer.step()
                self._follow(keys, model)
                if not self.first:
                    queue, at = self._entered(queue, at, key.detach())

    def _view(self, images):
        moved = images.roll(1, 2)
        return (moved + self.noise * torch.randn_like(images))[:, None]

    def _unit(self, x, which):
        if self.normed == "none" or (self.normed == "queries" and which == "keys"):
            return x
        if self.written == "own":
            return x / x.square().sum(self.axis, keepdim=True).sqrt().clamp(min=1e-12)
        return functional.normalize(x, dim=self.axis)

    def _loss(self, query, key, queue):
        right = (query * key).sum(1, keepdim=True)
        wrong = query @ anchorlib.anchor(queue, "queue").T
        logits = anchorlib.anchor(torch.cat([right, wrong], 1) / self.temperature, "logits")
        loss = functional.cross_entropy(logits, torch.zeros(len(query), dtype=torch.long))
        if self.mirrored:
            across = query @ key.T / self.temperature
            loss = (loss + functional.cross_entropy(across, torch.arange(len(query)))) / 2
        return loss

    def _entered(self, queue, at, key):
        queue = queue.clone()
        queue[at : at + len(key)] = key
        return queue, (at + len(key)) % _QUEUE if self.moves else at

    @torch.no_grad()
    def _follow(self, keys, model):
        for one, new in zip(keys.parameters(), model.parameters(), strict=True):
            one.mul_(self.momentum_of_keys).add_(new, alpha=1 - self.momentum_of_keys)
        if self.buffers:
            for one, new in zip(keys.buffers(), model.buffers(), strict=True):
                one.copy_(new)


class Encoder(nn.Module):
    """Convolutions with a group norm, a head with a batch norm."""

    def __init__(self, how: Contrast) -> None:
        super().__init__()
        self.how = how
        self.conv, self.norm = nn.Conv2d(1, _WIDTH, 3, padding=1), nn.GroupNorm(how.groups, _WIDTH)
        self.more = nn.Conv2d(_WIDTH, _WIDTH, 3, stride=2, padding=1)
        self.fc, self.batch = nn.Linear(_WIDTH, _WIDTH), nn.BatchNorm1d(_WIDTH)
        self.head = nn.Linear(_WIDTH, _CODE)

    def forward(self, x):
        """The code of each image."""
        h = torch.relu(self.more(torch.relu(self.norm(self.conv(x)))))
        h = h.mean((2, 3)) if self.how.pooled == "mean" else h.amax((2, 3))
        return self.head(torch.relu(self.batch(self.fc(h))))


_LOSS = ("loss@value", "logits@value", "logits@grad", "queue@value")
CASES = [
    Case(
        "temperature", "bug", {"temperature": 0.1}, ("logits@value",), r"Div.*0\.[12]|is 2 times A"
    ),
    Case(
        "momentum of keys",
        "bug",
        {"momentum_of_keys": 0.99},
        ("keys.*@value",),
        r"is 0?\.1\d* times A",
    ),
    Case(
        "codes not normed",
        "bug",
        {"normed": "none"},
        ("logits@value",),
        r"Div|Linalg|Norm|Clamp|Expand",
    ),
    Case("keys not normed", "bug", {"normed": "queries"}, ("logits@value",), r"Norm|keys|Div|Mul"),
    Case("normed along the batch", "bug", {"axis": 0}, ("logits@value",), r"dim|Linalg|Norm"),
    Case("queue stays", "bug", {"moves": False}, ("queue@value",), r"rows", step=2),
    Case("keys in the queue already", "bug", {"first": True}, ("queue@value",), r"rows", step=0),
    Case(
        "keys in eval mode",
        "bug",
        {"evals": True},
        ("keys.batch@value", "keys*@value"),
        r"eval mode|training",
    ),
    Case(
        "buffers copied",
        "bug",
        {"buffers": True},
        ("keys.batch.running_*@value", "keys.batch.*@value"),
        r"running_",
    ),
    Case("loss taken both ways", "bug", {"mirrored": True}, _LOSS, r"Add|Nll|LogSoftmax|Div"),
    Case("dampening", "bug", {"dampening": 0.9}, (*UPDATES,), r"dampening"),
    Case("nesterov", "bug", {"nesterov": True}, UPDATES, r"nesterov"),
    Case(
        "biases do not decay",
        "bug",
        {"decays_flat": False, "weight_decay": 0.1},
        UPDATES,
        r"weight_decay",
        reference={"weight_decay": 0.1},
    ),
    Case("groups", "bug", {"groups": 2}, ("norm@value", "keys.norm@value"), r"GroupNorm"),
    Case("max for mean", "bug", {"pooled": "max"}, ("fc@value", "keys.fc@value"), r"Amax|Max|Mean"),
    Case("own norm", "benign", {"written": "own"}),
    Case("foreach optimizer", "benign", {"implementation": "foreach"}),
    Case("2 threads", "benign", {"threads": 2}),
    Case("other order", "data", {"order": 1}, ("input*@value", "keys*input*@value")),
    Case("other init", "data", {"init": 1}, ("*@value",)),
    Case("keys with gradients", "equal", {"stops": False}),
    Case("again", "equal"),
]
