"""Autocast, random numbers and states of one run alone are told as such, not by what follows."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional

import anchorlib

MASKED = "the value of MaskedFill"


def convolved(folder, name: str, *, low: bool, approximate: str = "none") -> None:
    """A training of a convolution and a GELU, under autocast or not."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(3, 4, 3), nn.GELU(approximate=approximate))
    x = torch.randn(2, 3, 16)
    with anchorlib.start(name, store=folder) as session:
        session.watch(model, tensors="*")
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16) if low else nullcontext():
                made = model(x)
            made.float().square().sum().backward()
            session.step()


def test_where_one_run_alone_is_under_autocast_that_is_named_first(tmp_path):
    for name in ("a", "b"):
        convolved(tmp_path, name, low=name == "a")
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.config_diff["amp.autocast"] == ("bfloat16", "off")
    assert found.origins[0].changed == ("autocast bfloat16 | off",)
    assert "(autocast bfloat16 | off)" in found.sentence


def test_beside_autocast_another_argument_is_still_named(tmp_path):
    convolved(tmp_path, "a", low=True)
    convolved(tmp_path, "b", low=False, approximate="tanh")
    found = anchorlib.compare("a", "b", tensors=["1"], store=tmp_path)
    assert found.origins[0].changed[0] == "autocast bfloat16 | off"
    assert any("approximate" in clause for clause in found.origins[0].changed)


def test_where_both_are_under_autocast_it_is_not_named(tmp_path):
    for name, approximate in (("a", "none"), ("b", "tanh")):
        convolved(tmp_path, name, low=True, approximate=approximate)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert "amp.autocast" not in found.config_diff
    assert "approximate" in found.sentence
    assert "autocast" not in found.sentence


class Masked(nn.Module):
    """Scores that are masked and, with a share, dropped."""

    def __init__(self, share: float, filled: float) -> None:
        super().__init__()
        self.fc, self.share, self.filled = nn.Linear(8, 8), share, filled

    def forward(self, x):
        scores = self.fc(x).masked_fill(torch.eye(len(x), 8).bool(), self.filled)
        dropped = functional.dropout(scores, self.share) if self.share else scores
        return anchorlib.anchor(dropped, "made")


def masked(
    folder, name: str, *, share=0.5, filled=0.0, drawn_at=None, filled_at=None, rows=16
) -> None:
    """A training; before the step `drawn_at` one more number is drawn, from `filled_at` on masked
    elements have another value."""
    torch.manual_seed(0)
    model, x = Masked(share, filled), torch.randn(rows, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with anchorlib.start(name, store=folder) as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for step in range(5):
            if step == drawn_at:
                torch.rand(3)
            if step == filled_at:
                model.filled = 1.0
            model(x).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def test_where_dropout_draws_other_numbers_no_other_value_is_blamed(tmp_path):
    for step in (0, 1, 4):
        for name in ("a", "b"):
            at = step if name == "b" else None
            masked(tmp_path, f"{name}{step}", drawn_at=at)
        found = anchorlib.compare(f"a{step}", f"b{step}", store=tmp_path)
        assert f"B drew other random numbers from step {step} on" in found.sentence
        assert MASKED not in found.sentence


def test_a_mask_too_large_to_be_told_is_not_taken_for_equal(tmp_path):
    for name, at in (("a", None), ("b", 0)):
        masked(tmp_path, name, drawn_at=at, rows=1 << 12)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert "B drew other random numbers from step 0 on" in found.sentence
    assert MASKED not in found.sentence


def test_a_filled_value_is_named_beside_dropout_that_draws_alike(tmp_path):
    masked(tmp_path, "a")
    masked(tmp_path, "b", filled=1.0)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert MASKED in found.sentence
    assert "random" not in found.sentence


def test_a_filled_value_is_named_beside_draws_that_nothing_multiplies_by(tmp_path):
    masked(tmp_path, "a", share=0.0)
    masked(tmp_path, "b", share=0.0, filled=1.0, drawn_at=0)
    assert MASKED in anchorlib.compare("a", "b", store=tmp_path).sentence


def test_of_a_step_whose_operations_were_not_looked_at_nothing_is_called_equal(tmp_path):
    masked(tmp_path, "a", share=0.0)
    masked(tmp_path, "b", share=0.0, filled_at=4)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert "where they differ A has 0, B 1" in found.sentence
    assert "all that autograd keeps is equal" not in found.sentence


class Recurrent(nn.Module):
    """An LSTM within a model, or as the model, whose inputs are recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 8, batch_first=True)

    def forward(self, x, state):
        return self.rnn(x, state)


def carried(folder, name: str, *, whole=False, cell=True, scale=1.0) -> None:
    """A training of an LSTM whose states go on from step to step, or begin with an empty cell."""
    torch.manual_seed(0)
    model, x = Recurrent(), torch.randn(2, 6, 4)
    state = None
    with anchorlib.start(name, store=folder) as session:
        session.watch(model.rnn if whole else model, tensors="*" if whole else None)
        for _ in range(3):
            made, (h, c) = (model.rnn if whole else model)(x, state)
            c = c.detach() * scale
            state = h.detach(), c if cell else torch.zeros_like(c)
            made.square().sum().backward()
            session.step()


def test_a_cell_state_that_one_run_alone_carries_on_is_named(tmp_path):
    for name in ("a", "b"):
        carried(tmp_path, name, cell=name == "a")
    sentence = anchorlib.compare("a", "b", store=tmp_path).sentence
    assert "MkldnnRnnLayerBackward0 cx_ given | zeros" in sentence
    assert "hx_" not in sentence


def test_a_recorded_state_that_one_run_alone_sets_to_zeros_is_named(tmp_path):
    for name in ("a", "b"):
        carried(tmp_path, name, whole=True, cell=name == "a")
    sentence = anchorlib.compare("a", "b", store=tmp_path).sentence
    assert "in A it is output:1.1 bit for bit, in B it is all zeros" in sentence


def test_a_recorded_state_that_differs_otherwise_is_not_called_zeros(tmp_path):
    for name, scale in (("a", 1.0), ("b", 1.01)):
        carried(tmp_path, name, whole=True, scale=scale)
    sentence = anchorlib.compare("a", "b", store=tmp_path).sentence
    assert "in A it is output:1.1 bit for bit, in B it is not" in sentence


def test_a_state_that_both_carry_on_is_not_named(tmp_path):
    for name, scale in (("a", 1.0), ("b", 1.01)):
        carried(tmp_path, name, scale=scale)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "unexpected"
    assert "zeros" not in found.sentence
