"""By how much terms cancel in a gradient, as the records of one step show it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import anchorlib
from anchorlib.diagnosis.judgement.origins.cancelling import cancelling
from anchorlib.diagnosis.judgement.origins.first_step import FirstStep
from anchorlib.diagnosis.pairing import table_of
from anchorlib.diagnosis.pairing.join import align
from anchorlib.diagnosis.sizes.measurement import measure


class Net(nn.Module):
    """A convolution whose norm takes the mean off, and a layer behind it."""

    def __init__(self, between: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.between, self.head = between, nn.Linear(4 * 36, 5)

    def forward(self, x):
        h = self.norm(self.conv(x)).relu()
        return self.head(self.between(h.flatten(1)))


def trained(store, run: str, *, background: float, between: nn.Module | None = None) -> None:
    torch.manual_seed(0)
    model = Net(between or nn.Identity())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        x = torch.randn(16, 1, 8, 8) + background
        (model(x).square().mean() * (1.001 if run == "b" else 1.0)).backward()
        optimizer.step()


def factors(store, **how) -> dict[str, float]:
    """The factor of each parameter's gradient as the optimizer takes it."""
    for run in "ab":
        trained(store, run, **how)
    alignment = align(*(table_of(anchorlib.open_run(run, store)) for run in "ab"))
    first = FirstStep(alignment, measure(alignment, alignment.differing), 0)
    a = alignment.a
    rows = np.array(
        [row for row in range(len(a.tensor)) if a.tensors[a.tensor[row]].kind == "grad"]
    )
    names = [a.tensors[number].name for number in a.tensor[rows].tolist()]
    return dict(zip(names, cancelling(first, rows).tolist(), strict=True))


def test_a_background_that_a_norm_takes_off_cancels_in_a_weight_and_a_bias(tmp_path):
    found = factors(tmp_path, background=100.0)
    assert found["conv.weight"] > 5
    assert found["conv.bias"] > 1e3
    assert found["head.weight"] < 2


def test_terms_of_both_signs_add_up_to_what_random_terms_do(tmp_path):
    assert factors(tmp_path, background=0.0)["conv.weight"] < 2


@pytest.mark.parametrize("between", [nn.Softplus(), nn.Tanh()], ids=lambda one: type(one).__name__)
def test_terms_are_known_where_a_layer_reads_one_recorded_value(tmp_path, between):
    assert factors(tmp_path, background=0.0, between=between)["head.weight"] >= 1


class Temperature(nn.Module):
    """Scores over a learnt temperature, whose logarithm is the parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(0.5))

    def forward(self, scores):
        return scores * self.log.exp()


def test_a_learnt_temperature_cancels_as_far_as_scores_of_either_sign_do(tmp_path):
    found = factors(tmp_path, background=0.0, between=Temperature())
    a = anchorlib.open_run("a", tmp_path)
    value, gradient = (
        np.asarray(a.series("between", kind=kind).values()[0], float) for kind in ("value", "grad")
    )
    terms = np.linalg.norm(value) * np.linalg.norm(gradient)
    assert found["between.log"] == pytest.approx(terms / abs((value * gradient).sum()), rel=1e-3)
