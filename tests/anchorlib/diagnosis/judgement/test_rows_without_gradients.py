"""Rows in another order where no gradient is: what is computed of them shows if they matter."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

import anchorlib


class Teacher(nn.Module):
    """rows: in which order the second layer gets its samples, "as given", "turned" and back, or
    "turned alone".
    """

    def __init__(self, rows: str) -> None:
        super().__init__()
        self.rows = rows
        self.enter, self.inner = nn.Linear(6, 16), nn.Linear(16, 16)
        self.leave = nn.Linear(16, 3)

    def forward(self, x):
        h = self.enter(x)
        h = self.inner(h if self.rows == "as given" else h.flip(0))
        h = h.flip(0) if self.rows == "turned" else h
        return self.leave(h.tanh())


def train(store, run: str, rows: str) -> None:
    """A student that learns what its teacher says."""
    torch.manual_seed(0)
    student = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    both = nn.ModuleDict({"teacher": Teacher(rows).eval(), "student": student})
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(both, tensors="*", optimizer=optimizer)
        for _ in range(3):
            x = torch.randn(12, 6, generator=draw)
            out = student(x)
            with torch.no_grad():
                told = both["teacher"](x).softmax(-1)
            loss = functional.kl_div(out.log_softmax(-1), told, reduction="batchmean")
            optimizer.zero_grad()
            anchorlib.anchor(loss, "loss").backward()
            optimizer.step()


def test_rows_that_are_turned_and_turned_back_are_no_difference(tmp_path):
    for run, rows in (("a", "as given"), ("b", "turned")):
        train(tmp_path, run, rows)
    for pair in ("ab", "ba"):
        found = anchorlib.compare(*pair, store=tmp_path)
        assert found.verdict in ("identical", "expected"), found.sentence


def test_rows_that_are_not_turned_back_are_one(tmp_path):
    for run, rows in (("a", "as given"), ("b", "turned alone")):
        train(tmp_path, run, rows)
    for pair in ("ab", "ba"):
        found = anchorlib.compare(*pair, store=tmp_path)
        assert found.verdict in ("suspect", "unexpected"), found.sentence
