"""What noise runs excuse at an origin, whose inputs are equal, and what no size excuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anchorlib
from anchorlib.diagnosis.investigation import compare_tables
from anchorlib.diagnosis.pairing.join import align
from anchorlib.record import Edges, Parent
from tests.anchorlib.diagnosis.tables import table
from tests.anchorlib.store.records import record

SIZE = 64
SIGNS = np.where(np.arange(SIZE) % 2, 1.0, -1.0)
TOLD = Edges("y", "train", 0, 0, (SIZE,), parents=(Parent("x"),), ops=("Exp",), inputs=((-1,),))


def run(name: str, off: Any = 0.0, *, moved: float | None = 0.0, perturbed: str = "") -> Any:
    """A record whose elements are so far from one, made of an input that is so far moved.

    moved: None where the input was not recorded.
    """
    rows = [
        record(tensor, 0, (1 + size * np.ones(SIZE)).astype("<f4"), order=n, kind="value")
        for n, (tensor, size) in enumerate((("x", moved), ("y", off)))
        if size is not None
    ]
    header = {0: {"perturbed": perturbed}} if perturbed else {}
    return replace(table(rows, run=name, edges={0: [TOLD]}), header=header)


def cls(off: Any, noise: Any) -> str:
    found = compare_tables(align(run("a"), run("b", off)), [noise])
    (one,) = found.origins
    return str(one.cls)


def test_a_multiple_is_not_what_noise_makes():
    noise = run("noise", 1e-5 * SIGNS, moved=5e-7)
    assert cls(2e-5 * SIGNS, noise) == "rounding"
    assert cls(2e-5, noise) == "not_rounding"


@pytest.mark.parametrize(
    ("perturbed", "wanted"),
    [("", "rounding"), ("1:float32", "rounding"), ("1:bfloat16", "not_rounding")],
)
def test_parameters_that_were_moved_far_excuse_no_operation_that_computes_finer(perturbed, wanted):
    """168 eps of float32 at equal inputs: inputs that move by an eps of bfloat16 move all more."""
    size = 1e-2 if perturbed.endswith("bfloat16") else 1e-5
    noise = run("noise", size * SIGNS, moved=None, perturbed=perturbed)
    assert cls(2e-5 * SIGNS, noise) == wanted


@pytest.mark.parametrize(("moved", "wanted"), [(5e-7, "rounding"), (1e-5, "not_rounding")])
def test_noise_excuses_what_the_operation_magnifies_and_not_what_came_in(moved, wanted):
    """The noise runs are 84 eps apart there: of inputs that are 4 or as many eps apart."""
    assert cls(2e-5 * SIGNS, run("noise", 1e-5 * SIGNS, moved=moved)) == wanted


class OtherTanh(nn.Module):
    """The same function by another formula."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1 - 2 / (torch.exp(2 * x) + 1)


def trained(folder: Any, name: str, activation: nn.Module) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), activation, nn.Linear(64, 8)).bfloat16()
    with anchorlib.start(name, store=folder, recorder="thread") as session:
        session.watch(model, tensors="*")
        model(torch.randn(64, 16).bfloat16()).float().pow(2).mean().backward()


def test_a_module_with_another_setting_is_no_rounding_however_little_it_changes(tmp_path):
    """GELU by tanh is a seventh of an eps of bfloat16 from GELU by erf."""
    trained(tmp_path, "a", nn.GELU())
    trained(tmp_path, "b", nn.GELU(approximate="tanh"))
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.origins[0].measure.error_eps < 1
    assert (found.origins[0].place.name, found.origins[0].cls) == ("1", "not_rounding")
    assert found.verdict == "unexpected"


def test_a_module_of_another_class_may_compute_the_same(tmp_path):
    trained(tmp_path, "a", nn.Tanh())
    trained(tmp_path, "b", OtherTanh())
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert {one.cls for one in found.origins} <= {"rounding"}
    assert found.verdict in ("suspect", "identical")
