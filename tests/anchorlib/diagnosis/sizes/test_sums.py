"""Sums in float64 are those that torch computes, and rounding stays inside what they allow."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from anchorlib.diagnosis.sizes import convolutions, geometry_of, plain_sums, products, shifted
from anchorlib.diagnosis.sizes.sums import CERTAIN
from tests.seeds import examples

EPS = 2.0**-23


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape)


def close(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and np.allclose(one, other, rtol=1e-10, atol=1e-10)


@settings(max_examples=examples(25))
@given(
    axes=st.integers(1, 2),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    groups=st.integers(1, 2),
)
def test_a_convolution_is_the_one_that_torch_computes(
    axes, kernel, stride, padding, dilation, groups
):
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    module = (torch.nn.Conv1d, torch.nn.Conv2d)[axes - 1](
        2 * groups, 4, kernel, bias=False, dtype=torch.float64, **options
    )
    x = random(3, 2 * groups, *[7] * axes)
    y = module(torch.from_numpy(x))
    assume(y.numel())
    gradient = random(*y.shape, seed=1)
    y.backward(torch.from_numpy(gradient))
    told = geometry_of(f"Conv({module.extra_repr()})", axes)
    (task,) = convolutions(x, gradient, tuple(module.weight.shape), told)
    assert close(task.compute().total, module.weight.grad.numpy())
    if dilation == 1 and padding < kernel:
        tried = convolutions(x, gradient, tuple(module.weight.shape), None)
        assert any(close(task.compute().total, module.weight.grad.numpy()) for task in tried)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "Linear(in_features=3)",
        "Conv2d(3, 8, stride=(1, 1), padding=same)",
        "Conv2d(3, 8, stride=(1, 1), padding=(1, 1), padding_mode=reflect)",
        "Conv1d(3, 8, stride=(1,))",
    ],
)
def test_a_text_that_does_not_tell_a_geometry_tells_none(text):
    assert geometry_of(text, 2) is None


@pytest.mark.parametrize(
    ("formula", "p", "q"),
    [
        ("nk,km->nm", (3, 4), (4, 5)),
        ("bnk,mk->bnm", (2, 3, 4), (5, 4)),
        ("bnk,km->bnm", (2, 3, 4), (4, 5)),
        ("bhnk,bhmk->bhnm", (2, 3, 4, 5), (2, 3, 6, 5)),
        ("bkn,bkm->bnm", (2, 4, 3), (2, 4, 5)),
        ("nbo,nbi->oi", (2, 3, 4), (2, 3, 5)),
    ],
)
def test_products_are_those_of_linear_layers_and_attention(formula, p, q):
    p, q = random(*p), random(*q, seed=1)
    wanted = np.einsum(formula, p, q)
    found = [task.compute() for task in products(p, q, wanted.shape)]
    assert any(close(one.total, wanted) for one in found)
    terms = {one.terms: one.spread for one in found if close(one.total, wanted)}
    spread = math.sqrt(np.einsum(formula, p**2, q**2).sum())
    assert list(terms.values()) == [pytest.approx(spread)]


def test_a_bias_is_one_more_term():
    p, q, bias = random(3, 4), random(4, 5), random(5)
    (task,) = products(p, q, (3, 5))
    found = shifted(task, bias).compute()
    assert close(found.total, p @ q + bias)
    squares = (p**2) @ (q**2) + bias**2
    assert (found.terms, found.spread) == (5, pytest.approx(math.sqrt(squares.sum())))


@pytest.mark.parametrize(("shape", "axes"), [((4, 3, 5, 6), (0, 2, 3)), ((4, 5, 3), (0, 1))])
def test_a_plain_sum_is_over_all_axes_but_one(shape, axes):
    gradient = random(*shape)
    found = [task.compute() for task in plain_sums(gradient, (3,))]
    assert [close(one.total, gradient.sum(axis=axes)) for one in found] == [True]
    assert found[0].terms == gradient.size // 3


@given(st.integers(5, 3000), st.integers(0, 1000), st.floats(0, 1))
def test_a_float32_sum_in_any_order_stays_inside_what_rounding_may_do(terms, seed, cancels):
    """From terms of either sign to terms that cancel altogether, one after the other."""
    draw = np.random.default_rng(seed)
    p, q = (draw.standard_normal((terms, 4)).astype("<f4") for _ in range(2))
    half = terms // 2
    q[half : 2 * half] -= np.float32(cancels) * (q[half : 2 * half] + q[:half])
    p[half : 2 * half] = p[:half]
    *_, task = products(p.astype("f8"), q.astype("f8"), (4, 4))
    truth = task.compute()
    products_32 = p[:, :, None] * q[:, None, :]
    order = draw.permutation(terms)
    run = np.add.accumulate(products_32[order], axis=0)[-1]
    assert np.linalg.norm(run - truth.total) <= truth.rounding(EPS)


@pytest.mark.parametrize("terms", [256, 2048, 8192])
def test_a_sum_of_one_sign_that_is_added_up_term_by_term_rounds_as_its_total(terms):
    gradient = np.abs(random(terms, 16)).astype(np.float32)
    one_by_one = np.zeros(16, np.float32)
    for row in gradient:
        one_by_one += row
    (task,) = plain_sums(gradient.astype(np.float64), (16,))
    told = task.compute()
    error = np.linalg.norm(one_by_one - told.total)
    assert error <= told.rounding(EPS)
    assert told.rounding(EPS) <= CERTAIN * 0.51 * EPS * (math.sqrt(terms) + 1) * np.linalg.norm(
        told.total
    )


def test_what_low_precision_takes_from_operands_is_no_more_for_additions_one_by_one():
    x, gradient = random(2, 1, 9), random(2, 1, 9, seed=1)
    lies = geometry_of("Conv1d(1, 1, kernel_size=(1,), stride=(1,))", 1)
    (task,) = convolutions(x, gradient, (1, 1, 1), lies)
    told, low = task.compute(), 2.0**-7
    size = math.sqrt(float(((x * gradient) ** 2).sum()))
    rounds = low * (size + abs(told.total.item())) + CERTAIN * EPS * math.sqrt(18) * size
    assert told.rounding(low) == pytest.approx(0.5 * rounds, rel=1e-12)


@pytest.mark.parametrize("terms", [512, 4096])
def test_terms_of_one_sign_beside_each_other_round_as_the_sums_so_far(terms):
    """A bias before a batch norm: sample by sample of one sign, and all of them cancel."""
    gradient = np.abs(random(terms, 16))
    gradient[terms // 2 :] *= -1
    gradient -= gradient.mean(axis=0)
    gradient = gradient.astype(np.float32)
    one_by_one = np.zeros(16, np.float32)
    for row in gradient:
        one_by_one += row
    (task,) = plain_sums(gradient.astype(np.float64), (16,))
    told = task.compute()
    error = np.linalg.norm(one_by_one - told.total)
    assert error <= told.rounding(EPS) <= 50 * error
    in_any_order = 0.5 * EPS * math.sqrt(terms) * np.linalg.norm(gradient.astype(np.float64))
    assert error > in_any_order, "the terms' sizes alone do not explain it"


ALIKE = 12
"""Terms beside each other that have one sign, as over the background of an image."""


def split_sums(terms: np.ndarray, threads: int) -> np.ndarray:
    """The sum of each row in float32, term after term in each thread, then of the threads."""
    parts = np.split(terms, threads, axis=1)
    return np.add.accumulate([np.add.accumulate(p, axis=1)[:, -1] for p in parts])[-1]


@pytest.mark.slow
@pytest.mark.parametrize("terms", [768, pytest.param(6144, marks=pytest.mark.wide)])
def test_a_convolutions_sum_by_any_threads_stays_inside_its_bound_and_a_fault_does_not(terms):
    """Behind a batch norm, of one input channel: terms alike for a while that cancel altogether."""
    sums, draw = 4000, np.random.default_rng(terms)
    signs = draw.choice([-1.0, 1.0], (sums, terms // ALIKE, 1))
    sizes = np.abs(draw.standard_normal((sums, terms // ALIKE, ALIKE)))
    gradients = (signs * sizes).reshape(sums, terms)
    gradients -= gradients.mean(axis=1, keepdims=True)
    gradients = gradients.astype(np.float32)
    lies = geometry_of("Conv1d(1, 1, kernel_size=(1,), stride=(1,))", 1)
    totals, bounds = np.empty(sums), np.empty(sums)
    for number, row in enumerate(gradients.astype(np.float64)):
        (task,) = convolutions(np.ones((1, 1, terms)), row.reshape(1, 1, -1), (1, 1, 1), lies)
        told = task.compute()
        totals[number], bounds[number] = told.total.item(), told.rounding(EPS)
    errors = np.array([np.abs(split_sums(gradients, by) - totals) for by in (1, 2)])
    assert (errors <= bounds).mean() >= 0.9999
    assert (errors / bounds).max() > 0.5, "the bound is twice what it has to be"
    deviation = 0.5 * EPS * math.sqrt(terms) * np.linalg.norm(gradients.astype(np.float64), axis=1)
    fault = 10 * 4 * deviation  # ten bounds
    for by in (1, 2):
        assert (np.abs(split_sums(gradients, by) + fault - totals) > bounds).all()
