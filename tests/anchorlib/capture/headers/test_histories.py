"""Schedules and the random state are told step by step, and change nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import anchorlib
from anchorlib.capture.headers.histories import _MOST, Histories, _History
from tests.recording import recording


def told_of(values):
    """What a history of these (step, value) states, in order."""
    said = []
    one = _History("x", lambda key, entry: said.append((key, entry)))
    for step, value in values:
        one.see(step, value)
    one.state()
    return said


def test_a_value_is_a_point_where_it_changes():
    assert told_of([(0, 1.0), (1, 1.0), (2, 0.5), (3, 0.5)])[-1] == (
        "history.x",
        {"points": [[0, 1.0], [2, 0.5]], "until": 3},
    )


def test_a_value_that_always_changes_is_stated_seldom_and_not_for_ever():
    said = told_of((step, step) for step in range(3 * _MOST))
    assert len(said) < 30
    points = said[-1][1]["points"]
    assert points == [[step, step] for step in range(_MOST)]
    assert said[-1][1]["until"] == _MOST - 1


def trained(folder, name: str, *, lr=lambda _step: 0.1, draws=lambda _step: 0, passes=1) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: lr(step) / 0.1)
    with anchorlib.start(name, store=folder) as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for step in range(6):
            torch.randn(draws(step))
            optimizer.zero_grad()
            for _ in range(passes):
                model(torch.ones(64, 4)).pow(2).sum().backward()
            optimizer.step()
            schedule.step()


def compared(folder, **of_b):
    trained(folder, "a")
    trained(folder, "b", **of_b)
    return anchorlib.compare("a", "b", store=folder)


def test_a_schedule_that_parts_is_said_with_its_step(tmp_path):
    found = compared(tmp_path, lr=lambda step: 0.1 if step < 3 else 0.05)
    assert found.first.place.step == 3
    assert "AdamW lr 0.1 | 0.05 from step 3" in found.sentence
    assert found.config_diff["optimizer.lr from step 3"] == (0.1, 0.05)
    assert "history.optimizer.lr" not in found.config_diff


@pytest.mark.slow
def test_other_random_numbers_are_said_with_their_step(tmp_path):
    found = compared(tmp_path, draws=lambda step: 3 if step == 2 else 0)
    assert found.first.place.step == 2
    assert "B drew other random numbers from step 2 on" in found.sentence


@pytest.mark.slow
def test_equal_draws_and_equal_schedules_are_not_mentioned(tmp_path):
    found = compared(tmp_path)
    assert found.verdict == "identical"
    assert not found.config_diff


@pytest.mark.slow
def test_other_seeds_are_settings_and_no_other_draws(tmp_path):
    trained(tmp_path, "a")
    seed, torch.manual_seed = torch.manual_seed, lambda _seed: seed(1)
    try:
        trained(tmp_path, "b")
    finally:
        torch.manual_seed = seed
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert "drew other" not in found.sentence
    assert "torch.initial_seed" in found.config_diff


def test_each_pass_has_its_random_state(tmp_path):
    trained(tmp_path, "a", passes=3)
    header = anchorlib.open_run("a", tmp_path).header()
    assert {key for key in header if key.startswith("history.random")} == {
        "history.random", "history.random.pass1", "history.random.pass2",
    }  # fmt: skip
    assert len(header["history.random"]["points"]) == 6


def test_looking_at_the_random_state_draws_nothing_and_calls_no_operator():
    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen, said = [], []
    before = torch.get_rng_state()
    histories = Histories(lambda key, entry: said.append(entry))
    with Seen():
        histories.began(0, 0)
    histories.close()
    assert len(said) == 1
    assert seen == []
    assert torch.equal(torch.get_rng_state(), before)


def test_steps_that_are_not_recorded_have_no_random_state(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with anchorlib.start("a", store=tmp_path, steps=range(2)) as session:
        session.watch(model, optimizer=optimizer)
        for _ in range(5):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
    header = anchorlib.open_run("a", tmp_path).header()
    assert [point[0] for point in header["history.random"]["points"]] == [0, 1]


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.25)])
def test_numbers_of_each_group_are_followed(lr):
    model = nn.Linear(4, 4)
    groups = [{"params": [model.weight], "lr": lr, "depth": 3}, {"params": [model.bias], "lr": 0.5}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    with recording() as run:
        run.session.watch(model, optimizer=optimizer)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    header = run.sink.entries
    assert header["history.optimizer.lr"]["points"] == [[0, [float(lr), 0.5]]]
    assert header["history.optimizer.momentum"]["points"] == [[0, 0.9]]
    assert "history.optimizer.depth" not in header  # of one group alone
