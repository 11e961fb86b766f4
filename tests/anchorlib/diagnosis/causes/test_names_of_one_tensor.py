"""Names of one tensor explain each other: a cut behind them is an origin all the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import anchorlib


class Encoder(nn.Module):
    """Returns what each stage makes, whose last module and the encoder name it too."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Tanh()) for _ in range(3)
        )

    def forward(self, x):
        found = []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        return found


class Net(nn.Module):
    def __init__(self, detached: bool) -> None:
        super().__init__()
        self.encoder, self.join = Encoder(), nn.Linear(16, 8)
        self.head, self.detached = nn.Linear(16, 4), detached

    def forward(self, x):
        first, second, last = self.encoder(x)
        if self.detached:
            first, second = first.detach(), second.detach()
        return self.head(torch.cat((self.join(torch.cat((last, second), 1)), first), 1))


def train(name: str, store, *, detached: bool, clip: float) -> None:
    torch.manual_seed(0)
    model = Net(detached)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(2):
            optimizer.zero_grad()
            anchorlib.anchor(model(torch.randn(6, 8)).square().mean(), "loss").backward()
            nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()


@pytest.mark.parametrize("clip", [1e9, 1e-2], ids=["not clipped", "clipped"])
@pytest.mark.parametrize("turned", [False, True], ids=["A detaches nothing", "B detaches nothing"])
def test_a_cut_behind_three_names_is_an_origin(tmp_path, turned, clip):
    train("a", tmp_path, detached=turned, clip=clip)
    train("b", tmp_path, detached=not turned, clip=clip)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "unexpected", found
    assert found.origins[0].place.name.startswith("encoder"), found
    assert found.origins[0].place.kind == "grad", found
