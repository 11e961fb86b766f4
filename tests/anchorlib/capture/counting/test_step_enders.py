"""Steps follow whoever steps alone, and `close` says in one line what was counted."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import anchorlib
from anchorlib.capture.counting.clock import Clock
from tests.recording import recording


class Optimizer:
    """Something that a clock can be bound to."""


def steps(turns, watched=""):
    """The step of each pass, where each letter is a pass that ends with that optimizer's step."""
    clock, optimizers = Clock(), {name: Optimizer() for name in turns}
    if watched:
        clock.bind(optimizers[watched])
    found = []
    for name in turns:
        at = clock.call("h")
        found.append(at.step)
        clock.gradient(at)
        clock.optimizer_stepped(optimizers[name])
    return found


@pytest.mark.parametrize(
    ("turns", "watched", "expected"),
    [
        ("AAABBB", "", [0, 1, 2, 3, 4, 5]),
        ("AAABBB", "A", [0, 1, 2, 3, 4, 5]),
        ("AAABBBAAACCC", "", [*range(12)]),
        # Its first two steps might be a critic's, inside a step of B that is still to come.
        ("AAABBB", "B", [0, 0, 1, 2, 3, 4]),
        ("ABBBB", "", [0, 1, 1, 2, 3]),
    ],
)
def test_optimizers_that_take_turns_end_a_step_each(turns, watched, expected):
    assert steps(turns, watched) == expected


@pytest.mark.parametrize(
    ("turns", "watched", "expected"),
    [
        ("DGDGDG", "", [0, 1, 1, 2, 2, 3]),
        ("DGDGDG", "D", [0, 1, 1, 2, 2, 3]),
        ("DGDGDG", "G", [0, 0, 1, 1, 2, 2]),
        ("ABCABC", "C", [0, 0, 0, 1, 1, 1]),
        ("DGGDGGDGG", "G", [0, 0, 1, 2, 2, 3, 4, 4, 5]),
        # One of them is warmed up: from then on a pair is a step again.
        ("DDDGDGDG", "", [0, 1, 2, 3, 4, 5, 5, 6]),
    ],
)
def test_optimizers_that_alternate_share_a_step(turns, watched, expected):
    assert steps(turns, watched) == expected


def test_who_steps_once_in_a_while_is_a_visitor_once_that_is_known():
    """A generator beside its critic, an optimizer of embeddings that accumulates for longer."""
    found = steps("AAAAB" * 3)
    assert found[:5] == [0, 1, 2, 3, 4]
    assert found[5:] == [5, 6, 7, 8, 9, 9, 10, 11, 12, 13]


def test_a_critics_steps_are_inside_its_generators_once_that_is_known():
    found = steps("DDDDDG" * 3, "G")
    second, third = found[6:12], found[12:]
    assert len(set(second)) == len(set(third)) == 1
    assert third[0] == second[0] + 1


def steps_with_repetitions(turns):
    """The step of each pass; a small letter is a step that follows no backward pass of its own."""
    clock, optimizers = Clock(), {name: Optimizer() for name in turns.upper()}
    found = []
    for name in turns:
        if name.isupper():
            at = clock.call("h")
            found.append(at.step)
            clock.gradient(at)
        clock.optimizer_stepped(optimizers[name.upper()])
    return found


def test_a_step_that_an_optimizer_repeats_at_once_moves_no_boundary():
    assert steps_with_repetitions("DGDGgDGDG") == steps("DGDGDGDG")
    assert steps_with_repetitions("DGDGDdGDG")[5:] == [4, 4, 5], "but the clock's ends a step"


def test_who_steps_more_often_with_a_backward_pass_each_time_ends_steps_as_before():
    assert steps_with_repetitions("DGDGGGG") == steps("DGDGGGG") == [0, 1, 1, 2, 2, 3, 4]


def test_optimizers_without_any_gradient_that_is_seen_still_end_steps():
    clock, optimizers = Clock(), {name: Optimizer() for name in "AB"}
    for name in "ABABBBBBB":
        clock.optimizer_stepped(optimizers[name])
    assert clock.step > 5


@pytest.mark.slow
@given(st.text("ABC", max_size=30), st.sampled_from(["", "A", "C"]))
def test_whoever_steps_alone_for_longer_than_before_ends_a_step_each(before, watched):
    alone = "A" * (len(before) + 6)
    found = steps(before + alone, watched if watched in before else "")
    assert all(b - a in {0, 1} for a, b in pairwise(found))
    assert len(set(found[-4:])) == 4


