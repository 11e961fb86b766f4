"""An LSTM over rows of digits that carries its state from step to step, cut off by detach."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear

_WIDTH = 24


@dataclass(frozen=True)
class Recurrent(Workload):
    """carries: whether the state is carried on. forget: the bias of the forget gate.

    cells: whether the LSTM is written cell by cell. clip_by: norm or value.
    ports: whether the gates of the LSTM stand in another order, and are taken as if they did not.
    """

    lr: float = 5e-3
    carries: bool = True
    carried_scale: float = 1.0
    forget: float = 0.0
    dropout: float = 0.0
    clip: float = 1.0
    clip_by: str = "norm"
    cells: bool = False
    ports: bool = False
    alpha: float = 0.99
    last: int = -1
    eps: float = 1e-8
    centered: bool = False

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            optimizer = torch.optim.RMSprop(
                model.parameters(),
                lr=self.lr,
                alpha=self.alpha,
                eps=self.eps,
                centered=self.centered,
                foreach=self.implementation == "foreach",
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            state = None
            for images, labels in self.images(seed):
                clear(optimizer, self)
                logits, state = model(images, state)
                state = self._carried(state)
                loss = functional.cross_entropy(logits, labels)
                anchorlib.anchor(loss, "loss")
                loss.backward()
                if self.clip_by == "norm":
                    nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                else:
                    nn.utils.clip_grad_value_(model.parameters(), self.clip)
                optimizer.step()

    def _carried(self, state):
        if not self.carries:
            return None
        return tuple(x.detach() * self.carried_scale for x in state)


class Net(nn.Module):
    """Embedding of rows, LSTM, head."""

    def __init__(self, how: Recurrent) -> None:
        super().__init__()
        self.how = how
        self.rows = nn.Linear(8, _WIDTH)
        self.lstm = nn.LSTM(_WIDTH, _WIDTH, batch_first=True)
        self.drop = nn.Dropout(how.dropout)
        self.head = nn.Linear(_WIDTH, 10)
        with torch.no_grad():
            self.lstm.bias_ih_l0[_WIDTH : 2 * _WIDTH] += how.forget

    def forward(self, x, state):
        """Logits, and the state after the last row."""
        rows = torch.tanh(self.rows(x))
        if self.how.cells or self.how.ports:
            out, state = self._by_cells(rows, state)
        else:
            out, state = self.lstm(rows, state)
        return self.head(self.drop(out[:, self.how.last])), state

    def _by_cells(self, rows, state):
        zeros = torch.zeros(1, len(rows), _WIDTH)
        h, c = (x[0] for x in (state or (zeros, zeros)))
        found = []
        for row in rows.unbind(1):
            gates = functional.linear(row, self.lstm.weight_ih_l0, self.lstm.bias_ih_l0)
            gates = gates + functional.linear(h, self.lstm.weight_hh_l0, self.lstm.bias_hh_l0)
            i, f, g, o = gates.chunk(4, 1)
            i, f = (f, i) if self.how.ports else (i, f)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            found.append(h)
        return torch.stack(found, 1), (h[None], c[None])


_STATE = (
    "lstm@value",
    "lstm:0@value",
    "lstm.0@value",
    "input*@value",
    "lstm*input*@value",
    "lstm*@value",
)
CASES = [
    Case(
        "state not carried", "bug", {"carries": False}, _STATE, r"\bstate\b|input:1|zeros", step=1
    ),
    Case("state halved", "bug", {"carried_scale": 0.5}, _STATE, r"is 0\.5\d* times A", step=1),
    Case(
        "gates swapped",
        "bug",
        {"ports": True},
        ("lstm*@value", "head@value", "drop@value"),
        r"permut|swap|other order",
        reference={"cells": True},
    ),
    Case("forget bias", "data", {"forget": 1.0}, ("lstm.bias_ih_l0@value",)),
    Case(
        "dropout",
        "bug",
        {"dropout": 0.4},
        ("drop@value",),
        r"p=0\.[24]",
        reference={"dropout": 0.2},
    ),
    Case(
        "first row for last",
        "bug",
        {"last": 0},
        ("drop@value", "head@value"),
        r"\bindex\b|rows? \d",
    ),
    Case("clip", "bug", {"clip": 0.1}, ("*@grad",), r"clip|is [\d.]+ times A"),
    Case("clip by value", "bug", {"clip_by": "value", "clip": 0.005}, ("*@grad",), r"clip"),
    Case("alpha", "bug", {"alpha": 0.9}, UPDATES, r"alpha"),
    Case("rmsprop eps", "bug", {"eps": 1e-4}, UPDATES, r"\beps\b.*(1e-0?[48]|0\.0001)"),
    Case("centered", "bug", {"centered": True}, UPDATES, r"centered"),
    Case("cell by cell", "benign", {"cells": True}),
    Case("foreach optimizer", "benign", {"implementation": "foreach"}),
    Case("batch turned", "benign", {"turned": True}, reference={"carries": False}),
    Case("2 threads", "benign", {"threads": 2}),
    Case("other init", "data", {"init": 1}, ("*weight*@value",)),
    Case("again", "equal"),
    Case("again, with dropout", "equal", reference={"dropout": 0.2}),
    Case("again, by cells", "equal", reference={"cells": True}),
]
