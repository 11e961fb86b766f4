"""A transform that a program computes by itself rounds more than the noise runs do."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.training import perturbed


class Spectrum(nn.Module):
    """Logarithms of the power of the frequencies of sounds, centred.

    how: "torch", by sines and cosines of "float32" angles, or with a floor that is "off".
    """

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        count = x.shape[-1]
        if self.how == "float32":
            angles = torch.outer(torch.arange(count // 2 + 1.0), torch.arange(float(count)))
            angles = angles * (2 * math.pi / count)
            power = (x @ angles.cos().T).square() + (x @ angles.sin().T).square()
        else:
            power = torch.fft.rfft(x).abs().square()
        logs = (power + (1e-4 if self.how == "off" else 1e-6)).log()
        return (logs - logs.mean(0)) / (logs.std(0) + 1e-5)


def train(store, run: str, how: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        Spectrum(how),
        nn.Linear(33, 32),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Linear(32, 32),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Linear(32, 4),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(4):
            x, y = torch.randn(32, 64, generator=draw), torch.randint(0, 4, (32,), generator=draw)
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for how in ("torch", "float32", "off"):
        train(folder, how, how)
    for seed in (1, 2, 3):
        with perturbed(f"{seed}:float32"):
            train(folder, "torch", "torch")
    return folder


@pytest.mark.parametrize(("how", "verdict"), [("float32", "expected"), ("off", "unexpected")])
def test_noise_covers_what_follows_from_a_transforms_rounding(store, how, verdict):
    noise = [f"torch-noise{seed}" for seed in (1, 2, 3)]
    found = anchorlib.compare("torch", how, store=store, noise=noise)
    assert found.verdict == verdict, found.sentence
    assert found.origins[0].place.name == "0"
