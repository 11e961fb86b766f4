"""Weight decay that a program adds to gradients in place of its optimizer is no fault."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import anchorlib
from anchorlib.diagnosis.comparison import Comparison

OPTIMIZERS = {
    "sgd": lambda parameters, decay: torch.optim.SGD(
        parameters, lr=0.05, momentum=0.9, weight_decay=decay
    ),
    "adam": lambda parameters, decay: torch.optim.Adam(parameters, lr=1e-2, weight_decay=decay),
    "adamw": lambda parameters, decay: torch.optim.AdamW(parameters, lr=1e-2, weight_decay=decay),
}


def train(  # a training is told by these
    store,
    run: str,
    *,
    how: str = "sgd",
    decay: float = 0.0,
    own: float = 0.0,
    biases: bool = True,
    where: str = "gradient",
    twice: float = 1.0,
    everything: bool = True,
) -> None:
    """decay: the optimizer's. own: the program's, in the "gradient" or in the "loss".

    biases: whether the program's holds for biases. twice: a factor on gradients that is left.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
    optimizer = OPTIMIZERS[how](model.parameters(), decay)
    decayed = [one for one in model.parameters() if biases or one.dim() > 1]
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*" if everything else None, optimizer=optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(16, 8, generator=draw)).square().mean()
            anchorlib.anchor(loss, "loss")
            if own and where == "loss":
                loss = loss + own / 2 * sum(one.square().sum() for one in decayed)
            loss.backward()
            for parameter in model.parameters():
                parameter.grad.mul_(twice)
            for parameter in decayed if where == "gradient" else ():
                parameter.grad.add_(parameter.detach(), alpha=own)
            optimizer.step()


def compared(store, changes, **reference) -> list[Comparison]:
    train(store, "a", **reference)
    train(store, "b", **reference | {"decay": 0.0} | changes)
    return [anchorlib.compare(*pair, store=store) for pair in ("ab", "ba")]


@pytest.mark.parametrize("where", ["gradient", "loss"])
@pytest.mark.parametrize("how", ["sgd", "adam"])
def test_decay_that_the_program_adds_is_no_fault(tmp_path, how, where):
    changes = {"own": 0.1, "where": where}
    for found in compared(tmp_path, changes, how=how, decay=0.1):
        assert found.verdict in ("expected", "suspect"), found.sentence
        assert all(origin.cls == "rounding" for origin in found.origins)
        assert any("by the weight decay alone" in note for note in found.notes)


@pytest.mark.parametrize("everything", [True, False], ids=["everything", "by default"])
@pytest.mark.parametrize("where", ["gradient", "loss"])
@pytest.mark.parametrize(
    ("how", "changes"),
    [
        ("adamw", {"own": 0.1}),
        ("sgd", {"own": 0.11}),
        ("sgd", {"own": 0.1, "decay": 0.1}),
        ("sgd", {"own": 0.0}),
        ("sgd", {"own": 0.1, "biases": False}),
        ("sgd", {"own": 0.1, "twice": 2.0}),
        ("adam", {"own": -0.1}),
        ("adam", {"own": 0.1, "biases": False}),
    ],
    ids=str,
)
def test_another_decay_is_a_fault(tmp_path, how, changes, where, everything):
    changes = changes | {"where": where}
    for found in compared(tmp_path, changes, how=how, decay=0.1, everything=everything):
        assert found.verdict == "unexpected", found.sentence


def test_decay_is_no_excuse_where_updates_are_not_recorded(tmp_path):
    for found in compared(tmp_path, {"own": 0.1}, decay=0.1, everything=False):
        assert found.verdict == "unexpected", found.sentence


def test_what_a_program_adds_of_the_parameter_is_told(tmp_path):
    found, reverse = compared(tmp_path, {"own": 0.1})
    assert "B adds 0.1 times the parameter to its gradient" in found.sentence
    assert "A adds 0.1 times the parameter to its gradient" in reverse.sentence
