"""Errors of losses, attention and convolutions are those that exact arithmetic finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch.nn import functional

from anchorlib.formulas import (
    Attention,
    Elements,
    Function,
    Strides,
    attention,
    convolution,
    cross_entropy,
    cross_entropy_backward,
    fit,
    log_softmax,
    log_softmax_backward,
    mse_loss,
    mse_loss_backward,
    patches,
)

Array = np.ndarray[Any, Any]
Case = tuple[Function, Sequence[Array], Array, Callable[..., Sequence[Any]]]
ROWS, CLASSES = 6, 5
ONE = np.ones(1, np.float32)


def random(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X, T, G = random(0, ROWS, CLASSES), random(1, ROWS, CLASSES), random(2, ROWS, CLASSES)
WANTED = np.arange(ROWS) % CLASSES
HOT = np.eye(CLASSES, dtype=np.float32)[WANTED]


def logs(row: Any) -> list[Any]:
    total = mpmath.log(mpmath.fsum(mpmath.exp(one) for one in row))
    return [one - total for one in row]


def by_rows(function: Callable[..., Sequence[Any]], *arrays: Array) -> list[Any]:
    exact = [[[mpmath.mpf(float(one)) for one in row] for row in array] for array in arrays]
    return [value for rows in zip(*exact, strict=True) for value in function(*rows)]


def attended(q: Array, k: Array, v: Array) -> list[Any]:
    keys, found = k.astype(object), []
    for row in q:
        scores = [
            mpmath.fsum(
                mpmath.mpf(float(a)) * mpmath.mpf(float(b)) for a, b in zip(row, one, strict=True)
            )
            / mpmath.sqrt(len(row))
            for one in keys
        ]
        weights = [mpmath.exp(one) for one in logs(scores)]
        found += [
            mpmath.fsum(w * mpmath.mpf(float(one)) for w, one in zip(weights, column, strict=True))
            for column in v.T
        ]
    return found


def convolved(left: Array, right: Array) -> list[Any]:
    return [
        mpmath.fsum(
            mpmath.mpf(float(a)) * mpmath.mpf(float(b)) for a, b in zip(row, column, strict=True)
        )
        for row in left
        for column in right.T
    ]


def tensors(*arrays: Array) -> list[torch.Tensor]:
    return [torch.from_numpy(one.copy()) for one in arrays]


def cases() -> dict[str, Case]:
    x, t, g = tensors(X, T, G)
    wanted = torch.from_numpy(WANTED)
    leaf, logits = x.clone().requires_grad_(), x.clone().requires_grad_()
    functional.mse_loss(leaf, t).backward()
    functional.cross_entropy(logits, wanted).backward()
    y = functional.log_softmax(x, -1)
    q, k, v = (random(seed, 4, 8) for seed in (3, 4, 5))
    image, weight = random(6, 1, 2, 5, 5), random(7, 3, 2, 3, 3)
    how, places = Strides((2, 2), (1, 1), (1, 1)), np.arange(9)
    cut, flat = patches(image, (3, 3), how, places)[0], weight.reshape(3, -1).T
    some = Elements(np.arange(1), places, np.arange(3))
    out = functional.conv2d(*tensors(image, weight), stride=2, padding=1)
    n = X.size
    return {
        "mse_loss": (
            mse_loss("mean"),
            [X.reshape(-1), T.reshape(-1)],
            functional.mse_loss(x, t).numpy().reshape(1),
            lambda: [
                mpmath.fsum(
                    by_rows(lambda a, b: [(p - r) ** 2 for p, r in zip(a, b, strict=True)], X, T)
                )
                / n
            ],
        ),
        "mse_loss_backward": (
            mse_loss_backward("mean"),
            [ONE, X.reshape(-1), T.reshape(-1)],
            leaf.grad.numpy().reshape(-1),  # type: ignore[union-attr]
            lambda: by_rows(
                lambda a, b: [2 * (p - r) / n for p, r in zip(a, b, strict=True)], X, T
            ),
        ),
        "log_softmax": (log_softmax(), [X], y.numpy(), lambda: by_rows(logs, X)),
        "log_softmax_backward": (
            log_softmax_backward(),
            [G, y.numpy()],
            torch.ops.aten._log_softmax_backward_data(g, y, -1, torch.float32).numpy(),
            lambda: by_rows(
                lambda a, b: [
                    p - mpmath.exp(r) * mpmath.fsum(a) for p, r in zip(a, b, strict=True)
                ],
                G,
                y.numpy(),
            ),
        ),
        "cross_entropy": (
            cross_entropy(),
            [X, HOT],
            functional.cross_entropy(x, wanted).numpy().reshape(1),
            lambda: [-mpmath.fsum(by_rows(lambda a, b: [logs(a)[b.index(1)]], X, HOT)) / ROWS],
        ),
        "cross_entropy_backward": (
            cross_entropy_backward(),
            [ONE, X, HOT],
            logits.grad.numpy(),  # type: ignore[union-attr]
            lambda: by_rows(
                lambda a, b: [(mpmath.exp(p) - r) / ROWS for p, r in zip(logs(a), b, strict=True)],
                X,
                HOT,
            ),
        ),
        "attention": (
            attention(Attention()),
            [q, k, v],
            functional.scaled_dot_product_attention(*(one[None, None] for one in tensors(q, k, v)))[
                0, 0
            ].numpy(),
            lambda: attended(q, k, v),
        ),
        "convolution": (
            convolution(some, 9, how),
            [cut[None], flat[None], image, weight, np.empty(0, np.float32)],
            np.moveaxis(out.numpy(), 1, -1).reshape(1, -1, 3),
            lambda: convolved(cut, flat),
        ),
    }


CASES = cases()


@pytest.mark.parametrize("name", CASES)
def test_errors_are_those_that_exact_arithmetic_finds(name: str) -> None:
    function, inputs, output, exact = CASES[name]
    with mpmath.workdps(40):
        truth = exact()
        apart = [mpmath.mpf(float(a)) - b for a, b in zip(output.reshape(-1), truth, strict=True)]
        lengths = [mpmath.sqrt(mpmath.fsum(x * x for x in one)) for one in (apart, truth)]
        error = float(lengths[0] / lengths[1]) * 2.0**23
    found = fit([function], inputs, output, "float32")
    assert found.error == pytest.approx(error, rel=1e-6)
    assert error < 4


@pytest.mark.parametrize("name", ["mse_loss_backward", "log_softmax", "attention", "convolution"])
def test_torchs_kernel_is_among_what_makes_its_bits(name: str) -> None:
    function, inputs, output, _ = CASES[name]
    if name == "attention":
        inputs, output = [one[None, None] for one in inputs], output[None, None]
    found = fit([function], inputs, output, "float32")
    assert any(one.startswith("torch's") for one in found.formulas)


def test_a_causal_attention_is_told_from_one_of_all_places() -> None:
    q, k, v = (random(seed, 1, 2, 16, 8) for seed in (3, 4, 5))
    one, two, three = tensors(q, k, v)
    output = functional.scaled_dot_product_attention(one, two, three, is_causal=True).numpy()
    functions = [
        attention(Attention(order, causal))
        for causal in (False, True)
        for order in ((0, 1, 2), (1, 0, 2))
    ]
    assert fit(functions, [q, k, v], output, "float32").function == "attention, causal"
    found = fit(functions, [k, q, v], output, "float32")
    assert found.function == "attention, causal, given as kqv"
