"""What rounding alone decided is no fault: signs of nothing, indices, gradients that are zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import anchorlib
from anchorlib.diagnosis.causes.frontier import frontier
from anchorlib.diagnosis.causes.overflows import overflows
from anchorlib.diagnosis.causes.skips import skips
from anchorlib.diagnosis.judgement.noise.turns import UNSTEADY, _undecided
from anchorlib.diagnosis.judgement.rounding.jumps import jump
from anchorlib.diagnosis.pairing.join import align
from anchorlib.diagnosis.sizes.measurement import measure
from tests.anchorlib.diagnosis.tables import table
from tests.anchorlib.store.records import record

SIZE = 64
ONES = np.ones(SIZE, "<f8")


def leaping(a: list[Any], b: list[Any]) -> bool:
    alignment = align(table(a), table(b, run="b"))
    overflown = overflows(alignment, skips(alignment))
    measures = measure(alignment, alignment.differing)
    return jump(frontier(alignment), measures, overflown) is not None


@pytest.mark.parametrize("kind", ["grad", "pass_grad"])
@pytest.mark.parametrize(("norm", "leaps"), [(3e-9, False), (1e-4, True)])
def test_a_gradient_that_is_nothing_beside_the_others_leaps_nowhere(kind, norm, leaps):
    """Of both, six tenths differ; only the larger one is more than rounding of what made it."""
    sides = [
        [
            record("w", 0, ONES * (1 + off * 1e-8), dtype="float64", order=0, kind=kind),
            record("key", 0, norm * ONES * (1 + off * 0.6), dtype="float64", order=1, kind=kind),
        ]
        for off in (0, 1)
    ]
    assert leaping(*sides) == leaps


@pytest.mark.parametrize(("off", "leaps"), [(0.01, False), (0.1, True)])
def test_behind_a_format_that_is_coarse_a_leap_is_more_than_its_roundings(off, leaps):
    """One small element rounds otherwise in bfloat16; what is off by 1 % then may be a rounding."""
    coarse = np.full(SIZE, 0x3F80, "<u2")
    coarse[0] = 0x3780  # 2**-16: a unit of it is 1e-7 of one
    other = coarse.copy()
    other[0] += 1
    sides = [
        [
            record("coarse", 0, bits, dtype="bfloat16", order=0, kind="value"),
            record("fine", 0, ONES * factor, dtype="float64", order=1, kind="value"),
        ]
        for bits, factor in ((coarse, 1.0), (other, 1 + off))
    ]
    assert leaping(*sides) == leaps


@given(
    usual=st.floats(1e-12, 1e-3),
    large=st.floats(1.0, 1e3),
    nothing=st.lists(st.booleans(), min_size=SIZE, max_size=SIZE),
)
def test_an_update_is_undecided_where_its_gradient_is_rounding(usual, large, nothing):
    of_rounding = np.array(nothing)
    signs = np.where(np.arange(SIZE) % 2, 1.0, -1.0)
    x = np.where(of_rounding, usual, large)
    y = np.where(of_rounding, -usual, large + usual * signs)
    assert np.abs(y - x)[of_rounding].min(initial=np.inf) > UNSTEADY * usual
    found = _undecided([("value", x, y), ("grad", x, y)], SIZE)
    assert np.array_equal(found, of_rounding)


def test_gradients_that_are_far_apart_decide_an_update_by_themselves():
    x, y = np.ones(SIZE), np.ones(SIZE)
    y[0] = -100.0
    assert not _undecided([("grad", x, y)], SIZE)[0]


class Chosen(nn.Module):
    """Reads rows by an index that no record holds, behind a value that may round otherwise."""

    def __init__(self, index: torch.Tensor, rounds: bool) -> None:
        super().__init__()
        self.index, self.rounds = index, rounds
        self.enter, self.head = nn.Linear(6, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.enter(x)
        h = anchorlib.anchor(h * 3 / 3 if self.rounds else h, "h")
        return self.head(h)


def choosing(store, run: str, *, swaps: bool, rounds: bool) -> None:
    torch.manual_seed(0)
    index = torch.arange(SIZE).roll(3)
    if swaps:
        index[:2] = index[:2].flip(0)
    model = Chosen(index, rounds)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(2):
            optimizer.zero_grad()
            told = model(torch.randn(16, 6)).gather(1, model.index.expand(16, -1))
            loss = (told * torch.linspace(-1, 1, SIZE)).square().mean()
            anchorlib.anchor(loss, "loss").backward()
            optimizer.step()


@pytest.mark.parametrize(("rounds", "verdict"), [(True, "suspect"), (False, "unexpected")])
def test_an_index_that_differs_may_be_decided_by_rounding_before_it_alone(
    tmp_path, rounds, verdict
):
    choosing(tmp_path, "a", swaps=False, rounds=False)
    choosing(tmp_path, "b", swaps=True, rounds=rounds)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == verdict, found


class Told(nn.Module):
    """Log-probabilities, by torch or by a formula, of an encoder of two layers of attention."""

    def __init__(self, formula: str, factor: float) -> None:
        super().__init__()
        self.formula, self.factor = formula, factor
        self.first, self.second = (nn.MultiheadAttention(16, 2, batch_first=True) for _ in "ab")
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 10)
        self.asked = nn.Parameter(torch.randn(4, 16))

    def forward(self, memory: torch.Tensor) -> torch.Tensor:
        asked = self.asked.expand(len(memory), -1, -1)
        # All values are zero but for a bias, on which no weight of the attention has an influence.
        state = self.first(asked, asked, torch.zeros_like(asked))[0]
        state = self.norm(state + self.second(state + asked, memory, memory)[0])
        told = anchorlib.anchor(self.head(state) * self.factor, "told")
        if self.formula == "torch":
            return functional.log_softmax(told, -1)
        return told - told.exp().sum(-1, keepdim=True).log()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("formula", "factor", "verdict"), [("own", 1.0, "suspect"), ("own", 1.01, "unexpected")]
)
def test_attention_to_equal_values_has_keys_whose_gradient_is_rounding(
    tmp_path, formula, factor, verdict
):
    for run, how in (("a", ("torch", 1.0)), ("b", (formula, factor))):
        torch.manual_seed(0)
        model = Told(*how)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        with anchorlib.start(run, store=tmp_path, recorder="thread") as session:
            session.watch(model, tensors="*", optimizer=optimizer)
            for _ in range(2):
                optimizer.zero_grad()
                told = model(torch.randn(8, 12, 16))
                anchorlib.anchor(-told[..., 3].mean(), "loss").backward()
                optimizer.step()
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == verdict, found


def test_a_gradient_that_is_nothing_hides_no_leap_behind_it():
    """A bias before a norm differs by more than all of itself; what leaps behind it is found."""
    sides = [
        [
            record("w", 0, ONES * (1 + off * 1e-7), dtype="float64", order=0, kind="pass_grad"),
            record("bias", 0, 3e-9 * ONES * (1 + off), dtype="float64", order=1, kind="pass_grad"),
            record("later", 0, ONES * (1 + off * 0.05), dtype="float64", order=2, kind="value"),
        ]
        for off in (0, 1)
    ]
    assert leaping(*sides)
