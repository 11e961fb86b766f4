"""Logarithms near zero consist of rounding; a fault that moves them is none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import anchorlib
from anchorlib.diagnosis.judgement.rounding.logarithms import _factor
from anchorlib.record import Edges, Parent

Tensor = torch.Tensor
PIXELS = 16


def slogdet(w: Tensor) -> Tensor:
    return torch.linalg.slogdet(w)[1] * PIXELS


def of_triangle(w: Tensor) -> Tensor:
    return torch.linalg.qr(w)[1].diagonal().abs().log().sum() * PIXELS


def in_float64(w: Tensor) -> Tensor:
    return torch.linalg.slogdet(w.double())[1].to(w.dtype) * PIXELS


def divided(w: Tensor) -> Tensor:
    return torch.linalg.det(w).abs().log() / (1 / PIXELS)


def scaled(w: Tensor) -> Tensor:
    return torch.linalg.slogdet(w * (1 + 1e-5))[1] * PIXELS


def shifted(w: Tensor) -> Tensor:
    return (torch.linalg.slogdet(w)[1] + 1e-5) * PIXELS


def small(w: Tensor) -> Tensor:
    return torch.linalg.slogdet(w)[1] * 1e-6


def small_and_shifted(w: Tensor) -> Tensor:
    return (torch.linalg.slogdet(w)[1] + 1e-5) * 1e-6


class Invertible(nn.Module):
    """An invertible layer that was just made: its matrix is orthogonal."""

    def __init__(self, form: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.form = form
        self.weight = nn.Parameter(torch.linalg.qr(torch.randn(4, 4))[0])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x @ self.weight, self.form(self.weight)


def train(store, run: str, form: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Invertible(form))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, optimizer=optimizer)
        x = torch.randn(8, 4)
        z, volume = model(x)
        loss = z.square().sum(1).mean() / 2 - volume
        anchorlib.anchor(loss, "loss").backward()
        optimizer.step()


@pytest.mark.parametrize("form", [of_triangle, in_float64, divided])
def test_another_form_of_a_logarithm_near_zero_is_rounding(tmp_path, form):
    for run, one in (("a", slogdet), ("b", form), ("c", slogdet)):
        train(tmp_path, run, one)
    for pair in (("a", "b"), ("b", "c")):
        found = anchorlib.compare(*pair, store=tmp_path)
        assert found.verdict == "suspect", found
        assert {one.cls for one in found.origins} == {"rounding"}


@pytest.mark.parametrize(
    ("form", "fault"), [(slogdet, scaled), (slogdet, shifted), (small, small_and_shifted)]
)
def test_a_fault_in_a_logarithm_near_zero_is_one(tmp_path, form, fault):
    train(tmp_path, "a", form)
    train(tmp_path, "b", fault)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "unexpected", found
    assert found.origins[0].place.name.endswith(":1")


def stored(logarithms: Tensor) -> Tensor:
    return (logarithms.sum() * PIXELS).expand(8)


def taken_again(logarithms: Tensor) -> Tensor:
    return (logarithms.exp().log().sum() * PIXELS).expand(8)


def taken_of_more(logarithms: Tensor) -> Tensor:
    return ((logarithms.exp() * (1 + 1e-5)).log().sum() * PIXELS).expand(8)


class Scales(nn.Module):
    """A layer that stores the logarithms of its scales, which add up to zero but for rounding."""

    def __init__(self, form: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.form = form
        logarithms = torch.randn(9)
        self.logarithms = nn.Parameter(logarithms - logarithms.mean())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * self.logarithms.exp(), self.form(self.logarithms)


@pytest.mark.parametrize(
    ("forms", "verdict"),
    [
        ((stored, taken_again), "suspect"),
        ((taken_again, stored), "suspect"),
        ((stored, taken_of_more), "unexpected"),
        ((taken_of_more, stored), "unexpected"),
    ],
)
def test_logarithms_that_one_run_alone_takes_round_as_numbers_of_size_one(tmp_path, forms, verdict):
    for run, form in zip("ab", forms, strict=True):
        torch.manual_seed(0)
        model = nn.Sequential(Scales(form))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with anchorlib.start(run, store=tmp_path, recorder="thread") as session:
            session.watch(model, optimizer=optimizer)
            z, volume = model(torch.randn(8, 9))
            (z.square().sum(1).mean() / 2 - volume.mean()).backward()
            optimizer.step()
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == verdict, found


def in_pairs(kept: Tensor, lost: Tensor, kept_before: Tensor, lost_before: Tensor) -> Tensor:
    return (kept.sum(1) - kept_before.sum(1)) - (lost.sum(1) - lost_before.sum(1))


def by_model(kept: Tensor, lost: Tensor, kept_before: Tensor, lost_before: Tensor) -> Tensor:
    return (kept - lost).sum(1) - (kept_before - lost_before).sum(1)


def by_time(kept: Tensor, lost: Tensor, kept_before: Tensor, lost_before: Tensor) -> Tensor:
    return -((lost - lost_before) - (kept - kept_before)).mean(1) * kept.shape[1]


def steeper(*logarithms: Tensor) -> Tensor:
    return 1.1 * in_pairs(*logarithms)


def without_the_last(*logarithms: Tensor) -> Tensor:
    return in_pairs(*(each[:, :-1] for each in logarithms))


def moved(*logarithms: Tensor) -> Tensor:
    return in_pairs(*logarithms) + 1e-4


def smoothed(kept: Tensor, *others: Tensor) -> Tensor:
    return in_pairs((kept.exp() + 1e-5).log(), *others)


@pytest.mark.parametrize("low", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize(
    ("form", "verdict"),
    [
        (by_model, "suspect"),
        (by_time, "suspect"),
        (steeper, "unexpected"),
        (without_the_last, "unexpected"),
        (moved, "unexpected"),
        (smoothed, "unexpected"),
    ],
)
def test_a_difference_of_logarithms_rounds_as_they_do(tmp_path, form, verdict, low):
    """A model prefers one text to another, by how it has moved from what it was at first."""
    for run, own in (("a", in_pairs), ("b", form)):
        torch.manual_seed(0)
        model, first = nn.Linear(12, 30), nn.Linear(12, 30)
        first.load_state_dict(model.state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        draw = torch.Generator().manual_seed(1)
        with anchorlib.start(run, store=tmp_path, recorder="thread") as session:
            session.watch(model, tensors="*", optimizer=optimizer)
            for _ in range(3):
                kept, lost = torch.randn(2, 8, 9, 12, generator=draw)
                tokens = torch.randint(0, 30, (8, 9, 1), generator=draw)
                told = []
                for each, rests in ((model, False), (first, True)):
                    for x in (kept, lost):
                        with torch.autocast("cpu", torch.bfloat16, enabled=low):
                            scores = each(x)
                        scores = (scores.detach() if rests else scores).float()
                        told.append(scores.log_softmax(-1).gather(2, tokens)[..., 0])
                margin = anchorlib.anchor(own(*told), "margin")
                optimizer.zero_grad()
                anchorlib.anchor(-nn.functional.logsigmoid(margin).mean(), "loss").backward()
                optimizer.step()
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == verdict, found.sentence


@pytest.mark.parametrize("number", ["1.2.3", "-", "e", "--1", "1e", "tensor(", "", "0"])
@pytest.mark.parametrize("inputs", [((1,), (-1,)), ((1,),), ((7,),), ()])
def test_arguments_and_inputs_that_anyone_may_have_written_are_read_without_a_fault(number, inputs):
    edges = Edges(
        "y",
        "train",
        pass_index=0,
        call=0,
        shape=(2,),
        parents=(Parent("x", 0),),
        ops=("MulBackward0", "LogBackward0"),
        inputs=inputs,
        arguments=(f"other={number}", ""),
    )
    assert _factor(edges) in (0.0, 1.0, 1.2)


def of_logits(scores: Tensor, truth: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(scores, truth, reduction="none")


def of_softplus(scores: Tensor, truth: Tensor) -> Tensor:
    return nn.functional.softplus((1 - 2 * truth) * scores)


def of_more(scores: Tensor, truth: Tensor) -> Tensor:
    return of_softplus(scores, truth) + 1e-5


@pytest.mark.parametrize(("form", "verdict"), [(of_softplus, "suspect"), (of_more, "unexpected")])
def test_a_cross_entropy_of_sure_logits_rounds_as_a_number_of_size_one(tmp_path, form, verdict):
    for run, own in (("a", of_logits), ("b", form)):
        torch.manual_seed(0)
        truth = torch.randint(0, 2, (32, 10)).float()
        model = nn.Linear(10, 10)
        with torch.no_grad():
            model.weight.copy_(8 * torch.eye(10))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        with anchorlib.start(run, store=tmp_path, recorder="thread") as session:
            session.watch(model, tensors="*", optimizer=optimizer)
            told = model(2 * truth - 1)
            anchorlib.anchor(own(told, truth).sum(1).mean(), "loss").backward()
            optimizer.step()
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == verdict, found.sentence
