"""Convolutions and their gradients computed again: every size, stride, padding, dilation, group."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import anchorlib
from anchorlib.diagnosis.recomputation.convolutions import convolving
from anchorlib.diagnosis.recomputation.operands import Operands, StoredOperand
from anchorlib.diagnosis.recomputation.transposed import transposing
from anchorlib.formulas import Fit, fit
from tests.cli.made import anchor
from tests.seeds import examples

Tensor = torch.Tensor
KINDS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


EVEN = pytest.mark.filterwarnings("ignore:Using padding='same' with even:UserWarning")
"""torch says that it copies the input, where `same` pads one end more than the other."""


@st.composite
def layers(draw: st.DrawFn) -> tuple[Any, Tensor]:
    """A convolution, and an input that it takes."""
    axes = draw(st.integers(1, 3))
    numbers = st.tuples(*[st.integers(1, 3)] * axes)
    groups = draw(st.integers(1, 3))
    size, dilation = draw(numbers), draw(numbers)
    padding = draw(st.tuples(*[st.integers(0, 2)] * axes))
    torch.manual_seed(draw(st.integers(0, 99)))
    layer = KINDS[axes](
        groups * draw(st.integers(1, 3)),
        groups * draw(st.integers(1, 3)),
        size,
        stride=draw(numbers),
        padding=padding,
        dilation=dilation,
        groups=groups,
        bias=draw(st.booleans()),
    )
    least = [step * (k - 1) + 1 for k, step in zip(size, dilation, strict=True)]
    space = [n + draw(st.integers(0, 3)) for n in least]
    return layer, torch.randn(draw(st.integers(1, 3)), layer.in_channels, *space)


@st.composite
def transposed_layers(draw: st.DrawFn) -> tuple[Any, Tensor]:
    """A transposed convolution, and an input that it takes."""
    axes = draw(st.integers(1, 3))
    numbers = st.tuples(*[st.integers(1, 3)] * axes)
    groups = draw(st.integers(1, 3))
    stride, dilation = draw(numbers), draw(numbers)
    torch.manual_seed(draw(st.integers(0, 99)))
    layer = TRANSPOSED[axes](
        groups * draw(st.integers(1, 3)),
        groups * draw(st.integers(1, 3)),
        draw(numbers),
        stride=stride,
        padding=draw(st.integers(0, 1)),
        output_padding=tuple(draw(st.integers(0, step - 1)) for step in stride),
        dilation=dilation,
        groups=groups,
        bias=draw(st.booleans()),
    )
    space = [draw(st.integers(3, 5)) for _ in range(axes)]
    return layer, torch.randn(draw(st.integers(1, 3)), layer.in_channels, *space)


def same_sized() -> st.SearchStrategy[tuple[Any, Tensor]]:
    """A convolution that pads to the size of its input, or not at all, by name."""
    return st.builds(
        lambda name, size, step, groups: (
            nn.Conv2d(4, 4, size, padding=name, dilation=step, groups=groups),
            torch.randn(2, 4, 13, 11),
        ),
        st.sampled_from(["same", "valid"]),
        st.tuples(st.integers(1, 5), st.integers(1, 4)),  # an even size pads one end more
        st.integers(1, 2),
        st.sampled_from([1, 2]),
    )


def operand(name: str, kind: str, x: Tensor) -> StoredOperand:
    values = x.detach().numpy()
    return StoredOperand(
        name, kind, values.shape, str(x.dtype).removeprefix("torch."), lambda _: values
    )


def told(layer: Any, x: Tensor, *, precision: torch.dtype = torch.float32) -> dict[str, Fit]:
    """The fits of the output and of each gradient, which were computed in `precision`."""
    wide = [one.detach().to(precision).requires_grad_() for one in (x, *layer.parameters())]
    computed = dict(zip(["weight", "bias"], wide[1:], strict=False))
    y = torch.func.functional_call(layer, computed, (wide[0],))
    g = torch.randn_like(y, dtype=torch.float32)
    y.backward(g.to(precision))
    taken = operand("x", "value", x)
    weights = tuple(operand(name, "value", one) for name, one in layer.named_parameters())
    arrived = operand("y", "grad", g)
    gradients = {"x": wide[0].grad} | {name: one.grad for name, one in computed.items()}
    every = {"y": Operands(operand("y", "value", y.float()), None, None, (taken,), weights)}
    for name, gradient in gradients.items():
        own = operand(name, "grad" if name == "x" else "pass_grad", gradient.float())
        every[name] = Operands(own, arrived, None, (taken,), weights)
    found = {}
    for name, one in every.items():
        how = convolving(one, [str(layer)]) or transposing(one, [str(layer)])
        assert how is not None
        own = how.output(one.own.read("a"))
        found[name] = fit(how.functions, how.inputs("a"), own, "float32", part=how.part)
    return found


@pytest.mark.slow
@EVEN
@settings(max_examples=examples(20), deadline=None)
@given(case=st.one_of(layers(), transposed_layers(), same_sized()))
def test_the_truth_is_what_float64_computes_and_torchs_kernel_gives_its_own_bits(
    case: tuple[Any, Tensor],
) -> None:
    layer, x = case
    for name, exact in told(layer, x, precision=torch.float64).items():
        assert not exact.error > 0.5, f"{name} of {layer} is a float64 value, rounded once"
    for name, own in told(layer, x).items():
        assert "torch's kernel" in own.formulas, f"{name} of {layer}"


def test_settings_that_no_rule_knows_give_no_recipe() -> None:
    x = torch.randn(2, 4, 9)
    for layer in (
        nn.Conv1d(4, 4, 3, padding=1, padding_mode="circular"),
        nn.ConvTranspose1d(4, 4, 3, dilation=2, output_padding=1),  # not below its stride
    ):
        weights = tuple(operand(name, "value", one) for name, one in layer.named_parameters())
        own = operand("y", "value", layer(x))
        known = Operands(own, None, None, (operand("x", "value", x),), weights)
        assert convolving(known, [str(layer)]) is None
        assert transposing(known, [str(layer)]) is None


class _OneByOne(torch.autograd.Function):
    """A convolution whose weight's gradient adds one place after another, image by image."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return functional.conv2d(x, weight, bias, groups=2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        total = torch.zeros_like(weight).flatten(1).unflatten(0, (2, -1))
        cut = functional.unfold(x, weight.shape[2:]).unflatten(1, (2, -1))
        arrived = g.flatten(2).unflatten(1, (2, -1))
        for image in range(len(g)):
            for at in range(cut.shape[-1]):
                total = total + arrived[image, ..., at, None] * cut[image, :, None, :, at]
        plain = torch.ops.aten.convolution_backward(
            g, x, weight, [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 2, [True, False, True]
        )
        return plain[0], total.reshape(weight.shape), plain[2]


class ByHand(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return _OneByOne.apply(x, self.weight, self.bias)


class Derived(nn.Conv2d):
    """torch's own, under a name of the user's."""


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [(nn.Conv2d, ByHand), (ByHand, nn.Conv2d), (Derived, ByHand)])
def test_a_grouped_weights_gradient_that_was_added_up_otherwise_is_told(
    tmp_path: Any, kinds: Any
) -> None:
    for run, kind in zip("ab", kinds, strict=True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), kind(4, 4, 3, groups=2), nn.Tanh())
        with anchorlib.start(run, store=tmp_path) as session:
            session.watch(model, tensors="*")
            model(torch.randn(2, 3, 12, 12)).square().sum().backward()
            session.step()
    said = anchor("compare", "a", "b", "--store", str(tmp_path), "--replay", "--json")
    origins = {one["name"]: one["replay"] for one in json.loads(said.out)["origins"]}
    by_hand, torchs = ("b", "a") if kinds[1] is ByHand else ("a", "b")
    assert origins["1.weight"][by_hand] == ["sequential, images first"]
    assert "torch's kernel" in origins["1.weight"][torchs]
    assert origins["1.weight"]["nearer"] in {"a", "b"}


