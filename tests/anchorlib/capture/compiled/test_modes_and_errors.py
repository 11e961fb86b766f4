"""Modes in compiled code, the errors of a wrong call, and graphs that serve every session."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from anchorlib import (
    All,
    EveryN,
    Final,
    InvalidNameError,
    ModeError,
    NotATensorError,
    Sum,
    Summary,
    anchor,
)
from tests.anchorlib.capture.compiled.observing import (
    BACKENDS,
    QUIET,
    TRACING,
    X,
    assert_compiled_as_eager,
    observed,
    record,
    weight,
)
from tests.recording import recording

pytestmark = QUIET

A_MODE = Sum(window=2)


def with_modes(x, w):
    h = x @ w
    for _ in range(4):
        h = torch.sin(h)
        anchor(h, "sum", mode=Sum(window=2))
        anchor(h, "class", Sum)
        anchor(h, "global", mode=A_MODE)
        anchor(h, "every", EveryN(3))
        anchor(h, "steps", EveryN(2, unit="step"))
        anchor(h, "several", ["sum", Final, EveryN(2)])
        anchor(h, "tuple", (All(), "all"))
        anchor(h, "summary", "summary")
        anchor(h, "run", Final("run"))
    return h.sum()


@pytest.mark.parametrize("backend", BACKENDS)
def test_modes_act_in_fullgraph_code_as_in_eager_code(backend):
    def act(function, session):
        w = weight()
        for n in range(5):
            function(X * n, w).backward()
            session.step()

    run = assert_compiled_as_eager(with_modes, backend, act)
    assert {p.mode for p in observed(run)} == {
        "all",
        "every_n:2",
        "every_n:2:unit=step",
        "every_n:3",
        "final",
        "final:window=run",
        "sum",
        "sum:window=2",
        "summary",
    }


WRONG = {
    "no n": lambda h: anchor(h, "h", EveryN()),
    "n of 0": lambda h: anchor(h, "h", EveryN(0)),
    "half an n": lambda h: anchor(h, "h", EveryN(2.5)),
    "never due": lambda h: anchor(h, "h", EveryN(5, "step", 2)),
    "no window": lambda h: anchor(h, "h", Sum(0)),
    "the class": lambda h: anchor(h, "h", EveryN),
    "unknown": lambda h: anchor(h, "h", "fold"),
    "a number": lambda h: anchor(h, "h", 3),
    "none of them": lambda h: anchor(h, "h", []),
    "no name": lambda h: anchor(h, ""),
    "half a character": lambda h: anchor(h, "\ud800"),
    "a number as name": lambda h: anchor(h, 5),
    "an int": lambda h: anchor(3, "h"),
    "nothing": lambda h: anchor(None, "h"),
    "a list": lambda h: anchor([h], "h"),
}


BY_ALL = ["never due", "no name", "an int"]  # inductor takes its time


@pytest.mark.parametrize(
    ("case", "backend"),
    [
        *((case, backend) for case in WRONG for backend in TRACING),
        *(pytest.param(case, "inductor", marks=pytest.mark.long) for case in BY_ALL),
    ],
)
def test_errors_reach_the_user_as_eager_code_raises_them(case, backend):
    def function(x, w):
        h = x @ w
        WRONG[case](h)
        return h.sum()

    with recording():
        with pytest.raises((ModeError, InvalidNameError, NotATensorError)) as eager:
            function(X, weight())
        with pytest.raises(type(eager.value)) as compiled:
            torch.compile(function, fullgraph=True, backend=backend)(X, weight())
    assert str(compiled.value) == str(eager.value)


class Graphs:
    """A backend that keeps what it is given."""

    def __init__(self):
        self.code = []

    def __call__(self, module, _inputs):
        self.code.append(module.code)
        return module


def simple(x, w):
    h = torch.tanh(x @ w)
    anchor(h, "h")
    return (h * h).sum()


def test_without_a_session_there_is_no_operator_in_the_graph():
    graphs = Graphs()
    torch.compile(simple, fullgraph=True, backend=graphs)(X, weight())
    (code,) = graphs.code
    assert "anchorlib" not in code


def test_sessions_that_come_and_go_share_one_more_graph_and_record_each_their_own():
    graphs = Graphs()
    function = torch.compile(simple, fullgraph=True, backend=graphs)
    modes = [All, Sum, EveryN(2), Final, Summary, Sum("run")]
    counts = []
    for mode in modes:
        function(X, weight())
        with recording(mode=mode) as run:
            for _ in range(2):
                function(X, weight()).backward()
                run.session.step()
        counts.append((len(run.records("h")), len(run.records("h", "grad"))))
    function(X, weight())
    assert len(graphs.code) == 2
    assert counts == [(2, 2), (2, 2), (1, 1), (2, 2), (2, 2), (1, 1)]


def test_what_a_mode_selects_is_decided_without_compiling_again():
    graphs = Graphs()
    function = torch.compile(simple, fullgraph=True, backend=graphs)

    def act(function, session):
        for _ in range(30):
            function(X, weight()).backward()
            session.step()

    run = record(function, act, mode=EveryN(10))
    assert run.at("h") == run.at("h", "grad") == [(9, 0, 0), (19, 0, 0), (29, 0, 0)]
    assert len(graphs.code) == 1


def test_a_session_that_wants_no_anchor_records_none():
    run = record(torch.compile(simple, backend="aot_eager"), tensors=["other"])
    assert run.names() == []


@pytest.mark.parametrize("backend", TRACING)
def test_a_backward_that_comes_after_its_session_is_ignored(backend):
    function = torch.compile(simple, fullgraph=True, backend=backend)
    with recording() as run:
        loss = function(X, weight())
    with recording() as other:
        loss.backward()
    assert run.names() == ["h@value"]
    assert other.names() == []
    assert other.session.counters.skipped == {}


def test_modes_of_one_tensor_and_name_are_one_series_however_they_are_given():
    def function(x, w):
        h = x @ w
        anchor(h, "h", "sum")
        anchor(h, "h", Sum)
        anchor(h, "h", Sum(window=1))
        return h.sum()

    run = record(torch.compile(function, fullgraph=True, backend="aot_eager"))
    assert [r.count for r in run.records("h")] == [3, 3]
    assert np.allclose(run.arrays("h")[0], 3 * (X @ weight()).detach().numpy())
