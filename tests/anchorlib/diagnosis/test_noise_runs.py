"""What cannot be a noise run of A is refused in one line, as it would excuse any difference."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import anchorlib
from anchorlib.errors import OptionError


def train(store, run: str, model: nn.Module, rate: float = 0.1) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for step in range(2):
            optimizer.zero_grad()
            model(torch.full((4, 8), 1.0 + step)).square().mean().backward()
            optimizer.step()


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        ("a", "a is A itself, and no noise run of A"),
        ("b", "b is B itself, and no noise run of A"),
        ("other", "other is no noise run of a, which has"),
    ],
)
def test_it_is_refused_with_what_makes_noise_runs(tmp_path, noise, words):
    for run, rate in (("a", 0.1), ("b", 0.2)):
        torch.manual_seed(0)
        train(tmp_path, run, nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)), rate)
    train(tmp_path, "other", nn.Sequential(nn.Sequential(nn.Linear(8, 3, bias=False), nn.GELU())))
    with pytest.raises(OptionError, match=words) as error:
        anchorlib.compare("a", "b", store=tmp_path, noise=[noise])
    assert "`anchor noise a`" in str(error.value)
    assert "\n" not in str(error.value)
