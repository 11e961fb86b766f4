"""What B does otherwise at an origin stands in the sentence, as both runs have told it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib

Formula = Callable[[torch.Tensor], torch.Tensor]
TABLE = torch.linspace(-1, 2, 128).view(16, 8).sin()


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
            lambda x: x * torch.tensor(0.125),
            lambda x: x * torch.tensor(0.1),
            "MulBackward0 other tensor(0.125) | tensor(0.1)",
        ),
        (
            lambda x: x * torch.ones(8),
            lambda x: x * torch.eye(8)[0],
            "MulBackward0 other (8 of mean 1, std 0) | (8 of mean 0.125, std 0.331)",
        ),
        (
            lambda x: x * torch.ones(16, 1),
            lambda x: x * torch.linspace(0.2, 0.9, 16)[:, None],
            "each row of B is A's times a factor of its own, 0.2 to 0.9",
        ),
        (
            lambda x: x.masked_fill(torch.eye(16, 8).bool(), 0.0),
            lambda x: x.masked_fill(torch.eye(16, 8).bool(), 1.0),
            "all that autograd keeps is equal: it does not keep the value of MaskedFill",
        ),
        (
            lambda x: x / (x.square().sum() + 1e-5).sqrt(),
            lambda x: x / (x.square().sum() + 10).sqrt(),
            "all that autograd keeps is equal: it does not keep what Add adds",
        ),
        (
            lambda x: x * 0 + TABLE,
            lambda x: x * 0 + TABLE.flip(0),
            "all that autograd keeps is equal: it does not keep what Add adds, "
            "B has A's elements, arranged otherwise",
        ),
        (
            lambda x: x * 0 + TABLE,
            lambda x: x * 0 + TABLE * torch.linspace(0.2, 0.9, 16)[:, None],
            "all that autograd keeps is equal: it does not keep what Add adds, "
            "each row of B is A's times a factor of its own",
        ),
        (
            lambda x: x.view(4, 4, 8).transpose(0, 1).reshape(16, 8) * 2,
            lambda x: x.view(4, 4, 8).reshape(16, 8) * 2,
            "A has a Transpose that the other lacks",
        ),
        (
            lambda x: functional.mse_loss(x, torch.zeros(16, 8), reduction="none"),
            lambda x: functional.mse_loss(x, torch.ones(16, 8), reduction="none"),
            "the loss's target differs: 128 of mean 0, std 0, first 0 | 128 of mean 1, std 0, ",
        ),
        (
            lambda x: x.chunk(2, 1)[0].sigmoid() * x.chunk(2, 1)[1],
            lambda x: x.chunk(2, 1)[1].sigmoid() * x.chunk(2, 1)[0],
            "Sigmoid takes outputs of one operation in another order: output 0 | output 1",
        ),
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


def normed(x):
    return x / x.square().mean(-1, keepdim=True).sqrt()


@pytest.mark.parametrize(
    ("factor", "cls"),
    [(3.2, "not_rounding"), (3.1 * (1 + 1e-7), "rounding")],
    ids=["another number", "its rounding"],
)
def test_a_number_that_a_norm_takes_out_again_is_told_by_what_was_multiplied(tmp_path, factor, cls):
    found = compared(
        tmp_path,
        lambda x: normed(x * torch.tensor(3.1)),
        lambda x: normed(x * torch.tensor(factor)),
    )
    assert (found.origins[0].place.name, found.origins[0].cls) == ("made", cls), found
    assert ("other tensor(3.1) | tensor(3.2)" in found.sentence) == (cls == "not_rounding")


def test_a_random_number_of_another_seed_is_no_other_formula(tmp_path):
    for name, seed in (("a", 0), ("b", 1)):
        torch.manual_seed(seed)
        draw, inside = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
        fc, x = nn.Linear(8, 8), torch.randn(16, 8, generator=draw)
        nn.init.eye_(fc.weight)
        nn.init.zeros_(fc.bias)
        with anchorlib.start(name, store=tmp_path) as session:
            session.watch(fc, tensors="*")
            made = normed(fc(x) * (torch.rand((), generator=inside) + 1))
            anchorlib.anchor(made, "made").pow(2).sum().backward()
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "suspect", found


class Two(nn.Module):
    """Two layers behind a norm; `of` says what the second one is computed from."""

    def __init__(self, of: str) -> None:
        super().__init__()
        self.of = of
        self.norm, self.one, self.two = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        h = self.one(x)
        n = self.norm(h)
        return self.two({"norm": n, "one": h, "both": n + h, "more": 1.5 * n}[self.of])


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ("one", "B computes it from one, A from norm"),
        ("both", "B alone computes it from one"),
        ("more", ""),
    ],
)
def test_what_a_value_is_computed_from_in_one_run_alone_is_said(tmp_path, of, said):
    for name, own in (("a", "norm"), ("b", of)):
        torch.manual_seed(0)
        model, x = Two(own), torch.randn(16, 8)
        with anchorlib.start(name, store=tmp_path) as session:
            session.watch(model, tensors="*")
            model(x).pow(2).sum().backward()
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert said in found.sentence, found
    assert ("computes it from" in found.sentence) == bool(said)


@pytest.mark.parametrize("skips", [True, False])
def test_a_record_of_one_run_alone_is_named_where_the_other_does_not_compute_it(tmp_path, skips):
    def by_norm(x):
        return anchorlib.anchor(functional.layer_norm(x, (8,)), "normed") * 2

    def other(x):
        return (x if skips else functional.layer_norm(x, (8,)) * 1.01) * 2

    found = compared(tmp_path, by_norm, other)
    said = "A computes it from normed (NativeLayerNorm), B does not"
    assert (said in found.sentence) == skips, found


def regressed(folder, name: str, target: float, power: float = 2) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(16, 8, generator=draw), torch.rand(16, generator=draw) * target
    with anchorlib.start(name, store=folder) as session:
        session.watch(model, tensors="*")
        loss = 0.5 * (model(x)[:, 0] - y).pow(power).mean()
        anchorlib.anchor(loss, "loss").backward()


@pytest.mark.parametrize("power", [2, 4])
def test_the_target_of_a_squared_loss_is_told_though_no_record_holds_it(tmp_path, power):
    regressed(tmp_path, "a", 1.0, power)
    regressed(tmp_path, "b", 2.0, power)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.origins[0].place.name == "loss"
    assert ("the loss's target differs in 16 of 16 elements" in found.sentence) == (power == 2)
    if power == 2:
        told = [
            float(one) for one in re.search(r"([\d.]+) \| ([\d.]+) on av", found.sentence).groups()
        ]
        assert told[1] == pytest.approx(2 * told[0], rel=0.02)
