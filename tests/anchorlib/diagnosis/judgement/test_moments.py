"""What a batch norm hides of its input shows in its moments; what rounds does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import anchorlib

Tensor = torch.Tensor
Change = Callable[[Tensor], Tensor]


class Normed(nn.Module):
    """A convolution whose output is changed before a batch norm; nothing records it there."""

    def __init__(self, change: Change, beside: Change) -> None:
        super().__init__()
        self.change, self.beside = change, beside
        self.stem, self.bn = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.out = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.bn(self.change(self.stem(x))))
        return self.out(self.beside(h.mean((2, 3))))


def same(x: Tensor) -> Tensor:
    return x


def judged(
    store, change: Change = same, beside: Change = same, given: Change = same, passes: int = 1
):
    for run, how in (("a", (same, same)), ("b", (change, beside))):
        torch.manual_seed(0)
        model = Normed(*how)
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        with anchorlib.start(run, store=store, recorder="thread") as session:
            session.watch(model, tensors="*", optimizer=optimizer)
            for _ in range(3):
                optimizer.zero_grad()
                for _ in range(passes):
                    x = torch.randn(16, 1, 8, 8)
                    model(given(x) if run == "b" else x).square().mean().backward()
                optimizer.step()
    return anchorlib.compare("a", "b", store=store)


FACTOR = 1 + 2.0**-9


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [lambda x: x * FACTOR, lambda x: x + 2.0**-9], ids=["factor", "shift"]
)
def test_a_factor_or_a_shift_that_a_batch_norm_cancels_is_named_where_its_moments_show_it(
    tmp_path, change
):
    found = judged(tmp_path, change)
    assert found.verdict == "unexpected"
    named = [one for one in found.origins if one.cls == "not_rounding"]
    assert named[0].place.name.startswith("bn.running_")
    assert "the norm hides" in named[0].why


@pytest.mark.slow
@pytest.mark.parametrize("passes", [1, 2])
def test_the_same_convolution_rounded_elsewhere_is_no_factor(tmp_path, passes):
    """Adam moves the convolution's bias by rounding alone: a large shift, in the next step."""
    found = judged(tmp_path, lambda x: x * 3 / 3, passes=passes)
    assert found.counts.differing
    assert {one.cls for one in found.origins} == {"rounding"}, found.sentence


@pytest.mark.slow
def test_a_fault_behind_the_norm_is_named_there_and_not_at_its_moments(tmp_path):
    found = judged(tmp_path, lambda x: x * 3 / 3, beside=lambda x: x * FACTOR)
    assert found.verdict == "unexpected"
    named = [one for one in found.origins if one.cls == "not_rounding"]
    assert [one.place.name for one in named][:1] != ["bn.running_mean"], found.sentence


@pytest.mark.slow
def test_a_factor_that_came_in_with_the_data_is_not_hidden_by_the_norm(tmp_path):
    found = judged(tmp_path, given=lambda x: x * FACTOR)
    assert found.verdict == "suspect", found.sentence
    assert found.origins[0].cls == "starts_unequal"


@pytest.mark.slow
def test_a_batch_of_another_size_is_other_data_and_nothing_that_a_norm_hides(tmp_path):
    found = judged(tmp_path, given=lambda x: x[:12])
    assert found.verdict == "suspect", found.sentence
    assert found.origins[0].place.name == "input"


class Pooled(nn.Module):
    """A batch norm of features that are large beside their spread, by a formula."""

    def __init__(self, formula: Callable[[nn.BatchNorm1d, Tensor], Tensor]) -> None:
        super().__init__()
        self.formula = formula
        self.fc, self.norm, self.out = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = anchorlib.anchor(self.fc(x) + 40, "given")
        return self.out(anchorlib.anchor(self.formula(self.norm, h), "normed"))


def torchs(norm: nn.BatchNorm1d, x: Tensor) -> Tensor:
    return nn.functional.batch_norm(x, None, None, norm.weight, norm.bias, training=True)


def in_double(norm: nn.BatchNorm1d, x: Tensor) -> Tensor:
    w, b = norm.weight.double(), norm.bias.double()
    return nn.functional.batch_norm(x.double(), None, None, w, b, training=True).float()


def unbiased(norm: nn.BatchNorm1d, x: Tensor) -> Tensor:
    return torchs(norm, x) * ((len(x) - 1) / len(x)) ** 0.5


def off_by_a_little(norm: nn.BatchNorm1d, x: Tensor) -> Tensor:
    return torchs(norm, x) * (1 + 2.0**-12)


@pytest.mark.parametrize(
    ("formula", "verdict"),
    [(in_double, "suspect"), (unbiased, "unexpected"), (off_by_a_little, "unexpected")],
)
def test_a_norm_rounds_as_much_as_what_it_centres_is_large_and_no_more(tmp_path, formula, verdict):
    for run, how in (("a", torchs), ("b", formula)):
        torch.manual_seed(0)
        model = Pooled(how)
        with anchorlib.start(run, store=tmp_path, recorder="thread") as session:
            session.watch(model, tensors="*@value")
            model(torch.randn(16, 8)).square().mean().backward()
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.origins[0].place.name == "normed"
    assert found.verdict == verdict, found.sentence
