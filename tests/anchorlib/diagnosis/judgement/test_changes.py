"""What B does otherwise at an origin stands in the sentence, as both runs have told it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib

Formula = Callable[[torch.Tensor], torch.Tensor]


class Net(nn.Module):
    def __init__(self, formula: Formula) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.formula = formula

    def forward(self, x):
        return anchorlib.anchor(self.formula(self.fc(x)), "made")


def trained(folder, name: str, formula: Formula) -> None:
    torch.manual_seed(0)
    model, x = Net(formula), torch.randn(16, 8)
    with anchorlib.start(name, store=folder) as session:
        session.watch(model, tensors="*")
        for _ in range(3):
            model(x).pow(2).sum().backward()
            session.step()


def compared(folder, a: Formula, b: Formula):
    for name, formula in (("a", a), ("b", b)):
        trained(folder, name, formula)
    return anchorlib.compare("a", "b", store=folder)


def squared(x):
    return (x * x.sigmoid()).view(8, 16).view(16, 8)


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (
            functional.gelu,
            lambda x: functional.gelu(x, approximate="tanh"),
            "GeluBackward0 approximate 'none' | 'tanh'",
        ),
        (
            lambda x: x / x.std(),
            lambda x: x / x.std(correction=0),
            "StdBackward0 correction 1 | 0",
        ),
        (
            lambda x: functional.leaky_relu(x, 0.01),
            lambda x: functional.leaky_relu(x, 0.2),
            "LeakyReluBackward0 negative_slope 0.01 | 0.2",
        ),
        (lambda x: x * 0.125, lambda x: x * 0.1, "MulBackward0 other 0.125 | 0.1"),
        (
            lambda x: functional.batch_norm(x, None, None, training=True),
            lambda x: functional.batch_norm(x, None, None, training=True, eps=0.1),
            "NativeBatchNormBackward0 eps 1e-05 | 0.1",
        ),
        (squared, lambda x: squared(x) * x.sigmoid(), "B has a second Mul, B has a second Sigmoid"),
        (
            lambda x: torch.tanh(x) + x,
            lambda x: torch.tanh(x).view(16, 8),
            "A has an Add that the other lacks",
        ),
        (
            lambda x: x.masked_fill(torch.ones(16, 8).triu(1).bool(), 0.0),
            lambda x: x.masked_fill(torch.ones(16, 8).triu(0).bool(), 0.0),
            "MaskedFillBackward0 mask 28 of 128 (",
        ),
        (torch.tanh, torch.sigmoid, "B has Sigmoid in place of Tanh"),
    ],
)
def test_what_an_operation_was_told_and_which_there_are_stand_in_the_sentence(tmp_path, a, b, said):
    found = compared(tmp_path, a, b)
    assert found.origins[0].place.name == "made"
    assert said in found.sentence
    changed = found.to_dict()["origins"][0]["changed"]
    assert any(one.startswith(said.split(", ")[0]) for one in changed)


def test_an_origin_has_the_operations_of_both_runs_without_views(tmp_path):
    found = compared(tmp_path, squared, lambda x: torch.tanh(squared(x)))
    told = found.to_dict()["origins"][0]
    assert told["ops_a"] == ["MulBackward0", "SigmoidBackward0"]
    assert told["ops_b"] == ["TanhBackward0", "MulBackward0", "SigmoidBackward0"]


def test_equal_formulas_that_are_anchored_in_between_are_said_to_be_no_change(tmp_path):
    def cut(x):
        return anchorlib.anchor(x.sigmoid(), "between") * x * 1.001

    found = compared(tmp_path, lambda x: x.sigmoid() * x, cut)
    assert not any("that the other lacks" in one for one in found.origins[0].changed)


def test_operations_that_one_run_never_has_are_named_also_where_anchors_stand_elsewhere(tmp_path):
    def by_hand(x):
        scores = anchorlib.anchor(x @ x.mT / 8**0.5, "scores")
        return scores.softmax(-1) @ x

    def fused(x):
        return functional.scaled_dot_product_attention(x[None], x[None], x[None])[0]

    found = compared(tmp_path, by_hand, fused)
    assert "B computes it by " in found.sentence
    assert "SafeSoftmax" in found.sentence or "ScaledDotProduct" in found.sentence


def test_numbers_are_told_with_six_digits_where_these_differ(tmp_path):
    found = compared(tmp_path, lambda x: x / 32**0.5, lambda x: x / 24**0.5)
    assert "DivBackward0 other 5.65685 | 4.89898" in found.sentence
    near = compared(tmp_path / "near", lambda x: x * 0.10000001, lambda x: x * 0.10000002)
    assert "MulBackward0 other 0.10000001 | 0.10000002" in near.origins[0].why


def test_the_argument_of_an_operation_in_backward_is_told_of_the_gradient(tmp_path):
    class Slope(torch.autograd.Function):
        """Equal forward; another slope backward, which no getter of torch's tells."""

        @staticmethod
        def forward(ctx, x):
            ctx._saved_slope = 3  # a user's own attribute, and no argument of an operation
            return x.clone()

        @staticmethod
        def backward(_ctx, grad):
            return grad * 2

    found = compared(tmp_path, lambda x: x.clone(), Slope.apply)
    assert found.origins[0].place.kind == "grad"
    assert found.origins[0].ops_b == ("SlopeBackward",)
    assert "_saved" not in found.sentence
