"""A number near zero is measured against the loss that takes it up; faults beside it are found."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.once import Once


@dataclass(frozen=True)
class Training:
    """A student whose teacher is its running average, so that both begin equal.

    each: whether the teacher is given one sample at a time.
    moves: how the average moves, by "lerp" or as a "sum".
    fault: what is wrong: a consistency of twice its "weight", a teacher that is given rows in
    another "order", whose results are taken at another "temperature" or whose average stands
    "still", or a consistency that is told "shifted" by a hundredth.
    """

    each: bool = False
    divergence: bool = False
    moves: str = "lerp"
    fault: str = ""


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    student = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 5))
    teacher = deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(student, tensors="*", optimizer=optimizer)
        session.watch(teacher, tensors="*", prefix="teacher")
        for _ in range(4):
            x = torch.randn(16, 12, generator=draw)
            labels = torch.randint(0, 5, (16,), generator=draw)
            logits = student(x)
            given = x.roll(1, 0) if how.fault == "order" else x
            with torch.no_grad():
                rows = [teacher(row[None]) for row in given] if how.each else [teacher(given)]
                told = torch.cat(rows) / (2 if how.fault == "temperature" else 1)
            if how.divergence:
                logs = told.log_softmax(-1)
                far = functional.kl_div(
                    logits.log_softmax(-1), logs, log_target=True, reduction="batchmean"
                )
            else:
                far = functional.mse_loss(logits.softmax(-1), told.softmax(-1))
            far = anchorlib.anchor(far + 0.01 * (how.fault == "shifted"), "consistency")
            weight = 4 if how.fault == "weight" else 2
            loss = functional.cross_entropy(logits, labels) + weight * far
            optimizer.zero_grad()
            anchorlib.anchor(loss, "loss").backward()
            optimizer.step()
            if how.fault != "still":
                with torch.no_grad():
                    for mean, own in zip(teacher.parameters(), student.parameters(), strict=True):
                        if how.moves == "lerp":
                            mean.lerp_(own, 0.1)
                        else:
                            mean.mul_(0.9).add_(own, alpha=0.1)


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("divergence", [False, True], ids=["squares", "divergence"])
def test_a_consistency_that_begins_at_zero_is_measured_against_its_loss(divergence, once):
    one = Training(divergence=divergence)
    found = anchorlib.compare(once(one), once(replace(one, each=True)))
    assert found.verdict in ("suspect", "expected", "identical"), found


@pytest.mark.parametrize("divergence", [False, True], ids=["squares", "divergence"])
@pytest.mark.parametrize("each", [False, True], ids=["at once", "each"])
@pytest.mark.parametrize("fault", ["weight", "order", "temperature", "still", "shifted"])
def test_a_fault_beside_a_consistency_that_begins_at_zero_is_one(fault, each, divergence, once):
    one = Training(divergence=divergence)
    found = anchorlib.compare(once(one), once(replace(one, each=each, fault=fault)))
    assert found.verdict == "unexpected", found


@pytest.mark.parametrize("divergence", [False, True], ids=["squares", "divergence"])
def test_what_a_teacher_is_off_by_reaches_the_consistency_that_autograd_does_not_follow(
    divergence, once
):
    one = Training(divergence=divergence)
    found = anchorlib.compare(once(one), once(replace(one, moves="sum")))
    assert found.verdict in ("suspect", "expected"), found.sentence
    assert found.origins[0].place.name.startswith("teacher")


@dataclass(frozen=True)
class Divergence:
    """A consistency near zero by another formula: "logs", "torch" or summed by "rows".

    fault: by which it is multiplied, or what is added to it.
    """

    formula: str = "logs"
    times: float = 1.0
    plus: float = 0.0


def diverge(how: Divergence, name: str, store) -> None:
    torch.manual_seed(0)
    student = nn.Linear(12, 5)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(student, tensors="*", optimizer=optimizer)
        for _ in range(3):
            x = torch.randn(16, 12, generator=draw)
            labels = torch.randint(0, 5, (16,), generator=draw)
            logits = student(x)
            p = (logits + 1e-2 * torch.randn(16, 5, generator=draw)).detach()
            if how.formula == "logs":
                terms = p.softmax(-1) * (p.log_softmax(-1) - logits.log_softmax(-1))
                far = terms.sum(-1).mean()
            elif how.formula == "rows":
                cross = -(p.softmax(-1) * logits.log_softmax(-1)).sum(-1)
                far = (cross + (p.softmax(-1) * p.log_softmax(-1)).sum(-1)).mean()
            else:
                far = functional.kl_div(
                    logits.log_softmax(-1), p.softmax(-1), reduction="batchmean"
                )
            far = anchorlib.anchor(how.times * far + how.plus, "consistency")
            loss = functional.cross_entropy(logits, labels) + far
            optimizer.zero_grad()
            anchorlib.anchor(loss, "loss").backward()
            optimizer.step()


@pytest.fixture(scope="module")
def diverging(tmp_path_factory):
    return Once(diverge, tmp_path_factory.mktemp("diverging"))


@pytest.mark.parametrize("formula", ["torch", "rows"])
def test_a_divergence_of_nearly_equal_rows_rounds_as_its_terms_do(formula, diverging):
    found = anchorlib.compare(diverging(Divergence()), diverging(Divergence(formula)))
    assert found.verdict in ("suspect", "expected"), found.sentence


@pytest.mark.parametrize("formula", ["logs", "torch", "rows"])
@pytest.mark.parametrize("fault", [{"times": 1.1}, {"plus": 1e-2}], ids=str)
def test_a_divergence_that_is_another_number_is_a_fault(formula, fault, diverging):
    other = replace(Divergence(formula), **fault)
    found = anchorlib.compare(diverging(Divergence()), diverging(other))
    assert found.verdict == "unexpected", found.sentence