@given(st.text("ABC", max_size=30))
def test_a_pair_that_goes_on_alternating_shares_its_steps(before):
    found = steps(before + "DG" * 10)
    assert found[-2] - found[-4] == found[-4] - found[-6] == 1


def test_an_optimizer_that_is_gone_gives_way_to_the_next():
    clock, second = Clock(), Optimizer()
    clock.optimizer_stepped(Optimizer())
    for step in range(1, 4):
        assert clock.step == step
        clock.optimizer_stepped(second)


def test_layers_that_are_trained_in_turns_have_their_own_steps():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in net]
    with recording() as run:
        run.session.watch(net, tensors=["output", "*@delta"], optimizer=optimizers[0])
        run.session.watch(net, tensors=["*@delta"], optimizer=optimizers[1])
        for optimizer in optimizers:
            for _ in range(3):
                net.zero_grad()
                net(torch.ones(1, 2)).sum().backward()
                optimizer.step()
    assert run.at("output") == [(step, 0, 0) for step in range(6)]
    assert [step for step, *_ in run.at("0.weight", "delta")] == [0, 1, 2]
    assert [step for step, *_ in run.at("1.weight", "delta")] == [3, 4, 5]


def said(caplog):
    """What close said of steps and optimizers, without what it says of records."""
    return [
        record.message.partition(": run memory, rank 0: ")[2].rpartition("; ")[0]
        for record in caplog.records
        if record.levelno == logging.INFO and "weighs" not in record.message
    ]


def gan():
    both = nn.ModuleDict({"G": nn.Linear(2, 2), "D": nn.Linear(2, 1)})
    return both, [torch.optim.SGD(both[one].parameters(), lr=0.1) for one in "DG"]


def one_pass(both):
    anchorlib.anchor(both["D"](both["G"](torch.randn(3, 2))).mean(), "loss").backward()


def test_close_says_what_was_counted(caplog):
    caplog.set_level(logging.INFO, "anchorlib")
    both, optimizers = gan()
    with recording() as run:
        run.session.watch(both, tensors=["*@grad"], optimizer=optimizers)
        for _ in range(3):
            one_pass(both)
            for optimizer in optimizers:
                one_pass(both)
                optimizer.step()
    assert said(caplog) == ["3 steps of 3 passes; D ends pass 1, G the step"]


def test_close_says_which_of_those_that_took_turns_ended_how_many_steps(caplog):
    caplog.set_level(logging.INFO, "anchorlib")
    both, optimizers = gan()
    with recording():
        for optimizer in optimizers:
            for _ in range(3):
                one_pass(both)
                optimizer.step()
    assert said(caplog) == ["6 steps of 1 pass; SGD 1 ends 3 steps, SGD 2 3 steps"]


def test_close_says_that_what_followed_the_last_step_is_a_step_of_the_run(caplog):
    caplog.set_level(logging.INFO, "anchorlib")
    both, (optimizer, _) = gan()
    with recording() as run:
        for _ in range(6):
            one_pass(both)
            optimizer.step()
        anchorlib.anchor(torch.ones(2), "accuracy")
    assert said(caplog) == [
        "6 steps of 1 pass, ended by SGD; what followed them is recorded as step 6"
    ]
    assert [step for step, *_ in run.at("accuracy")] == [6]


def test_close_is_brief_where_there_is_one_optimizer_or_no_step(caplog):
    caplog.set_level(logging.INFO, "anchorlib")
    both, (optimizer, _) = gan()
    with recording():
        one_pass(both)
    assert said(caplog) == [""]
    with recording():
        one_pass(both)
        optimizer.step()
    assert said(caplog) == ["", "1 step of 1 pass, ended by SGD"]


@pytest.mark.slow
def test_a_step_of_many_optimizers_costs_each_of_them_the_same():
    def calls(many):
        """The function calls of one step of so many optimizers, of a layer each."""
        net = nn.Sequential(*(nn.Linear(2, 2) for _ in range(many)))
        optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in net]
        counted = Counter()

        def step():
            net(torch.ones(1, 2)).sum().backward()
            for optimizer in optimizers:
                optimizer.step()

        with recording() as run:
            run.session.watch(net, tensors="*", optimizer=optimizers)
            for _ in range(2):  # the first finds streams and sites
                step()
            sys.setprofile(lambda _frame, event, _of: counted.update([event]))
            try:
                step()
            finally:
                sys.setprofile(None)
        return counted["call"] + counted["c_call"]

    assert calls(120) < 4.5 * calls(30)


