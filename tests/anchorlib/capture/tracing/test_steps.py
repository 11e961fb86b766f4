"""A trace begins and ends at step boundaries, and never gets in the way of a training."""

from __future__ import annotations

import os
import threading

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import anchorlib
from anchorlib.capture.sessions.active import open_session
from anchorlib.capture.sessions.settings import StartArguments, settings
from anchorlib.capture.tracing import tracer, value_digests
from anchorlib.errors import OptionError
from anchorlib.operations import gaps_of, read_entries
from anchorlib.sinks import MemorySink
from tests.recording import recording


def modes():
    return torch._C._len_torch_dispatch_stack()


def steps_of(run):
    return sorted({op.step for op in read_entries(run.sink.traced)})


def reasons(run):
    return {gap.reason: (gap.first_step, gap.last_step) for gap in gaps_of(run.sink.traced)}


def make_training():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step():
        optimizer.zero_grad()
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()

    return model, optimizer, step


def test_only_the_steps_that_were_asked_for_are_traced():
    model, optimizer, step = make_training()
    with recording() as run:
        run.session.watch(model, optimizer=optimizer)
        run.session.trace(range(1, 3))
        active = []
        for _ in range(5):
            active.append(modes())
            step()
    assert active == [0, 1, 1, 0, 0]
    assert steps_of(run) == [1, 2]
    assert not run.session.counters.skipped


def test_a_trace_that_is_asked_for_within_a_step_begins_with_the_next():
    model, optimizer, step = make_training()
    with recording() as run:
        run.session.watch(model, optimizer=optimizer)
        step()
        loss = model(torch.randn(4, 3)).sum()
        run.session.trace(1)
        assert not modes()
        loss.backward()
        optimizer.step()
        step()
        step()
    assert steps_of(run) == [2]


def test_a_trace_follows_steps_that_end_by_hand():
    with recording(first_step=7) as run:
        run.session.trace(2)
        for _ in range(4):
            torch.ones(2).sin()
            run.session.step()
    assert steps_of(run) == [7, 8]
    assert len(read_entries(run.sink.traced)) == 4


def test_the_environment_asks_for_a_trace(monkeypatch):
    monkeypatch.setenv("ANCHOR_TRACE", "1:2")
    with recording() as run:
        for _ in range(3):
            torch.ones(2).sin()
            run.session.step()
    assert steps_of(run) == [1]


def test_a_session_that_an_anchor_starts_traces_from_the_next_step_on(monkeypatch):
    monkeypatch.setenv("ANCHOR_TRACE", "0:2")
    sink = MemorySink()
    with open_session(settings(StartArguments("memory")), sink, midway=True) as session:
        for _ in range(3):
            torch.ones(2).sin()
            session.step()
    assert {op.step for op in read_entries(sink.traced)} == {1}
    (gap,) = gaps_of(sink.traced)
    assert (gap.reason, gap.first_step, gap.last_step) == (tracer.MIDWAY, 0, 0)


@pytest.mark.parametrize("text", ["two", "2", "3:3", "2:1", "1:", "-1:2", "0:2,5:6"])
def test_what_is_no_range_in_the_environment_is_refused_in_one_line(monkeypatch, text):
    monkeypatch.setenv("ANCHOR_TRACE", text)
    with pytest.raises(OptionError, match="ANCHOR_TRACE") as told, recording():
        pass
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("steps", "options"),
    [
        (0, {}),
        (-1, {}),
        (True, {}),
        ("2", {}),
        (range(0), {}),
        (range(0, 4, 2), {}),
        (2, {"digests": "all"}),
        (2, {"values": ["fc1", 3]}),
    ],
)
def test_a_wrong_call_of_trace_is_refused_where_it_is_made(steps, options):
    with recording() as run, pytest.raises(OptionError):
        run.session.trace(steps, **options)
    assert not modes()


def test_steps_that_are_over_are_refused():
    with recording(first_step=5) as run, pytest.raises(OptionError, match="0:2 are over"):
        run.session.trace(range(2))


def test_another_trace_takes_the_place_of_the_first():
    with recording() as run:
        run.session.trace(5)
        torch.ones(2).sin()
        run.session.trace(1, digests="none")
        torch.ones(2).cos()
        run.session.step()
        torch.ones(2).tan()
    assert not modes()
    assert "aten.tan.default" not in {op.op for op in read_entries(run.sink.traced)}


def test_a_closed_session_leaves_no_mode_and_keeps_the_unfinished_step():
    with recording() as run:
        run.session.trace(2)
        torch.ones(2).sin()
    assert not modes()
    assert [op.op for op in read_entries(run.sink.traced)][-1] == "aten.sin.default"


def test_a_fault_of_ours_ends_the_trace_and_the_training_goes_on(monkeypatch, caplog):
    def broken(*_):
        raise ValueError("no digest today")

    monkeypatch.setattr(value_digests.Digester, "digest", broken)
    with recording() as run:
        run.session.trace(2)
        assert torch.equal(torch.zeros(2).cos(), torch.ones(2))
        run.session.step()
        run.session.step()
    assert not modes()
    assert run.session.counters.skipped == {"ValueError: no digest today": 1}
    assert reasons(run) == {"ValueError: no digest today": (0, 0)}
    assert caplog.text.count("no digest today") == 1


