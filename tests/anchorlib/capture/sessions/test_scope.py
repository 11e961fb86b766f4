"""`phases=` and `steps=`: what they leave out changes nothing in the rest, and costs little."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import anchorlib
from anchorlib import All, EveryN, Final, OptionError, Sum, Summary
from anchorlib.capture.recording.recorder import Recorder
from anchorlib.scope import Scope, scope
from tests.recording import recording
from tests.seeds import examples

ONLY = [
    {"steps": 2},
    {"steps": range(1, 4)},
    {"steps": [0, range(3, 5)]},
    {"phases": "train"},
    {"phases": ("eval", "probe")},
    {"phases": ("no_grad",)},
    {"phases": ["train", "eval"], "steps": range(0, 6, 2)},
]


def keeps(only, coordinates):
    steps, phases = only.get("steps"), only.get("phases")
    several = steps if isinstance(steps, list) else [steps]
    return (
        steps is None
        or any(coordinates.step in (one if isinstance(one, range) else (one,)) for one in several)
    ) and (phases is None or coordinates.phase in ([phases] if isinstance(phases, str) else phases))


class Net(nn.Module):
    def __init__(self, reentrant=None):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 2)
        self.reentrant = reentrant

    def forward(self, x):
        if self.reentrant is None:
            h = self.first(x)
        else:
            h = torch.utils.checkpoint.checkpoint(self.first, x, use_reentrant=self.reentrant)
        return self.last(anchorlib.anchor(h, "h"))


def trained(start=None, watch=None, *, reentrant=None):
    """What a training with passes, an evaluation, a probe and a look without gradients records."""
    torch.manual_seed(0)
    model = Net(reentrant)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with recording(**start or {}) as run:
        run.session.watch(model, tensors="*", optimizer=optimizer, **watch or {})
        for _ in range(5):
            optimizer.zero_grad()
            with torch.no_grad():
                model(torch.ones(1, 3, requires_grad=True))
            for _ in range(2):
                out = model(torch.ones(4, 3, requires_grad=True))
                anchorlib.anchor(out.sum(), "loss").backward()
            with torch.no_grad():
                model.eval()(torch.ones(1, 3, requires_grad=True))
            model.train()
            with run.session.phase("probe"):
                model(torch.ones(2, 3, requires_grad=True)).mean().backward()
            optimizer.step()
    found = {(r.name, r.kind, r.coordinates): r.raw.tobytes() for r in run.sink.records}
    assert len(found) == len(run.sink.records)
    assert not run.session.counters.skipped
    return found


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [None, False, True])
@pytest.mark.parametrize("only", ONLY, ids=str)
def test_a_session_records_in_its_scope_what_it_records_without_one(only, reentrant):
    whole = trained(reentrant=reentrant)
    kept = {where: raw for where, raw in whole.items() if keeps(only, where[2])}
    assert trained(start=only, reentrant=reentrant) == kept
    assert kept
    assert kept != whole


@pytest.mark.parametrize("only", ONLY, ids=str)
def test_a_watched_model_has_a_scope_of_its_own_and_anchors_that_of_the_session(only):
    kept = {
        where: raw
        for where, raw in trained().items()
        if where[0] in {"h", "loss"} or keeps(only, where[2])
    }
    assert trained(watch=only) == kept


def test_what_the_session_leaves_out_no_watched_model_brings_back():
    found = trained(start={"steps": range(3)}, watch={"steps": range(2, 9), "phases": "train"})
    places = {(where[2].step, where[2].phase) for where in found if where[0] == "first"}
    assert places == {(2, "train")}


def test_scopes_of_one_tensor_add_up():
    model = nn.Linear(2, 2)
    with recording() as run:
        run.session.watch(model, tensors="output@value", steps=range(2))
        run.session.watch(model, tensors="output@value", steps=4, phases="train")
        run.session.watch(model, tensors="output@value", mode=Summary, steps=3)
        for _ in range(6):
            model(torch.ones(1, 2))
            with run.session.phase("eval"):
                model(torch.ones(1, 2))
            run.session.step()
    found = [(r.step, r.coordinates.phase) for r in run.records("output", mode="all")]
    assert found == [(0, "train"), (0, "eval"), (1, "train"), (1, "eval"), (4, "train")]
    assert [r.step for r in run.records("output", mode="summary")] == [3, 3]


def observed(mode, steps, values=range(10)):
    with recording(mode=mode, steps=steps) as run:
        for value in values:
            anchorlib.anchor(torch.tensor(float(value)), "x")
            run.session.step()
    return [(r.step, r.array.item(), r.count) for r in run.records("x")]


def test_sums_and_finals_fold_what_is_recorded_alone():
    assert observed(Sum(4), range(2, 7)) == [(3, 5.0, 2), (6, 15.0, 3)]
    assert observed(Final(4), range(2, 7)) == [(3, 3.0, 1), (6, 6.0, 1)]
    assert observed(Sum("run"), [1, range(5, 7)]) == [(6, 12.0, 3)]
    assert observed(EveryN(2), range(3, 8)) == [(4, 4.0, 1), (6, 6.0, 1)]
    assert observed(EveryN(2, unit="step"), range(3, 8)) == [(3, 3.0, 1), (5, 5.0, 1), (7, 7.0, 1)]


def test_a_window_is_emitted_when_the_last_step_of_the_scope_has_ended():
    with recording(mode=Sum("run"), steps=range(3)) as run:
        for step in range(4):
            anchorlib.anchor(torch.ones(1), "x")
            run.session.step()
            assert len(run.records("x")) == (step >= 2)


def test_nothing_of_a_step_that_is_left_out_reaches_the_recorder(monkeypatch):
    taken = []
    for name in ("observe", "quick"):
        real = getattr(Recorder, name)

        def seen(self, *given, _real=real, **more):
            taken.append(given)
            return _real(self, *given, **more)

        monkeypatch.setattr(Recorder, name, seen)
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    optimizer = torch.optim.Adam(model.parameters())

    def step(session):
        optimizer.zero_grad()
        x = anchorlib.anchor(torch.ones(1, 2) * 2, "x")
        anchorlib.anchor(model(x).sum(), "loss").backward()
        optimizer.step()

    with recording(steps=range(1)) as run:
        run.session.watch(model, optimizer=optimizer)
        step(run.session)
        assert len(taken) > 10
        taken.clear()
        for _ in range(3):
            step(run.session)
    assert len(taken) <= 3  # the root's output, by which the passes of a step are told


def test_a_late_gradient_belongs_to_the_step_of_its_forward():
    with recording(steps=0) as run:
        x = torch.ones(1, requires_grad=True) * 2
        anchorlib.anchor(x, "x")
        run.session.step()
        x.sum().backward()
    assert run.at("x", "grad") == [(0, 0, 0)]


@pytest.mark.parametrize("wrong", [-1, True, 1.5, "0:3", [range(2), "3"], range(-2, 3), [[1]]])
def test_what_is_no_steps_is_refused_in_one_line(wrong):
    for refused in (lambda: recording(steps=wrong).__enter__(), lambda: watched(steps=wrong)):
        with pytest.raises(
            OptionError, match="steps is a whole number from 0 on, a range"
        ) as fault:
            refused()
        assert "\n" not in str(fault.value)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"steps": []}, "has no step in it"),
        ({"steps": range(3, 3)}, "has no step in it"),
        ({"phases": ()}, "names no phase"),
        ({"phases": 3}, "is a list of phases"),
        ({"phases": [""]}, "phases: "),
        ({"phases": [3]}, r"phases is a list of phases, as \('train',\), not \[3\]"),
    ],
)
def test_a_scope_with_nothing_in_it_is_refused(wrong, said):
    with pytest.raises(OptionError, match=said):
        recording(**wrong).__enter__()
    with pytest.raises(OptionError, match=said):
        watched(**wrong)


def watched(**scope):
    with recording() as run:
        run.session.watch(nn.Linear(1, 1), **scope)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("0:3", {0, 1, 2}),
        (" 4 , :2", {0, 1, 4}),
        ("2:9:3", {2, 5, 8}),
        ("8:", {8, 9}),
        ("1,1:1", {1}),
    ],
)
def test_the_environment_says_steps_as_ranges(monkeypatch, text, steps):
    monkeypatch.setenv("ANCHOR_STEPS", text)
    found = scope(environ=os.environ).steps
    assert {step for step in range(10) if step in found} == steps


@pytest.mark.parametrize("text", ["x", "1-3", "0:3:0", "-1", "3:3", "0:3,,4", "9" * 5000])
def test_steps_in_the_environment_that_are_none_are_refused_by_name(monkeypatch, text):
    monkeypatch.setenv("ANCHOR_STEPS", text)
    with pytest.raises(OptionError, match="ANCHOR_STEPS"):
        recording().__enter__()


def test_the_environment_names_phases_and_an_argument_beats_it(monkeypatch):
    monkeypatch.setenv("ANCHOR_PHASES", "eval, probe")
    monkeypatch.setenv("ANCHOR_STEPS", "7")
    assert scope(environ=os.environ).phases == {"eval", "probe"}
    assert scope("train", 1, environ=os.environ) == scope("train", 1)


RANGES = st.builds(range, st.integers(0, 12), st.integers(0, 12), st.integers(1, 3)).filter(bool)


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(st.lists(RANGES, min_size=1, max_size=3), st.lists(RANGES, min_size=1, max_size=3))
def test_a_scope_within_another_has_what_both_have(some, others):
    both = Scope(steps=scope(steps=some).steps).within(scope(steps=others))
    for step in range(15):
        inside = any(step in one for one in some) and any(step in one for one in others)
        assert (step in both.steps) == inside
        assert both.records_nothing(step, "train") == (not inside)
        assert inside <= (step <= both.steps.last)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.slow)])
@pytest.mark.parametrize("only", [{"steps": range(1, 3)}, {"phases": "train"}], ids=str)
def test_compiled_code_has_the_same_scope(backend, only):
    def run_once(start):
        torch.compiler.reset()
        torch.manual_seed(0)
        model = Net()
        compiled = torch.compile(model, backend=backend)
        with recording(**start) as run:
            run.session.watch(model, tensors=["first", "first@grad", "h"][:2])
            for _ in range(4):
                compiled(torch.ones(2, 3, requires_grad=True)).sum().backward()
                with torch.no_grad():
                    compiled.eval()(torch.ones(1, 3))
                compiled.train()
                run.session.step()
        return {(r.name, r.kind, r.coordinates): r.raw.tobytes() for r in run.sink.records}

    kept = {where: raw for where, raw in run_once({}).items() if keeps(only, where[2])}
    assert run_once(only) == kept
    assert {where[0] for where in kept} == {"h", "first"}


def test_a_scope_in_which_nothing_was_made_is_told_at_close(caplog):
    with recording(steps=7):
        anchorlib.anchor(torch.ones(1), "x")
    assert caplog.messages == [
        "anchorlib: run memory, rank 0: 0 records, 0 B, in anchors: nothing was observed in the "
        "phases and steps that were asked for"
    ]
    caplog.clear()
    with recording(steps=0):
        anchorlib.anchor(torch.ones(1), "x")
    assert caplog.messages == []


def test_every_mode_takes_a_scope():
    for mode in (All, Summary, Sum, Final, EveryN(1)):
        with recording(mode=mode, steps=1) as run:
            for _ in range(3):
                anchorlib.anchor(torch.ones(1), "x")
                run.session.step()
        assert run.at("x") == [(1, 0, 0)]
