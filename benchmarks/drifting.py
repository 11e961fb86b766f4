"""Two long trainings of one small net that part early and by rounding, as long drifts do."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import anchorlib

__all__ = ["trained"]

LATE = 10


def trained(folder: Path, steps: int) -> None:
    """Records runs "a" and "b", 277 records a step; from step 10 on b's output is off by 2e-7."""
    torch.set_num_threads(1)
    for run in "ab":
        torch.manual_seed(0)
        layers = [layer for _ in range(13) for layer in (nn.Linear(16, 16), nn.Tanh())]
        net = nn.Sequential(*layers, nn.Linear(16, 16, bias=False), nn.Tanh())
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
        with anchorlib.start(run, store=folder) as session:
            session.watch(net, tensors="*", optimizer=optimizer)
            for step in range(steps):
                x = torch.randn(8, 16)
                off = 1 + 2e-7 * (run == "b" and step >= LATE)
                loss = (net(x) * off - x).square().mean()
                anchorlib.anchor(loss, "loss")
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
