"""A cause that a correction, a scale or a cancellation hides at first is found where it leaps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import anchorlib
from anchorlib.diagnosis.causes.frontier import frontier
from anchorlib.diagnosis.causes.overflows import overflows
from anchorlib.diagnosis.causes.skips import skips
from anchorlib.diagnosis.investigation import compare_tables
from anchorlib.diagnosis.judgement.rounding.jumps import LEAST, TIMES, Jump, _is_handed_on, jump
from anchorlib.diagnosis.pairing import Alignment
from anchorlib.diagnosis.pairing.join import align
from anchorlib.diagnosis.sizes.measurement import measure
from tests.anchorlib.diagnosis.tables import table
from tests.anchorlib.store.records import record

SIZE = 64
ONES = np.ones(SIZE, "<f8")


def leaping(alignment: Alignment) -> Jump | None:
    overflown = overflows(alignment, skips(alignment))
    return jump(frontier(alignment), measure(alignment, alignment.differing), overflown)


def run(errors: list[float], name: str = "a", kind: str = "value") -> Any:
    """A step whose records are so far from one."""
    return table(
        [
            record(f"t{n}", 0, ONES * (1 + error), dtype="float64", order=n, kind=kind)
            for n, error in enumerate(errors)
        ],
        run=name,
    )


def leap(errors: list[float], **options: str) -> Any:
    alignment = align(run([0.0] * len(errors), **options), run(errors, "b", **options))
    return leaping(alignment)


@pytest.mark.slow
@given(st.lists(st.sampled_from([0.0, 1e-9, 1e-6, 3e-5, 2e-3, 0.5, 20.0]), max_size=8))
def test_a_leap_is_the_first_record_a_thousand_times_what_stands_before_it(errors):
    wanted = None
    for at, error in enumerate(errors):
        before = max(errors[:at], default=0.0)
        if before > 0 and error > TIMES * max(before, LEAST):
            wanted = at
            break
    found = leap(errors)
    assert (None if found is None else found.row) == wanted


@pytest.mark.parametrize(
    ("kind", "gradient", "own", "handed_on"),
    [
        ("opt.exp_avg_sq", 1e7, 1e14, True),  # squares of a gradient that is zero by theory
        ("opt.exp_avg_sq", 1e7, 1e19, False),
        ("opt.exp_avg_sq", 1e-6, 1.0, False),  # other betas: a leap behind an equal gradient
        ("updated", 1e7, 1e14, False),
    ],
)
def test_squares_of_a_gradient_that_is_rounding_are_no_leap(kind, gradient, own, handed_on):
    tables = [
        table(
            [
                record("w", 0, ONES * factor, dtype="float64", order=order, kind=each)
                for order, (each, factor) in enumerate((("grad", grad), (kind, state)))
            ],
            run=name,
        )
        for name, grad, state in (("a", 1.0, 1.0), ("b", 1 + gradient, 1 + own))
    ]
    alignment = align(*tables)
    assert _is_handed_on(frontier(alignment), 1, {0: gradient, 1: own}, 0.0) == handed_on


def test_an_update_is_a_small_difference_of_large_numbers_and_no_leap():
    assert leap([1e-7, 0.5], kind="delta") is None


@pytest.mark.parametrize(("units", "leaps"), [(1, False), (100, True)])
def test_a_rounding_to_bfloat16_of_what_differs_in_float32_is_no_leap(units, leaps):
    """Half of the elements come out a unit away: a third of an eps, 40,000 times what led to it."""
    runs = []
    for name, off in (("a", 0), ("b", 1)):
        fine = np.full(SIZE, 1 + off * LEAST, "<f4")
        coarse = np.full(SIZE, 0x3F80, "<u2") + (np.arange(SIZE) % 2 * off * units).astype("<u2")
        made = [
            record("fine", 0, fine, order=0, kind="value"),
            record("coarse", 0, coarse, dtype="bfloat16", order=1, kind="value"),
        ]
        runs.append(table(made, run=name))
    alignment = align(*runs)
    found = leaping(alignment)
    assert (found is not None) == leaps


def test_a_receiver_at_which_the_error_leaps_is_an_origin_and_said_to_be_one():
    found = compare_tables(align(run([0.0, 0.0]), run([1e-8, 0.5], "b")))
    assert found.verdict == "unexpected"
    bad = [one for one in found.origins if one.cls == "not_rounding"]
    assert [one.place.name for one in bad] == ["t1"]
    assert "times the error of anything before it in the step" in found.sentence
    assert "bit-identical: more than" not in found.sentence.partition("; at ")[2]


class Normed(nn.Module):
    """RMSNorm behind an embedding's scale, which it cancels but for its rounding."""

    def __init__(self, scale: torch.Tensor) -> None:
        super().__init__()
        self.embed, self.out = nn.Linear(8, 16), nn.Linear(16, 8)
        self.after = nn.Identity()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x) * self.scale
        h = anchorlib.anchor(h / h.pow(2).mean(-1, keepdim=True).sqrt(), "norm")
        return self.out(self.after(h * h.sign() * self.scale))


def trained(folder, name: str, *, beta: float = 0.999, scale: float = 1.0) -> None:
    torch.manual_seed(0)
    model = Normed(torch.tensor(scale))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, beta))
    with anchorlib.start(name, store=folder, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(2):
            x = torch.randn(16, 8)
            loss = (model(x) - x).pow(2).mean()
            anchorlib.anchor(loss, "loss")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@pytest.mark.slow
def test_a_group_takes_the_class_of_its_worst_member(tmp_path):
    """Another beta moves the first update by rounding alone: the bias correction hides it."""
    trained(tmp_path, "a")
    trained(tmp_path, "b", beta=0.99)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "unexpected"
    assert found.origins[0].place.kind == "opt.exp_avg_sq"
    assert found.origins[0].cls == "not_rounding"


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0039, 1.1])
def test_a_scale_that_a_norm_hides_is_no_rounding(tmp_path, scale):
    trained(tmp_path, "a")
    trained(tmp_path, "b", scale=scale)
    assert anchorlib.compare("a", "b", store=tmp_path).verdict == "unexpected"


def test_the_same_training_again_leaps_nowhere(tmp_path):
    trained(tmp_path, "a")
    trained(tmp_path, "b")
    assert anchorlib.compare("a", "b", store=tmp_path).verdict == "identical"


class Tagged(nn.Module):
    """Embeddings in float32, and a head whose large gradient is a product in low precision."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(8, 16), nn.Linear(16, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.head(self.embed(x)).float()


def tagged(folder, name: str, *, parts: int, factor: float = 1.0) -> None:
    """factor: by which the embedding's gradient is multiplied before all are clipped."""
    torch.manual_seed(0)
    model = Tagged()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with anchorlib.start(name, store=folder, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(2):
            optimizer.zero_grad()
            for part in torch.randint(0, 8, (512,)).chunk(parts):
                (model(part).exp().mean() / parts).backward()
            model.embed.weight.grad.mul_(factor)
            nn.utils.clip_grad_norm_(model.parameters(), 1e-2)
            optimizer.step()


@pytest.mark.parametrize(("factor", "wanted"), [(1.0, "suspect"), (1.01, "unexpected")])
def test_clipping_hands_the_rounding_of_one_gradient_on_to_all(tmp_path, factor, wanted):
    """The head's gradient rounds in bfloat16, and its norm is what clipping divides by."""
    tagged(tmp_path, "a", parts=1)
    tagged(tmp_path, "b", parts=4, factor=factor)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == wanted, found.sentence
