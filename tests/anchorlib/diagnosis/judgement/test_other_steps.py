"""Steps of other data, of passes that an epoch leaves over, and of an optimizer with closures."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import anchorlib
from tests.once import Once

BATCHES, TOGETHER = 7, 3


@dataclass(frozen=True)
class Training:
    """Two epochs of 7 batches, of which 3 make a step, and the last one a step of its own.

    skips: whether one batch is skipped from the second epoch on. scale: of its data. left: what is
    done with the last batch: "step", "carry" its gradient into the next epoch, or "drop" it.
    closure: whether LBFGS trains instead, with a closure. search: how it searches. zeroed: whether
    the closure clears gradients in step 2. lr: of either.
    """

    skips: bool = False
    scale: float = 1.0
    left: str = "step"
    closure: bool = False
    search: str | None = None
    zeroed: bool = True
    lr: float = 0.1


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
    data = torch.randn(2 * BATCHES + 1, 8, 6)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        (with_closure if how.closure else in_epochs)(how, model, data, session)


def in_epochs(how: Training, model: nn.Module, data: torch.Tensor, session) -> None:
    optimizer = torch.optim.SGD(model.parameters(), how.lr, momentum=0.5)
    session.watch(model, tensors="*", optimizer=optimizer)
    for number in range(2 * BATCHES):
        later = number >= BATCHES
        x = data[number + (how.skips and later)] * (how.scale if later else 1.0)
        anchorlib.anchor((model(x) - 1).square().mean() / TOGETHER, "loss").backward()
        last = number % BATCHES == BATCHES - 1
        if number % BATCHES % TOGETHER == TOGETHER - 1 or (last and how.left == "step"):
            optimizer.step()
            optimizer.zero_grad()
        elif last and how.left == "drop":
            optimizer.zero_grad()


def with_closure(how: Training, model: nn.Module, data: torch.Tensor, session) -> None:
    optimizer = torch.optim.LBFGS(model.parameters(), how.lr, max_iter=4, line_search_fn=how.search)
    session.watch(model, tensors="*", optimizer=optimizer)
    for number in range(4):

        def closure(number: int = number) -> torch.Tensor:
            if how.zeroed or number != 2:
                optimizer.zero_grad()
            loss = anchorlib.anchor((model(data[0]) - 1).square().mean(), "loss")
            loss.backward()
            return loss

        optimizer.step(closure)


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


EPOCHS, CLOSURE = Training(), Training(closure=True)
CASES = {
    "a batch that is skipped": (
        EPOCHS,
        {"skips": True},
        ["the model was given something else", "B is given here what A is given at step 3, pass 1"],
    ),
    "other data": (EPOCHS, {"scale": 2.0}, ["the model was given something else"]),
    "a gradient that is carried on": (
        EPOCHS,
        {"left": "carry"},
        ["1 backward pass reaches it in step 2 of A, 4 in B"],
    ),
    "a gradient that is dropped": (
        EPOCHS,
        {"left": "drop"},
        [
            "1 backward pass reaches it in step 2 of A, 4 in B",
            "zero_grad? B's gradient lacks the first 1 pass of its step",
        ],
    ),
    "a closure that clears nothing": (
        CLOSURE,
        {"zeroed": False},
        ["zero_grad? B takes A's gradient and its own of the step before"],
    ),
    "another search": (
        CLOSURE,
        {"search": "strong_wolfe"},
        ["LBFGS line_search_fn None | strong_wolfe"],
    ),
    "another learning rate of LBFGS": (CLOSURE, {"lr": 0.2}, ["LBFGS lr 0.1 | 0.2"]),
}
CLAIMS = ("zero_grad?", "is given here", "reaches it", "line_search_fn", "given something else")


@pytest.mark.parametrize("case", CASES)
def test_what_a_step_does_otherwise_is_told_and_nothing_else(case, once):
    one, changes, words = CASES[case]
    found = anchorlib.compare(once(one), once(replace(one, **changes)))
    told = "; ".join([found.sentence, *(origin.why for origin in found.origins[:1])])
    assert [word for word in words if word not in told] == [], told
    others = [claim for claim in CLAIMS if claim in told and claim not in " ".join(words)]
    assert others == [], told
