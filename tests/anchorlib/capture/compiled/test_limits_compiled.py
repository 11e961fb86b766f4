"""Where anchors in compiled code do less: counted, refused with a reason, or reported."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from anchorlib import EveryN, UnsupportedError, anchor
from anchorlib.capture.compiled import traced_constants as tracing
from anchorlib.capture.inline import hooks
from anchorlib.capture.recording import recorder
from anchorlib.capture.sessions.active import active_session, open_session
from anchorlib.capture.sessions.settings import StartArguments, settings
from anchorlib.sinks import MemorySink
from tests.anchorlib.capture.compiled.observing import (
    AOT,
    BACKENDS,
    QUIET,
    TRACING,
    X,
    observed,
    record,
    said,
    weight,
)
from tests.recording import recording

pytestmark = QUIET


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(weight().detach())

    def forward(self, x):
        h = torch.tanh(x @ self.w)
        anchor(h, "h")
        return h.sum()


@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_have_no_anchors_and_they_are_counted(strict):
    with recording() as run:
        program = torch.export.export(Net(), (X,), strict=strict)
    assert "anchor" not in str(program.graph)
    assert run.sink.records == []
    assert run.session.counters.skipped == {"torch.export": 1}


@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_of_a_watched_model_have_no_operators_of_ours(strict):
    model = nn.Sequential(nn.Linear(*reversed(weight().shape)), nn.Tanh())
    with recording() as run:
        run.session.watch(model, tensors=["0", "output"])
        program = torch.export.export(model, (torch.ones(2, model[0].in_features),), strict=strict)
    assert "anchor" not in str(program.graph)
    assert run.sink.records == []
    assert run.session.counters.skipped == {"torch.export": 2}


def by_condition(x, w):
    def one(h):
        h = torch.sin(h)
        anchor(h, "sin")
        return h

    def other(h):
        h = torch.cos(h)
        anchor(h, "cos")
        return h

    return torch.cond(x.sum() > 0, one, other, (x @ w,)).sum()


@torch.compiler.nested_compile_region
def region(h):
    h = torch.sin(h)
    anchor(h, "h")
    return h


def by_region(x, w):
    return (region(x @ w) + region(x @ w * 2)).sum()


@pytest.mark.filterwarnings("ignore:invoke_subgraph traced multiple backward graphs")
@pytest.mark.parametrize("backend", AOT)
def test_bodies_of_control_flow_give_values_and_count_their_gradients(backend):
    def act(function, session):
        for sign in (1, -1):
            function(sign * torch.ones(4, 3), weight()).backward()
            session.step()

    run = record(torch.compile(by_condition, fullgraph=True, backend=backend), act)
    assert [(p.name, p.kind, p.step) for p in observed(run)] == [
        ("sin", "value", 0),
        ("cos", "value", 1),
    ]
    assert run.session.counters.skipped == {"inside cond": 2}
    assert [(g.name, g.kind, g.first_step) for g in run.sink.gaps] == [
        ("sin", "grad", 0),
        ("cos", "grad", 1),
    ]
    run = record(torch.compile(by_region, fullgraph=True, backend=backend))
    assert run.at("h") == [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)]


def scanned(x, w):
    def step(carry, row):
        h = torch.sin(carry + row)
        anchor(h, "h")
        return h, h.clone()

    return torch._higher_order_ops.scan(step, w[0], x @ w)[1].sum()


def mapped(x, w):
    def body(row):
        h = torch.sin(row)
        anchor(h, "h")
        return h

    return torch._higher_order_ops.map(body, x @ w).sum()


@pytest.mark.filterwarnings("ignore:invoke_subgraph traced multiple backward graphs")
@pytest.mark.parametrize(
    ("function", "operator", "calls"),
    [(scanned, "scan", 4), (mapped, "map_impl", 4), (by_region, "invoke_subgraph", 2)],
    ids=["scan", "map", "region"],
)
def test_every_session_and_step_counts_the_gradients_it_loses(function, operator, calls):
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for selected in (None, None, ["h@value"]):  # code that was compiled for another session too
        run = record(compiled, tensors=selected)
        assert len(run.records("h")) == 2 * calls
        assert run.records("h", "grad") == []
        lost = {} if selected else {f"inside {operator}": 2 * calls}
        assert run.session.counters.skipped == lost


def simple(x, w):
    h = x @ w
    anchor(h, "h")
    return h.sum()


@pytest.mark.parametrize("backend", TRACING)
def test_a_refusal_of_the_recorder_reaches_the_user(backend, monkeypatch):
    def capturing(_x):
        raise UnsupportedError("an anchor inside CUDA graph capture would record once")

    function = torch.compile(simple, fullgraph=True, backend=backend)
    with recording() as run:
        function(X, weight()).backward()
        run.session._queue.putter = None  # the compiled put asks nobody
        monkeypatch.setattr(recorder, "quick_place", lambda _x: None)
        monkeypatch.setattr(recorder, "is_plain", lambda _x: False)
        monkeypatch.setattr(recorder, "skip_reason", capturing)
        with pytest.raises(UnsupportedError, match="CUDA graph capture"):
            function(X, weight())
    assert len(run.sink.records) == 2


def test_a_hook_of_a_watched_model_counts_what_an_anchor_would_refuse(monkeypatch):
    def capturing(_x):
        raise UnsupportedError("not here")

    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    with recording() as run:
        run.session.watch(model, tensors=["0@value"])
        call = torch.compile(model, fullgraph=True, backend="aot_eager")
        run.session._queue.putter = None
        monkeypatch.setattr(recorder, "quick_place", lambda _x: None)
        monkeypatch.setattr(recorder, "is_plain", lambda _x: False)
        monkeypatch.setattr(recorder, "skip_reason", capturing)
        call(X).sum().backward()
    assert run.session.counters.skipped == {"UnsupportedError: not here": 1}


@pytest.mark.parametrize("backend", TRACING)
def test_an_older_torch_is_refused_in_one_line(backend, monkeypatch):
    monkeypatch.setattr(tracing, "_VERSION", (2, 12))
    with recording(), pytest.raises(UnsupportedError, match=r"need torch 2\.13, this is"):
        torch.compile(simple, fullgraph=True, backend=backend)(X, weight())


def test_anchors_that_a_backend_takes_out_are_reported_once(caplog):
    def backend(module, _inputs):
        for node in list(module.graph.nodes):
            if "anchorlib" in str(node.target):
                module.graph.erase_node(node)
        module.recompile()
        return module

    function = torch.compile(simple, fullgraph=True, backend=backend)
    with recording() as run, torch.no_grad():
        for _ in range(4):
            function(X, weight())
            run.session.step()
    assert run.sink.records == []
    (line,) = said(caplog)
    assert "anchors that recorded nothing: h;" in line


def test_code_that_is_compiled_but_never_run_is_reported_at_the_end(caplog):
    def never_run(_module, _inputs):
        return lambda *_: (torch.zeros(()), torch.zeros(5, dtype=torch.int64))

    record(torch.compile(simple, backend=never_run), lambda f, _: f(X, weight().detach()))
    assert "anchors that recorded nothing: h;" in caplog.text


def test_what_the_first_anchor_starts_may_be_compiled(monkeypatch):
    sink = MemorySink()
    hooks.arm(lambda: open_session(settings(StartArguments("memory")), sink) and None)
    try:
        torch.compile(simple, fullgraph=True, backend="aot_eager")(X, weight()).backward()
        session = active_session()
        assert session is not None
        session.close()
    finally:
        hooks.deactivate()
    assert [(r.name, r.kind) for r in sink.records] == [("h", "value"), ("h", "grad")]


@pytest.mark.parametrize("backend", TRACING)
def test_a_graph_of_another_process_is_numbered_as_it_runs(backend, monkeypatch):
    from anchorlib.capture.compiled import observer as observing

    function = torch.compile(simple, fullgraph=True, backend=backend)
    with recording() as run:
        function(X, weight())
        monkeypatch.setattr(observing, "program_of", lambda _spot: None)
        function(X, weight()).backward()
        function(X, weight()).backward()
    assert run.at("h") == [(0, 0, 0), (0, 0, 1), (0, 1, 0)]
    assert run.at("h", "grad") == [(0, 0, 1), (0, 1, 0)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loop_in_the_graph_counts_its_calls_as_it_makes_them(backend):
    def function(x, w):
        h = anchor(x @ w, "before")

        def body(i, h):
            h = torch.sin(h)
            anchor(h, "body", EveryN(2))
            return i + 1, h

        start = torch.tensor(0)
        _, h = torch._higher_order_ops.while_loop(lambda i, _: i < 4, body, (start, h))
        return anchor(h, "after").sum()

    def act(function, session):
        for _ in range(2):
            with torch.no_grad():
                function(X, weight())
            session.step()

    run = record(torch.compile(function, fullgraph=True, backend=backend), act)
    assert run.at("before") == run.at("after") == [(0, 0, 0), (1, 0, 0)]
    assert run.at("body") == [(0, 0, 1), (0, 0, 3), (1, 0, 1), (1, 0, 3)]
