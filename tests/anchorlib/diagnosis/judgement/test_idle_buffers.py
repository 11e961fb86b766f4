"""Buffers that an evaluation reads without calling their module: nothing follows from them."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.func import functional_call

import anchorlib
from tests.once import Once


@dataclass(frozen=True)
class Training:
    """A student with a batch norm, whose average teaches it.

    looks: when the student is evaluated, "never", "before" a step's forward or "behind" it.
    teacher: the average is a "module", or put into the student by "functional" calls.
    keeps: the share of the teacher's running statistics that stays. momentum: of the batch norm.
    level: the number that a module which is never called holds in a last evaluation.
    """

    looks: str = "never"
    teacher: str = "module"
    keeps: float = 0.9
    momentum: float = 0.1
    level: float | None = None


class Holder(nn.Module):
    """A number that the program reads by itself, as a threshold."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("level", torch.ones(8))


class Net(nn.Sequential):
    """Layers, and beside them a number that no forward reads."""

    def __init__(self, momentum: float) -> None:
        norm = nn.BatchNorm1d(16, momentum=momentum)
        super().__init__(nn.Linear(6, 16), norm, nn.Linear(16, 4), Holder())

    def forward(self, x):
        for layer in list(self)[:-1]:
            x = layer(x)
        return x


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    student = Net(how.momentum)
    teacher = copy.deepcopy(student).requires_grad_(requires_grad=False).eval()
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(student, tensors="*", optimizer=optimizer)
        if how.teacher == "module":
            session.watch(teacher, tensors="*", prefix="teacher")
        for _ in range(4):
            x = torch.randn(16, 6, generator=draw)
            look(student, x, how.looks == "before")
            told = student(x)
            look(student, x, how.looks == "behind")
            loss = (told - taught(how, student, teacher, x)).square().mean()
            optimizer.zero_grad()
            anchorlib.anchor(loss, "loss").backward()
            optimizer.step()
            follow(how, teacher, student)
        if how.level is not None:
            student[3].level.fill_(how.level)
            look(student, x, wanted=True)


@torch.no_grad()
def look(student, x, wanted):
    if wanted:
        student.eval()
        student(x)
        student.train()


@torch.no_grad()
def taught(how, student, teacher, x):
    if how.teacher == "module":
        return teacher(x)
    student.eval()
    told = functional_call(student, teacher.state_dict(), (x,))
    student.train()
    return told


@torch.no_grad()
def follow(how, teacher, student):
    for name, own in teacher.state_dict().items():
        other = student.state_dict()[name]
        if own.is_floating_point():
            own.lerp_(other, 1 - (how.keeps if "running" in name else 0.9))
        else:
            own.copy_(other)


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


def test_a_model_that_one_run_alone_evaluates_shows_buffers_of_which_nothing_is_made(once):
    found = anchorlib.compare(once(Training()), once(Training("before")))
    assert found.verdict == "expected", found
    assert "buffers alone that an evaluation reads without calling their module" in found.sentence
    assert not found.origins


def test_so_does_an_average_that_is_put_into_the_model_for_a_call(once):
    found = anchorlib.compare(once(Training()), once(Training(teacher="functional")))
    assert found.verdict in ("expected", "suspect"), found
    assert not any("running" in origin.place.name for origin in found.origins)


@pytest.mark.parametrize("looks", ["never", "behind"])
def test_statistics_that_are_averaged_otherwise_are_a_fault(looks, once):
    one = Training(looks)
    found = anchorlib.compare(once(one), once(replace(one, keeps=0.5)))
    assert found.verdict == "unexpected", found
    assert found.origins[0].place.name.startswith("teacher.1.running_"), found


def test_a_momentum_is_named_where_one_run_alone_evaluates(once):
    found = anchorlib.compare(once(Training()), once(Training("before", momentum=0.3)))
    assert found.verdict == "unexpected", found
    assert "momentum 0.1 | 0.3" in found.sentence


def test_an_evaluation_at_another_point_of_the_step_is_seen(once):
    found = anchorlib.compare(once(Training("behind")), once(Training("before")))
    assert found.verdict == "unexpected", found
    assert found.origins[0].place.phase == "eval"


def test_a_number_of_a_module_that_is_never_called_is_compared_in_a_last_evaluation(once):
    found = anchorlib.compare(once(Training(level=0.5)), once(Training(level=0.7)))
    assert found.verdict != "expected", found
    assert [origin.place.name for origin in found.origins] == ["3.level"], found
