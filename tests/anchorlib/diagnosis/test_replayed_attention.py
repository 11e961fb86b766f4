"""Attention and its gradients computed again: masks, scales, causal, grouped queries."""

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
from anchorlib.diagnosis.recomputation.attention import attending
from anchorlib.diagnosis.recomputation.operands import Operands, StoredOperand
from anchorlib.formulas import Fit, fit
from tests.cli.made import anchor
from tests.seeds import examples

Tensor = torch.Tensor


@st.composite
def calls(draw: st.DrawFn) -> tuple[list[Tensor], dict[str, Any]]:
    """q, k and v, and how attention is to be called on them."""
    batch, heads, groups = draw(st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 2)))
    rows, columns, size = draw(st.tuples(st.integers(1, 9), st.integers(2, 9), st.integers(1, 8)))
    torch.manual_seed(draw(st.integers(0, 99)))
    q = torch.randn(batch, heads * groups, rows, size)
    k, v = torch.randn(2, batch, heads, columns, size)
    how: dict[str, Any] = {"scale": draw(st.sampled_from([None, 0.25])), "enable_gqa": groups > 1}
    kind = draw(st.sampled_from(["none", "causal", "boolean", "added"]))
    mask = torch.randn((*draw(st.sampled_from([(), (batch, 1)])), rows, columns))
    if kind == "causal":
        how["is_causal"] = True
    elif kind != "none":
        how["attn_mask"] = mask > -0.5 if kind == "boolean" else mask
    return [q, k, v], how


def operand(name: str, kind: str, x: Tensor) -> StoredOperand:
    values = x.detach().numpy()
    return StoredOperand(
        name, kind, values.shape, str(x.dtype).removeprefix("torch."), lambda _: values
    )


def told(
    given: list[Tensor], how: dict[str, Any], precision: torch.dtype, *, learned: bool = False
) -> dict[str, Fit]:
    """The fits of the output and of each gradient, which were computed in `precision`.

    learned: whether the mask has a gradient, so that autograd knows it as a fourth input.
    """
    wide = [one.detach().clone().to(precision).requires_grad_() for one in given]
    mask = how.get("attn_mask")
    named = (
        how if mask is None or mask.dtype is torch.bool else how | {"attn_mask": mask.to(precision)}
    )
    if learned:
        named["attn_mask"] = named["attn_mask"].clone().requires_grad_()
    out = functional.scaled_dot_product_attention(*wide, **named)
    g = torch.randn(out.shape)
    out.backward(g.to(precision))
    inputs = tuple(operand(name, "value", one) for name, one in zip("qkv", given, strict=True))
    arrived = operand("out", "grad", g)
    masks = [] if mask is None else [operand("mask", "value", mask)]
    inputs = (masks[0], *inputs) if learned else inputs
    beside = lambda fits: [one for one in masks if fits(one.shape, one.dtype)]  # noqa: E731
    every = {"out": Operands(operand("out", "value", out.float()), None, None, inputs, (), beside)}
    leaves = dict(zip("qkv", wide, strict=True))
    if learned:
        leaves["mask"] = named["attn_mask"]
    for name, one in leaves.items():
        own = operand(name, "grad", one.grad.float())  # type: ignore[union-attr]
        every[name] = Operands(own, arrived, None, inputs, (), beside)
    texts = [f"scale={how['scale']}, dropout_p=0.0"]
    found = {}
    for name, one in every.items():
        if abs(one.own.read("a")).max() < 1e-6:  # of a softmax over one place: zero tells nothing
            continue
        recipe = attending(one, texts if how["scale"] else [])
        assert recipe is not None
        own = recipe.output(one.own.read("a"))
        found[name] = fit(recipe.functions, recipe.inputs("a"), own, "float32")
    return found


@pytest.mark.slow
@settings(max_examples=examples(30))
@given(case=calls())
def test_the_truth_is_what_float64_computes_and_torchs_kernel_gives_its_own_bits(
    case: tuple[list[Tensor], dict[str, Any]],
) -> None:
    for name, exact in told(*case, torch.float64).items():
        assert not exact.error > 0.5, f"{name} is a float64 value, rounded once"
    for name, own in told(*case, torch.float32).items():
        assert any(one.startswith("torch's") for one in own.formulas), name


@pytest.mark.slow
def test_a_mask_that_has_a_gradient_is_known_among_four_inputs() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, 9, 4)
    for mask in (torch.randn(9, 9), torch.randn(2, 1, 9, 9), torch.randn(2, 2, 9, 9)):
        how = {"scale": None, "attn_mask": mask, "enable_gqa": False}
        every = told([q, k, v], how, torch.float64, learned=True)
        assert every.keys() == {"out", "q", "k", "v", "mask"}
        for name, exact in every.items():
            assert not exact.error > 0.5, f"{name} is a float64 value, rounded once"
        for name, own in told([q, k, v], how, torch.float32, learned=True).items():
            assert any(one.startswith("torch's") for one in own.formulas), name


@pytest.mark.long
def test_the_gradient_of_a_mask_that_heads_share_is_computed_of_all_of_them_or_not_at_all() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 8, 96, 8)
    whole = {"scale": None, "attn_mask": torch.randn(1, 8, 96, 96), "enable_gqa": False}
    found = told([q, k, v], whole, torch.float32, learned=True)["mask"]
    assert found.elements == 7 * 96 * 96
    shared = whole | {"attn_mask": torch.randn(96, 96)}
    with pytest.raises(AssertionError, match="is not None"):
        told([q, k, v], shared, torch.float32, learned=True)