def test_an_error_of_the_users_operation_is_the_users():
    with recording() as run:
        run.session.trace(1)
        with pytest.raises(RuntimeError, match="size"):
            torch.ones(2) + torch.ones(3)
        torch.ones(2).sin()
    assert not run.session.counters.skipped
    assert "aten.add.Tensor" not in {op.op for op in read_entries(run.sink.traced)}


def test_a_step_inside_a_mode_of_the_users_is_a_gap_and_the_mode_sees_everything():
    with recording() as run:
        with FlopCounterMode(display=False) as counter:
            run.session.trace(2)
            torch.ones(2, 2) @ torch.ones(2, 2)
            run.session.step()
            assert counter.get_total_flops() == 16
        run.session.step()
    assert not modes()
    reason = "operations of a step in which another dispatch mode was active"
    assert reasons(run) == {reason: (0, 1)}
    assert run.session.counters.skipped == {reason: 2}


def test_a_mode_of_the_users_that_outlasts_the_traced_steps_stays_whole():
    class Counting(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Counting.seen += 1
            return func(*args, **(kwargs or {}))

    with recording() as run:
        run.session.trace(1)
        with Counting():
            torch.ones(2).sin()
            run.session.step()
            torch.ones(2).cos()
        assert Counting.seen == 4
        run.session.step()
        assert not modes()
    ops = [op.op for op in read_entries(run.sink.traced)]
    assert ops == ["aten.ones.default", "aten.sin.default"]


def test_a_forked_child_traces_nothing():
    with recording() as run:
        run.session.trace(1)
        child = os.fork()
        if not child:
            torch.ones(2).sin()
            os._exit(0 if not run.session._traces._tracer._state.ops else 1)
        _, status = os.waitpid(child, 0)
        assert status == 0
        torch.ones(2).cos()
    assert {op.op for op in read_entries(run.sink.traced)} == {
        "aten.ones.default",
        "aten.cos.default",
    }


def test_a_backward_on_another_thread_disturbs_nothing():
    w = torch.randn(3, requires_grad=True)
    with recording() as run:
        run.session.trace(1)
        loss = w.sin().sum()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
    assert w.grad is not None
    assert not run.session.counters.skipped


def test_a_backward_on_another_thread_is_a_gap():
    w = nn.Parameter(torch.randn(3))
    optimizer = torch.optim.SGD([w], 0.1)
    with recording() as run:
        run.session.trace(2)
        for _ in range(2):
            loss = w.sin().sum()
            thread = threading.Thread(target=loss.backward)
            thread.start()
            thread.join()
            optimizer.step()
        run.session.trace(1)
        w.sin().sum().backward()
        optimizer.step()
    assert reasons(run) == {tracer.ELSEWHERE: (0, 1)}


def test_other_steps_cost_no_look_at_any_operation(monkeypatch):
    looked = []
    digest = value_digests.Digester.digest
    monkeypatch.setattr(
        value_digests.Digester, "digest", lambda *given: looked.append(0) or digest(*given)
    )
    with recording() as run:
        torch.ones(2).sin()
        run.session.step()
        run.session.trace(1)
        torch.ones(2).sin()
        run.session.step()
        count = len(looked)
        torch.ones(2).sin()
    assert len(looked) == count == 3


def test_a_structure_that_runs_again_is_stated_once():
    model, optimizer, step = make_training()
    with recording() as run:
        run.session.watch(model, optimizer=optimizer)
        run.session.trace(4)
        for _ in range(4):
            step()
    structures = [entry["structure"] for entry in run.sink.traced if "structure" in entry]
    rows = [entry for entry in run.sink.traced if "row" in entry]
    assert len(structures) == len(set(structures))
    assert len(rows) > 2 * len(structures)
    at = {n: [op for op in read_entries(run.sink.traced) if op.step == n] for n in (1, 3)}
    assert [op.op for op in at[1]] == [op.op for op in at[3]]
    assert at[1][0].outputs[0].digest != at[3][0].outputs[0].digest


def test_numbers_among_arguments_are_kept_apart_from_structures():
    with recording() as run:
        run.session.trace(2)
        for factor in (0.1, float("inf")):
            torch.ones(2).mul(factor)  # on one line: the line is of the structure
            run.session.step()
    told = [op.args for op in read_entries(run.sink.traced) if "mul" in op.op]
    assert told == ["other=0.1", "other=inf"]
    assert len([entry for entry in run.sink.traced if "structure" in entry]) == 1


def test_a_session_that_records_nothing_traces_nothing():
    with anchorlib.start("r", store="memory-none", rank=1, ranks=[0]) as session:
        session.trace(2)
        torch.ones(2).sin()
        assert not modes()
