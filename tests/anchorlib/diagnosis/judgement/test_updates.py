"""What an optimizer makes of a parameter at one step is one operation, judged by its worst part."""

from __future__ import annotations

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

ADAMW, SGD, RMS = (
    (torch.optim.AdamW, {"lr": 1e-3}),
    (torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9}),
    (torch.optim.RMSprop, {"lr": 1e-3}),
)


def trained(folder: Any, name: str, made: Any, **options: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8))
    kind, usual = made
    optimizer = kind(model.parameters(), **{**usual, **options})
    with anchorlib.start(name, store=folder, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(3):
            x, y = torch.randn(16, 16), torch.randint(0, 8, (16,))
            loss = anchorlib.anchor(nn.functional.cross_entropy(model(x), y), "loss")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def compared(folder: Any, made: Any, **options: Any) -> Any:
    trained(folder, "a", made)
    trained(folder, "b", made, **options)
    return anchorlib.compare("a", "b", store=folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "options"),
    [
        (ADAMW, {"betas": (0.9, 0.99)}),
        (ADAMW, {"betas": (0.8, 0.999)}),
        (ADAMW, {"amsgrad": True}),
        (ADAMW, {"weight_decay": 0.02}),
        (ADAMW, {"eps": 1e-6}),
        (ADAMW, {"eps": 1e-10}),
        (ADAMW, {"lr": 1.001e-3}),
        (SGD, {"momentum": 0.8}),
        (SGD, {"nesterov": True}),
        (SGD, {"dampening": 0.5}),
        (SGD, {"weight_decay": 1e-4}),
        (RMS, {"alpha": 0.9}),
    ],
    ids=str,
)
def test_an_optimizer_with_another_setting_is_no_rounding(tmp_path, made, options):
    found = compared(tmp_path, made, **options)
    assert found.verdict == "unexpected"
    assert {one.cls for one in found.origins} == {"not_rounding"}
    kinds = {one.place.kind.partition(".")[0] for one in found.origins}
    assert kinds <= {"updated", "delta", "opt"}


@pytest.mark.parametrize("made", [ADAMW, SGD], ids=str)
@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}], ids=str)
def test_an_optimizer_in_another_form_only_rounds(tmp_path, made, options):
    kind, usual = made
    found = compared(tmp_path, (kind, {**usual, "foreach": False}), **{"foreach": None, **options})
    assert found.verdict in ("identical", "suspect")
    assert {one.cls for one in found.origins} <= {"rounding"}


SIZE = 64
ONES = np.ones(SIZE, "<f4")
TOLD = Edges("y", "train", 0, 0, (SIZE,), parents=(Parent("w", None),), ops=("M",), inputs=((-1,),))


def updated(run: str, **parts: float) -> Any:
    """A step of one parameter; `parts`: by how much each kind is larger than one, but for w's own.

    The update is a hundredth of the parameter.
    """
    sizes = {"updated": 1.0, "delta": 0.01, "opt.exp_avg_sq": 1.0}
    made = [
        record("w", 0, ONES, order=0, kind="value"),
        record("y", 0, ONES, order=1, kind="value"),
        record("w", 0, ONES * np.float32(1e6), order=2),
    ]
    for order, (kind, size) in enumerate(sizes.items(), 3):
        off = parts.get(kind.partition(".")[0], 0.0)
        raw = (size * (1 + off * np.where(np.arange(SIZE) % 2, 1, -1))).astype("<f4")
        made.append(record("w", 0, raw, order=order, kind=kind))
    return table(made, run=run, edges={0: [TOLD]})


EPS = 2.0**-23


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ({"updated": EPS, "delta": 1e3 * EPS, "opt": 100 * EPS}, "opt.exp_avg_sq"),
        ({"updated": 4 * EPS, "opt": 4 * EPS}, "updated"),
        ({"updated": EPS, "delta": 200 * EPS, "opt": 7 * EPS}, "delta"),
        ({"updated": EPS, "delta": 50 * EPS, "opt": 4 * EPS}, None),
    ],
)
def test_the_worst_part_of_an_update_decides_each_by_its_own_measure(parts, kind):
    """An update's error is one of the parameter's, not of the gradient's, however large that is."""
    found = compare_tables(align(updated("a"), updated("b", **parts)))
    (one,) = found.origins
    assert one.cls == ("rounding" if kind is None else "not_rounding")
    if kind is not None:
        assert one.place.kind == kind
