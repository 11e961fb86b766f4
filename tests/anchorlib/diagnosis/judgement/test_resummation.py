"""Sums whose terms cancel are judged by their terms, and float64 says which run is nearer."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import numpy as np
import pytest

import anchorlib
from anchorlib.diagnosis.investigation import compare_tables
from anchorlib.diagnosis.judgement.rounding import resummation as judged
from anchorlib.diagnosis.pairing.join import align
from anchorlib.record import Edges, Parent
from tests.anchorlib.diagnosis.tables import table
from tests.anchorlib.store.records import record
from tests.warm import warm_python

Array = np.ndarray[Any, Any]
ROWS = 4096


def cancelling(*shape: int) -> tuple[Array, Array]:
    """What a layer was given and the gradient of what it made: nearly all of their sum cancels."""
    draw = np.random.default_rng(0)
    half = (shape[0] // 2, *shape[1:])
    x = np.concatenate([draw.standard_normal(half)] * 2)
    gradient = draw.standard_normal(half)
    off = 1e-2 * draw.standard_normal(half)
    return x.astype("<f4"), np.concatenate([gradient, off - gradient]).astype("<f4")


def one_by_one(x: Array, gradient: Array) -> Array:
    """A linear layer's weight gradient, added up sample by sample in float32."""
    found = np.zeros((gradient.shape[1], x.shape[1]), "<f4")
    for g, row in zip(gradient, x, strict=True):
        found += g[:, None] * row
    return found


def nearest(x: Array, gradient: Array) -> Array:
    return (gradient.astype("f8").T @ x.astype("f8")).astype("<f4")


def runs(weights: list[Array], x: Array, gradient: Array, *, kept: bool = True) -> Any:
    """Two runs of one linear layer, in which only the weight's gradient differs."""
    told = Edges(
        "y",
        "train",
        0,
        0,
        gradient.shape,
        parents=(Parent("w", None),),
        ops=("MmBackward0",),
        inputs=((0, -1),),
    )
    tables = []
    for name, weight in zip("ab", weights, strict=True):
        made = [
            record("input", 0, x, order=0, kind="value", values=kept),
            record("y", 0, gradient, order=1, kind="value"),
            record("y", 0, gradient, order=2),
            record("w", 0, weight, order=3, kind="pass_grad"),
        ]
        tables.append(table(made, run=name, edges={0: [told]}))
    return align(*tables)


def origin(*args: Any, **options: Any) -> Any:
    found = compare_tables(runs(*args, **options))
    (one,) = found.origins
    assert (one.place.name, one.place.kind) == ("w", "pass_grad")
    return one


def test_terms_that_cancel_may_round_by_many_eps_and_float64_says_who_is_nearer():
    x, gradient = cancelling(ROWS, 8)
    found = origin([one_by_one(x, gradient), nearest(x, gradient)], x, gradient)
    assert found.measure.error_eps > 100
    assert found.cls == "rounding"
    assert "sums of 4,096 terms round by" in found.why
    assert "B is nearer to float64: 0." in found.why


def test_what_is_further_off_than_its_terms_allow_is_no_rounding_and_is_told_by_float64():
    x, gradient = cancelling(ROWS, 8)
    right = nearest(x, gradient)
    found = origin([right * np.float32(1.01), right], x, gradient)
    assert found.cls == "not_rounding"
    assert "B is nearer to float64: 0." in found.why


@pytest.mark.parametrize(("factor", "cls"), [(1.0, "rounding"), (1.01, "not_rounding")])
def test_where_values_were_not_kept_norms_bound_the_terms(factor, cls):
    x, gradient = cancelling(ROWS, 8)
    weights = [one_by_one(x, gradient), nearest(x, gradient) * np.float32(factor)]
    found = origin(weights, x, gradient, kept=False)
    assert found.cls == cls
    assert "float64" not in found.why


def test_more_than_a_resummation_may_read_is_bounded_by_norms(monkeypatch):
    monkeypatch.setattr(judged, "MOST_ELEMENTS", 8)
    x, gradient = cancelling(ROWS, 8)
    found = origin([one_by_one(x, gradient), nearest(x, gradient)], x, gradient)
    assert found.cls == "rounding"
    assert "float64" not in found.why


def test_resummations_end_where_their_work_is_done(monkeypatch):
    monkeypatch.setattr(judged, "WORK", 0)
    x, gradient = cancelling(ROWS, 8)
    found = origin([one_by_one(x, gradient), nearest(x, gradient)], x, gradient)
    assert "float64" not in found.why


TRAINING = """
import sys, torch, anchorlib
from torch import nn
torch.set_num_threads(int(sys.argv[2]))
torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
    nn.Conv2d(8, 16, 3, padding=1, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Flatten(), nn.Linear(16 * 16 * 16, 10),
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
x, y = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
with anchorlib.start(sys.argv[1], store=sys.argv[3]) as session:
    session.watch(net, tensors="*", optimizer=optimizer)
    for _ in range(2):
        loss = nn.functional.cross_entropy(net(x), y)
        anchorlib.anchor(loss, "loss")
        loss.backward()
        if len(sys.argv) > 4:
            net[0].weight.grad.mul_(1.01)
        optimizer.step()
        optimizer.zero_grad()
"""


def trained(folder: Any, run: str, threads: int, *options: str, perturb: str = "") -> None:
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    if perturb:
        environment["ANCHOR_PERTURB"] = perturb
    command = [warm_python(), "-c", TRAINING, run, str(threads), str(folder), *options]
    subprocess.run(command, check=True, env=environment, capture_output=True)


@pytest.mark.long
def test_a_convolution_before_batch_norm_by_two_threads_for_one_only_rounds(tmp_path):
    """Its weight's gradient is 8 to 30 eps apart: 32,768 terms that cancel."""
    trained(tmp_path, "a", 1)
    trained(tmp_path, "b", 2)
    trained(tmp_path, "wrong", 2, "wrong")
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert {one.cls for one in found.origins} <= {"rounding"}
    assert found.verdict in ("suspect", "identical")
    for number in (1, 2):
        trained(tmp_path, "a", 1, perturb=f"{number}:float32")
    noise = ["a-noise1", "a-noise2"]
    assert anchorlib.compare("a", "b", store=tmp_path, noise=noise).verdict != "unexpected"
    assert anchorlib.compare("a", "wrong", store=tmp_path, noise=noise).verdict == "unexpected"
