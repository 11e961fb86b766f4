"""A formula that makes B's elements of A's is told, and none where there is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import anchorlib

Tensor = torch.Tensor


class Noised(nn.Module):
    """A net whose input is scaled by a table that the module holds."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table)
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x * self.table[: len(x), None]).tanh())


def trained(store: Any, run: str, table: Tensor) -> None:
    torch.manual_seed(0)
    model = Noised(table)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(torch.randn(16, 8, generator=draw)).square().mean()
            anchorlib.anchor(loss, "loss").backward()
            optimizer.step()


ALPHA = 1 - torch.linspace(0.001, 0.1, 20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda table: table.cumprod(0), "B is the cumulative product of A"),
        (lambda table: table.sqrt(), "B is the square root of A"),
        (lambda table: 1 - table, "B is 1 minus A"),
        (lambda table: table + 0.5, "B is A plus 0.5"),
        (
            lambda table: table.where(table > 0.95, 0.5),
            "where they differ B has 0.5",
        ),
        (lambda table: table.flip(0), "B has A's elements, arranged otherwise"),
        (
            lambda table: torch.cat([torch.full((1,), 2.0), table[:-1]]),
            "B's elements are A's, 1 place on along axis 0",
        ),
    ],
)
def test_how_a_table_follows_from_the_others_is_told(tmp_path, change, said):
    for run, table in (("a", ALPHA), ("b", change(ALPHA))):
        trained(tmp_path, run, table)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "unexpected"
    assert said in found.sentence


@pytest.mark.parametrize(
    ("axis", "said"),
    [(0, "each row of B is A's times"), (1, "each of B's slices along axis 1 is A's times")],
)
def test_rows_or_columns_that_are_scaled_by_factors_of_their_own_are_told(tmp_path, axis, said):
    draw = torch.Generator().manual_seed(0)
    table = torch.randn(16, 9, generator=draw)
    factors = torch.linspace(0.5, 2, table.shape[axis]).unsqueeze(1 - axis)
    for run, own in (("a", table), ("b", table * factors)):
        with anchorlib.start(run, store=tmp_path, recorder="thread"):
            anchorlib.anchor(own, "table")
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert f"{said} a factor of its own, 0.5 to 2" in str(found.origins[0].why), found


SCORES = torch.randn(7, 5, generator=torch.Generator().manual_seed(2))
SHARES = torch.rand(12, generator=torch.Generator().manual_seed(3)) + 0.1


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (SCORES.softmax(1), SCORES.softmax(0), "A sums up to 1 along axis 1, B along axis 0"),
        (SCORES.softmax(1), SCORES.sigmoid(), "A sums up to 1 along axis 1, B along none"),
        (SHARES / SHARES.sum(), SHARES**2 / (SHARES**2).sum(), " times the square of A"),
        (SHARES, SHARES.log1p(), "B is the logarithm of 1 plus A"),
        (SHARES.log1p(), SHARES, "B is the exponential of A, less 1"),
        (SHARES, 2 * SHARES.log(), "B is 2 times the logarithm of A"),
        (SHARES, SHARES.exp(), "B is the exponential of A"),
        (SHARES, SHARES + 0.5 * (SHARES * 2 > 1), "where they differ B is A plus 0.5"),
        (SCORES, SCORES.flip(1) + 0.1 * SCORES**3, ""),
    ],
)
def test_sums_and_multiples_of_powers_are_told(tmp_path, a, b, said):
    for run, own in (("a", a), ("b", b)):
        with anchorlib.start(run, store=tmp_path, recorder="thread"):
            anchorlib.anchor(own.clone(), "table")
    why = str(anchorlib.compare("a", "b", store=tmp_path).origins[0].why)
    assert said in why
    assert said or not any(
        word in why for word in ("sums up", "times", "square", "logarithm", "plus")
    )


@pytest.mark.slow
def test_a_table_that_follows_by_no_formula_is_said_to_follow_by_none(tmp_path):
    for run, end in (("a", 0.1), ("b", 0.3)):
        trained(tmp_path, run, (1 - torch.linspace(0.001, end, 20)) ** 2)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "unexpected"
    assert "B is" not in found.sentence
    assert "B has" not in found.sentence
