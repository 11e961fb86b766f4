"""Faults in runs that hold what a watched model records by default: no inputs, no parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from anchorlib.diagnosis.comparison import Comparison
from anchorlib.diagnosis.investigation import compare_tables
from anchorlib.diagnosis.pairing import table_of
from anchorlib.diagnosis.pairing.join import align

Tensor = torch.Tensor


class Attention(nn.Module):
    def __init__(self, *, causal: bool = True, low: bool = False) -> None:
        super().__init__()
        self.causal, self.low = causal, low
        self.embed, self.qkv = nn.Embedding(64, 16), nn.Linear(16, 48, bias=False)
        self.proj, self.head = nn.Linear(16, 16, bias=False), nn.Linear(16, 64)

    def forward(self, tokens: Tensor) -> Tensor:
        q, k, v = (part.unsqueeze(1) for part in self.qkv(self.embed(tokens)).split(16, dim=2))
        h = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal).squeeze(1)
        h = self.proj(h).tanh()
        return self.head(h.half().float() if self.low else h)


def compared(
    store: Any,
    *,
    evaluated: bool = False,
    modes: tuple[bool, bool] = (False, False),
    betas: tuple[float, float] = (0.9, 0.999),
    **changed: bool,
) -> Comparison:
    """Two runs; the second has the changes and betas. modes: `training` of each when evaluated."""
    runs = (("a", modes[0], (0.9, 0.999), {}), ("b", modes[1], betas, changed))
    for run, training, moments, changes in runs:
        torch.manual_seed(0)
        model = Attention(**changes)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, betas=moments)
        tokens = torch.rand(4, 64, generator=torch.Generator().manual_seed(1)).argsort(1)
        with anchorlib.start(run, store=store, recorder="thread") as session:
            session.watch(model, optimizer=optimizer)
            if evaluated:
                with torch.no_grad():
                    model.train(training)(tokens)
                model.train()
            for _ in range(3):
                optimizer.zero_grad()
                functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
                optimizer.step()
    return anchorlib.compare("a", "b", store=store)


@pytest.mark.parametrize("evaluated", [False, True])
def test_a_mask_that_is_gone_is_a_fault_though_nothing_says_what_the_model_was_given(
    tmp_path, evaluated
):
    """An evaluation comes first in many programs, and states no operation; the training does."""
    found = compared(tmp_path, causal=False, evaluated=evaluated)
    assert found.verdict == "unexpected"
    (origin,) = found.origins
    assert (origin.place.name, origin.place.phase) == ("proj", "train")
    assert "is_causal True | False" in found.sentence


@pytest.fixture
def high_precision():
    """What programs for GPUs ask of matrix products, wherever they run."""
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision("highest")


@pytest.mark.usefixtures("high_precision")
def test_a_cast_to_half_is_a_fault_on_a_cpu_though_products_on_gpus_may_be_less_precise(tmp_path):
    found = compared(tmp_path, low=True)
    assert (found.verdict, found.origins[0].cls) == ("unexpected", "not_rounding")
    assert found.origins[0].place.name == "head"


@pytest.mark.usefixtures("high_precision")
@pytest.mark.parametrize(("devices", "cls"), [("cpu", "not_rounding"), ("cpu|cuda", "rounding")])
def test_a_gpu_of_the_machine_says_nothing_of_tensors_that_lie_elsewhere(tmp_path, devices, cls):
    compared(tmp_path, low=True)
    runs = [table_of(anchorlib.open_run(run, tmp_path)) for run in "ab"]
    told = {"torch.device": "NVIDIA H200", "tensors.device": devices}
    for table in runs:
        table.header[0].update(told)
    found = compare_tables(align(*runs))
    assert found.origins[0].cls == cls, found


def test_other_betas_are_named_where_an_update_first_shows_in_what_is_computed_from_it(tmp_path):
    found = compared(tmp_path, betas=(0.8, 0.999))
    assert (found.verdict, found.first.place.step) == ("unexpected", 2)
    assert "AdamW betas [0.9, 0.999] | [0.8, 0.999]" in found.sentence


@pytest.mark.parametrize(("modes", "said"), [((False, True), True), ((True, True), False)])
def test_a_missing_eval_is_asked_about(tmp_path, modes, said):
    found = compared(tmp_path, evaluated=True, modes=modes)
    assert found.verdict == "identical"
    assert any("b looks on in training mode" in note for note in found.notes) == said


def test_a_module_that_took_anothers_place_explains_what_a_relu_cannot_round(tmp_path):
    for run, activation in (("a", nn.ReLU()), ("b", nn.GELU())):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 16), activation)
        with anchorlib.start(run, store=tmp_path, recorder="thread") as session:
            session.watch(model)
            model(torch.ones(4, 16)).sum().backward()
    sentence = anchorlib.compare("a", "b", store=tmp_path).sentence
    assert "B has Gelu in place of Relu" in sentence
    assert "cannot round" not in sentence
