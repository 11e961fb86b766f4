"""Sparse gradients are compared by what they mean, however they are stored."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import anchorlib
from tests.once import Once

ROWS = 20


@dataclass(frozen=True)
class Training:
    """Rows that are looked up twice, with an optimizer for sparse gradients.

    stored: coalesced before the optimizer's step, or as it comes. factor: of the gradient. moved:
    whether its first row is another one. zeroed: whether it is cleared before each step.
    """

    stored: str = "as it comes"
    factor: float = 1.0
    moved: bool = False
    zeroed: bool = True


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    model = nn.Embedding(ROWS, 8, sparse=True)
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.01)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(3):
            if how.zeroed:
                optimizer.zero_grad()
            chosen = torch.randint(0, ROWS, (16,), generator=draw)
            loss = (model(chosen) * model(chosen.flip(0)).tanh()).sum()
            anchorlib.anchor(loss, "loss").backward()
            gradient = model.weight.grad
            if how.stored == "coalesced":
                gradient = gradient.coalesce()
            indices, values = gradient._indices().clone(), gradient._values() * how.factor
            if how.moved:
                indices[0, 0] = (indices[0, 0] + 1) % ROWS
            if how != Training():
                model.weight.grad = torch.sparse_coo_tensor(
                    indices, values, gradient.shape, check_invariants=True
                )
            optimizer.step()


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


def compared(once, **changes):
    return anchorlib.compare(once(Training()), once(replace(Training(), **changes)))


@pytest.mark.slow
def test_a_gradient_that_is_coalesced_is_no_difference_of_values(once):
    found = compared(once, stored="coalesced")
    assert found.counts.differing
    assert found.verdict in ("expected", "suspect"), found.sentence  # sums round in another order
    assert {one.cls for one in found.origins} <= {"rounding"}
    assert "in how a sparse gradient is stored alone" in found.sentence


@pytest.mark.parametrize("fault", [{"factor": 1.01}, {"moved": True}])
@pytest.mark.parametrize("stored", ["coalesced", "as it comes"])
def test_another_gradient_is_one_however_it_is_stored(stored, fault, once):
    found = compared(once, stored=stored, **fault)
    assert found.verdict == "unexpected", found.sentence
    assert found.origins[0].place.name.startswith("weight")


def test_a_sparse_gradient_that_is_not_cleared_is_told(once):
    found = compared(once, zeroed=False)
    assert found.verdict == "unexpected"
    assert "zero_grad? B takes A's gradient and its own of the step before" in found.sentence
    assert "zero_grad" not in compared(once, factor=1.01).sentence