class EvenByHand(nn.Conv2d):
    """A convolution that pads one end more, and adds its terms up one after another."""

    def forward(self, x: Tensor) -> Tensor:
        padded = functional.pad(x, (1, 2, 1, 2))
        patches = functional.unfold(padded, 4).unsqueeze(1)
        weight = self.weight.flatten(1)[:, :, None]
        total = patches[:, :, 0] * weight[:, 0]
        for at in range(1, weight.shape[1]):
            total = total + patches[:, :, at] * weight[:, at]
        return total.unflatten(-1, x.shape[2:]) + self.bias[:, None, None]


@pytest.mark.slow
@EVEN
def test_a_convolution_that_pads_one_end_more_is_replayed(tmp_path: Any) -> None:
    for run, kind in (("a", nn.Conv2d), ("b", EvenByHand)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), kind(4, 4, 4, padding="same"), nn.Tanh())
        with anchorlib.start(run, store=tmp_path) as session:
            session.watch(model, tensors="*")
            model(torch.linspace(-1, 1, 2 * 3 * 12 * 12).reshape(2, 3, 12, 12)).sum().backward()
            session.step()
    (told,) = (
        one
        for one in anchorlib.compare("a", "b", store=tmp_path, replay=True).origins
        if (one.place.name, one.place.kind) == ("1", "value")
    )
    assert told.replay is not None, told.why
    assert "torch's kernel" in told.replay.a
    assert "sequential, channels first" in told.replay.b
