"""Faults in runs that hold what a watched model records by default: no inputs, no parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from anchorlib.diagnosis.comparison import Comparison

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


def compared(store: Any, *, evaluated: bool = False, **changed: bool) -> Comparison:
    for run, changes in (("a", {}), ("b", changed)):
        torch.manual_seed(0)
        model = Attention(**changes)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        tokens = torch.rand(4, 64, generator=torch.Generator().manual_seed(1)).argsort(1)
        with anchorlib.start(run, store=store, recorder="thread") as session:
            session.watch(model, optimizer=optimizer)
            if evaluated:
                with torch.no_grad():
                    model.eval()(tokens)
                model.train()
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