@pytest.mark.slow
def test_of_many_scores_the_first_heads_are_computed() -> None:
    torch.manual_seed(0)
    k, v = torch.randn(2, 2, 4, 96, 8)
    mask = torch.randn(2, 8, 96, 96) > -0.5
    how = {"scale": None, "attn_mask": mask, "enable_gqa": True}
    found = told([torch.randn(2, 8, 96, 8), k, v], how, torch.float32)
    elements = {name: one.elements for name, one in found.items()}
    assert elements == {"out": 6 * 96 * 8, "q": 6 * 96 * 8, "k": 3 * 96 * 8, "v": 3 * 96 * 8}
    for one in found.values():
        assert any(name.startswith("torch's") for name in one.formulas)


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class _ByHand(torch.autograd.Function):
    """Attention whose backward is the textbook's, in single steps."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v, mask)
        return functional.scaled_dot_product_attention(q, k, v, mask)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, mask = ctx.saved_tensors
        root = q.shape[-1] ** -0.5
        p = (q @ k.mT * root).masked_fill(~mask, -torch.inf).softmax(-1)
        slope = g @ v.mT
        s = p * (slope - (p * slope).sum(-1, keepdim=True))
        return s @ k * root, s.mT @ q * root, p.mT @ g, None


@pytest.mark.slow
@pytest.mark.parametrize("anchored", [True, False])
def test_gradients_of_masked_attention_are_replayed_where_the_mask_was_recorded(
    tmp_path: Any, anchored: bool
) -> None:
    given = {name: random(2, 2, 12, 8, seed=seed) for seed, name in enumerate("qkv")}
    mask = random(12, 12, seed=4) > -0.5
    sdpa = functional.scaled_dot_product_attention
    for run, function in (("a", sdpa), ("b", _ByHand.apply)):
        with anchorlib.start(run, store=tmp_path) as session:
            leaves = [one.clone().requires_grad_() for one in given.values()]
            held = [anchorlib.anchor(x, name) for x, name in zip(leaves, given, strict=True)]
            hidden = anchorlib.anchor(mask.clone(), "mask") if anchored else mask
            out = anchorlib.anchor(function(*held, hidden), "out")
            out.square().mean().backward()
            session.step()
    said = anchor("compare", "a", "b", "--store", str(tmp_path), "--replay", "--json")
    origins = {one["name"]: one for one in json.loads(said.out)["origins"]}
    assert origins
    assert origins.keys() <= set("qkv")
    for name, origin in origins.items():
        told = origin["replay"]
        if not anchored:
            assert told is None, "no function that was tried comes near"
            continue
        assert told["a"] == ["torch's scaled_dot_product_attention, backward"], name
        assert told["nearer"] in {"a", "b"}
        assert 0 < max(told["error_a"], told["error_b"]) < 4


class _MaskByHand(torch.autograd.Function):
    """Attention whose mask's gradient is the textbook's, in single steps."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v, mask)
        return functional.scaled_dot_product_attention(q, k, v, mask)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, ...]:
        given = [one.detach().requires_grad_() for one in ctx.saved_tensors]
        q, k, v, mask = given
        with torch.enable_grad():
            out = functional.scaled_dot_product_attention(*given)
        plain = torch.autograd.grad(out, given[:3], g)
        p = (q @ k.mT * q.shape[-1] ** -0.5 + mask).softmax(-1).detach()
        slope = g @ v.detach().mT
        s = p * (slope - (p * slope).sum(-1, keepdim=True))
        return *plain, s.sum_to_size(mask.shape)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(12, 12), (2, 2, 12, 12)])
def test_the_gradient_of_a_mask_is_replayed(tmp_path: Any, shape: tuple[int, ...]) -> None:
    given = {name: random(2, 2, 12, 8, seed=seed) for seed, name in enumerate("qkv")}
    given["mask"] = random(*shape, seed=4)
    sdpa = functional.scaled_dot_product_attention
    for run, function in (("a", sdpa), ("b", _MaskByHand.apply)):
        with anchorlib.start(run, store=tmp_path) as session:
            leaves = [one.clone().requires_grad_() for one in given.values()]
            held = [anchorlib.anchor(x, name) for x, name in zip(leaves, given, strict=True)]
            out = anchorlib.anchor(function(*held), "out")
            out.square().mean().backward()
            session.step()
    origins = anchorlib.compare("a", "b", store=tmp_path, replay=True).origins
    told = {one.place.name: one.replay for one in origins}["mask"]
    assert told is not None
    assert "torch's scaled_dot_product_attention, backward" in told.a
    assert told.nearer in {"a", "b"}
    assert 0 < max(told.error_a, told.error_b) < 4


class Packed(nn.MultiheadAttention):
    """Attention among the places of one input, whose weights are one tensor."""

    def __init__(self, *, weighs: bool) -> None:
        super().__init__(16, 2, batch_first=True)
        self.weighs = weighs

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x, x, need_weights=self.weighs)[0]


@pytest.mark.slow
def test_attention_whose_weight_is_packed_is_said_not_to_be_computed(tmp_path: Any) -> None:
    for run, weighs in (("a", False), ("b", True)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), Packed(weighs=weighs), nn.Linear(16, 4))
        with anchorlib.start(run, store=tmp_path) as session:
            session.watch(model, tensors="*")
            model(random(3, 24, 8, seed=1)).square().mean().backward()
            session.step()
    origin = anchorlib.compare("a", "b", store=tmp_path, replay=True).origins[0]
    assert origin.replay is None
    assert "not computed again: 1.in_proj_weight makes query, key and value in one" in origin.why
