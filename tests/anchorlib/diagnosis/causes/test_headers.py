"""What modules say of themselves, and which of it is part of what they compute."""

from __future__ import annotations

import pytest

from anchorlib.diagnosis.causes import other_values


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("LayerNorm((8,), eps=1e-05)", "LayerNorm((8,), eps=0.001)"),
        ("GELU(approximate='none')", "GELU(approximate='tanh')"),
        ("Norm(eps=1e-06, chunk=4)", "Norm(eps=1e-05, chunk=4)"),
    ],
)
def test_other_values_in_a_formula_are_other_mathematics(a: str, b: str) -> None:
    assert other_values(a, b)
    assert not other_values(a, a)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("Conv(way='torch')", "Conv(way='unfold')"),
        ("Attention(chunk=64)", "Attention(chunk=128)"),
        ("LayerNorm((8,), eps=1e-05)", "Norm(eps=0.001)"),
        ("ReLU()", "ReLU(inplace=True)"),
        ("ReLU()", None),
    ],
)
def test_how_a_module_computes_may_change_no_mathematics(a: str, b: str | None) -> None:
    assert not other_values(a, b)