def test_close_says_nothing_of_passes_where_none_was_seen(caplog):
    caplog.set_level(logging.INFO, "anchorlib")
    with recording() as run:
        run.session.step()
    assert said(caplog) == ["1 step, ended by session.step()"]


@pytest.mark.parametrize("recorded", [{}, {"tensors": ["output@value"]}, {"steps": range(1)}])
def test_passes_are_counted_alike_whatever_is_recorded(caplog, recorded):
    caplog.set_level(logging.INFO, "anchorlib")
    both, optimizers = gan()
    with recording() as run:
        for name, optimizer in zip("GD", reversed(optimizers), strict=True):
            run.session.watch(both[name], optimizer=optimizer, prefix=name, **recorded)
        for _ in range(3):
            both["D"](both["G"](torch.randn(3, 2)).detach()).mean().backward()
            optimizers[0].step()
            both["D"](both["G"](torch.randn(3, 2))).mean().backward()
            optimizers[1].step()
    assert said(caplog) == ["3 steps of 2 passes; D ends pass 0, G the step"]
    assert run.at("D.output")[:2] == [(0, 0, 0), (0, 1, 0)]


def test_close_says_what_was_recorded_and_where(caplog):
    caplog.set_level(logging.INFO, "anchorlib")
    with recording() as run:
        anchorlib.anchor(torch.ones(250), "x")
        run.session.step()
    counted = "1 step of 1 pass, ended by session.step(); 1 record, 1.0 kB, in anchors"
    assert caplog.messages[-1] == f"anchorlib: run memory, rank 0: {counted}"


def test_the_header_says_what_ends_the_step():
    both, optimizers = gan()
    with recording() as run:
        run.session.watch(both, tensors=["*@grad"], optimizer=optimizers)
        for _ in range(2):
            for optimizer in optimizers:
                one_pass(both)
                optimizer.step()
    assert run.sink.entries["steps.ended_by"] == "SGD of G"
    with recording() as run:
        one_pass(both)
        run.session.step()
    assert run.sink.entries["steps.ended_by"] == "session.step()"


def test_close_says_that_steps_were_ended_by_hand(caplog):
    caplog.set_level(logging.INFO, "anchorlib")
    both, optimizers = gan()
    with recording() as run:
        for _ in range(3):
            for optimizer in optimizers:
                one_pass(both)
                optimizer.step()
            run.session.step()
    # The first of them had ended a step before the first `session.step()`.
    assert said(caplog) == [
        "4 steps of 1 to 2 passes, ended by session.step(); SGD 1 ends the step and pass 0, "
        "SGD 2 passes 0 to 1"
    ]


def test_a_step_that_only_the_hand_ended_is_not_said_to_be_an_optimizers(caplog):
    """The watched optimizer never steps, and another one stepped once inside."""
    caplog.set_level(logging.INFO, "anchorlib")
    model = nn.Linear(2, 2)
    watched, other = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    with recording() as run:
        run.session.watch(model, optimizer=watched)
        model(torch.ones(1, 2)).sum().backward()
        other.step()
        run.session.step()
    assert "ended by session.step()" in said(caplog)[0]


def test_forwards_without_gradients_are_no_passes_of_a_step(caplog):
    caplog.set_level(logging.INFO, "anchorlib")
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording() as run:
        run.session.watch(model, optimizer=optimizer)
        for _ in range(2):
            with torch.no_grad():
                for _ in range(3):
                    model(torch.ones(1, 2))
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    assert said(caplog) == ["2 steps of 1 pass, ended by SGD"]


class Clipped(torch.optim.SGD):
    """An optimizer as people write them: it does something, and lets its base class step."""

    def step(self, closure=None):
        parameters = [one for group in self.param_groups for one in group["params"]]
        nn.utils.clip_grad_norm_(parameters, 0.5)
        return super().step(closure)


@pytest.mark.parametrize("with_closure", [False, True])
def test_a_step_that_calls_the_step_of_its_base_class_is_one_step(tmp_path, with_closure):
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)  # torch hooks SGD's step from here on
    model = nn.Linear(4, 3)
    optimizer = Clipped(model.parameters(), lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.randn(2, 4)).square().mean()
        loss.backward()
        return loss

    with anchorlib.start("run", store=tmp_path, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(3):
            if with_closure:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
    run = anchorlib.open_run("run", tmp_path)
    for selector in ("output@value", "weight@grad", "weight@updated", "weight@pass_grad"):
        assert list(run[selector].columns["step"]) == [0, 1, 2], selector
