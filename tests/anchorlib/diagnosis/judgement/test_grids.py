"""What is left where terms cancel rounds as the terms do; a fault larger than that is one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from anchorlib.diagnosis.comparison import Comparison

Tensor = torch.Tensor


class Spread(nn.Module):
    """A layer that tells logarithms of variances, which are small at first."""

    def __init__(self) -> None:
        super().__init__()
        self.told = nn.Linear(12, 10)
        nn.init.normal_(self.told.weight, std=1e-3)
        nn.init.zeros_(self.told.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.told(x)


def compared(
    store, forms: tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]
) -> Comparison:
    for run, form in zip("ab", forms, strict=True):
        torch.manual_seed(0)
        model = Spread()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        draw = torch.Generator().manual_seed(1)
        with anchorlib.start(run, store=store, recorder="thread") as session:
            session.watch(model, tensors="*", optimizer=optimizer)
            for _ in range(3):
                optimizer.zero_grad()
                small = anchorlib.anchor(form(model(torch.randn(15, 12, generator=draw))), "small")
                small.square().mean().sqrt().backward()
                optimizer.step()
    return anchorlib.compare("a", "b", store=store)


def divergence(s: Tensor) -> Tensor:
    return (s.exp() - 1 - s).sum(1)


def by_expm1(s: Tensor) -> Tensor:
    return (torch.expm1(s) - s).sum(1)


def sums_first(s: Tensor) -> Tensor:
    return s.exp().sum(1) - s.sum(1) - 10


def of_another_slope(s: Tensor) -> Tensor:
    return (torch.expm1(s) - 1.01 * s).sum(1)


def steeper(s: Tensor) -> Tensor:
    return 2 * by_expm1(s)


def missing(s: Tensor) -> Tensor:
    return 10 + (s.softmax(1) * s.log_softmax(1)).sum(1) * 10 / 2.302585092994046


def missing_otherwise(s: Tensor) -> Tensor:
    return (s.softmax(1) * (10 * s.softmax(1)).log()).sum(1) * 10 / 2.302585092994046


def missing_with_an_eps(s: Tensor) -> Tensor:
    return 10 + (s.softmax(1) * (s.softmax(1) + 1e-5).log()).sum(1) * 10 / 2.302585092994046


def alike(s: Tensor) -> Tensor:
    return 1 - functional.cosine_similarity(s + 1, s.roll(1, 1) + 1)


def alike_by_norms(s: Tensor) -> Tensor:
    one, other = functional.normalize(s + 1), functional.normalize(s.roll(1, 1) + 1)
    return (one - other).square().sum(1) / 2


def alike_by_less(s: Tensor) -> Tensor:
    return 1 - 0.999 * functional.cosine_similarity(s + 1, s.roll(1, 1) + 1)


@pytest.mark.parametrize(
    "forms",
    [
        (sums_first, by_expm1),
        (missing, missing_otherwise),
        (alike, alike_by_norms),
    ],
)
def test_another_form_of_what_cancels_is_rounding(tmp_path, forms):
    for store, pair in (("one", forms), ("other", forms[::-1])):
        found = compared(tmp_path / store, pair)
        assert found.verdict == "suspect", found.sentence
        assert {one.cls for one in found.origins} == {"rounding"}


@pytest.mark.parametrize(
    "forms",
    [
        (by_expm1, steeper),
        (divergence, of_another_slope),
        (sums_first, of_another_slope),
        (missing, missing_with_an_eps),
        (alike, alike_by_less),
    ],
)
def test_a_fault_in_what_cancels_is_one(tmp_path, forms):
    for store, pair in (("one", forms), ("other", forms[::-1])):
        found = compared(tmp_path / store, pair)
        assert found.verdict == "unexpected", found.sentence
