"""Forwards that no gradient can reach leave the coordinates of training as they are."""

from __future__ import annotations

import copy
from collections import Counter
from itertools import product

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import anchorlib
from anchorlib import EveryN, Sum
from tests.recording import recording

QUIET = pytest.mark.parametrize("quiet", [torch.no_grad, torch.inference_mode])
WHERE = ("before a step", "between forwards", "after a step")


class Net(nn.Module):
    """routed: with an anchor in a part without gradients, before any other."""

    def __init__(self, how=lambda function, x: function(x), *, routed=False):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(3, 4), nn.Linear(4, 1)
        self.how, self.routed = how, routed

    def part(self, x):
        return anchorlib.anchor(torch.tanh(self.fc1(x)), "h")

    def forward(self, x):
        if self.routed:
            with torch.no_grad():
                anchorlib.anchor(x.mean(), "routing")
        return self.fc2(self.how(self.part, x))


def reentrant(function, x):
    return checkpoint(function, x, use_reentrant=True)


def train(session, watch, monitor, *, where=WHERE[0], make=Net, wrap=lambda model: model):
    """Three steps of two micro-batches, with a forward here or there that only looks."""
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    called = wrap(model)
    watch(session, model, optimizer)
    data = torch.Generator().manual_seed(1)
    other = torch.Generator().manual_seed(2)

    def look(now):
        if now == where:
            monitor(called, torch.randn(5, 3, generator=other, requires_grad=True))

    for _ in range(3):
        look("before a step")
        optimizer.zero_grad()
        for _ in range(2):
            x = torch.randn(5, 3, generator=data, requires_grad=True)
            loss = called(x).pow(2).mean()
            anchorlib.anchor(loss, "loss").backward()
            look("between forwards")
        with torch.no_grad():
            anchorlib.anchor(loss.detach(), "metric")
        optimizer.step()
        look("after a step")


def nothing(_model, _x):
    pass


def looking(quiet, times=2):
    def monitor(model, x):
        with quiet():
            for _ in range(times):
                loss = model(x).pow(2).mean()
                anchorlib.anchor(loss, "loss")

    return monitor


def with_optimizer(session, model, optimizer):
    session.watch(model, tensors="*", optimizer=optimizer)


def without_optimizer(session, model, _optimizer):
    session.watch(model, tensors=["*@value", "*@grad", "*@pass_grad"])


def not_at_all(_session, _model, _optimizer):
    pass


def content(run):
    return Counter(
        (r.name, r.kind, r.mode, r.coordinates, r.raw.tobytes()) for r in run.sink.records
    )


def assert_changes_nothing(watch, quiet, **how):
    runs = []
    for monitor in (nothing, looking(quiet)):
        with recording() as run:
            train(run.session, watch, monitor, **how)
        assert not run.session.counters.skipped
        runs.append(content(run))
    assert not runs[0] - runs[1]
    added = runs[1] - runs[0]
    assert added
    assert {coordinates.phase for _, _, _, coordinates, _ in added} == {"no_grad"}


@pytest.mark.slow
@QUIET
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("watch", [with_optimizer, without_optimizer, not_at_all])
def test_a_forward_without_gradients_changes_no_record_of_the_training(watch, quiet, where):
    assert_changes_nothing(watch, quiet, where=where)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("watch", [with_optimizer, without_optimizer])
def test_nor_where_a_watched_model_has_parts_without_gradients(watch, where):
    assert_changes_nothing(watch, torch.no_grad, where=where, make=lambda: Net(routed=True))


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("watch", [with_optimizer, without_optimizer, not_at_all])
def test_nor_where_the_training_is_checkpointed_reentrantly(watch, where):
    assert_changes_nothing(watch, torch.no_grad, where=where, make=lambda: Net(reentrant))


PAIRS = list(product([with_optimizer, without_optimizer, not_at_all], WHERE))
"""Each way to watch, and each moment in which the model is called."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("watch", "where"),
    # Each way and each moment once; the other six pairs are more cases of the same.
    [pytest.param(*pair, marks=[pytest.mark.wide] * (n % 4 != 0)) for n, pair in enumerate(PAIRS)],
)
def test_nor_where_the_model_is_compiled(watch, where):
    def compiled(model):
        return torch.compile(model, backend="aot_eager")

    assert_changes_nothing(watch, torch.no_grad, where=where, wrap=compiled)


def test_modes_fold_the_training_alone():
    folded = []
    for monitor in (nothing, looking(torch.no_grad)):
        with recording(mode=[Sum(2), EveryN(3)]) as run:
            train(run.session, not_at_all, monitor)
        folded.append(
            [
                (r.name, r.kind, r.mode, r.coordinates, r.count, r.raw.tobytes())
                for r in run.sink.records
                if r.coordinates.phase == "train"
            ]
        )
    assert sorted(folded[0]) == sorted(folded[1])


def test_comparing_a_run_with_and_without_it_finds_no_difference(tmp_path):
    for name, monitor in (("plain", nothing), ("watched", looking(torch.no_grad))):
        with anchorlib.start(name, store=tmp_path) as session:
            train(session, with_optimizer, monitor)
    found = anchorlib.compare("plain", "watched", store=tmp_path)
    assert found.verdict == "identical"
    assert found.to_dict()["counts"]["only_a"] == 0


def test_functions_that_are_no_modules_are_told_by_their_names():
    """But for the first of them, before anything was used with gradients."""
    w = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)
    with recording() as run:
        for _ in range(3):
            anchorlib.anchor((w * 2).sum(), "loss").backward()
            optimizer.step()
            with torch.no_grad():
                for _ in range(2):
                    anchorlib.anchor((w * 2).sum(), "loss")
    found = [r.coordinates for r in run.records("loss")]
    where = [(c.phase, c.step, c.pass_index, c.call) for c in found]
    assert where == [
        (phase, step + (phase == "no_grad"), 0, call)
        for step in range(3)
        for phase, call in (("train", 0), ("no_grad", 0), ("no_grad", 1))
    ]
    assert [c.step for c in (r.coordinates for r in run.records("loss", "grad"))] == [0, 1, 2]


def test_what_a_part_without_parameters_shows_belongs_to_the_model_that_is_looked_at():
    """Before any training: the part is held by no optimizer, the model around it is."""

    class Shown(nn.Module):
        def forward(self, x):
            return anchorlib.anchor(torch.tanh(x), "h")

    model = nn.Sequential(nn.Linear(2, 2), Shown())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording() as run:
        with torch.no_grad():
            model(torch.ones(1, 2))
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert [r.coordinates.phase for r in run.records("h")] == ["no_grad", "train"]


def test_a_loss_of_validation_takes_no_coordinates_of_the_loss_of_training():
    """The model says that it is evaluated; the loss is computed outside it."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording() as run:
        run.session.watch(model, tensors=["output"], optimizer=optimizer)
        for _ in range(3):
            model.eval()
            with torch.no_grad():
                anchorlib.anchor(model(torch.ones(1, 2)).sum(), "loss")
            model.train()
            anchorlib.anchor(model(torch.ones(1, 2)).sum(), "loss").backward()
            optimizer.step()
    found = [r.coordinates for r in run.records("loss")]
    assert [(c.phase, c.step, c.call) for c in found] == [
        (phase, step, 0) for step in range(3) for phase in ("no_grad", "train")
    ]


def test_each_forward_of_a_watched_root_that_is_trained_is_a_pass_of_its_own():
    """As the rollouts of an actor are."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording() as run:
        run.session.watch(model, tensors=["output"], optimizer=optimizer)
        for _ in range(2):
            with torch.no_grad():
                for _ in range(3):
                    model(torch.ones(1, 3))
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
    found = [r.coordinates for r in run.records("output")]
    where = [(c.phase, c.step, c.pass_index, c.call) for c in found]
    assert where == [
        (phase, step, index, 0)
        for step in range(2)
        for phase, index in (("no_grad", 0), ("no_grad", 1), ("no_grad", 2), ("train", 0))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_another_model_beside_the_training_takes_none_of_its_coordinates(times):
    """A teacher, or an average of weights, that was left in training mode."""

    def program(run, *, beside):
        torch.manual_seed(0)
        student = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        teacher = copy.deepcopy(student)
        optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
        run.session.watch(student, optimizer=optimizer)
        run.session.watch(teacher, tensors=["teacher.output"], prefix="teacher")
        for _ in range(3):
            for _ in range(2):
                if beside:
                    with torch.no_grad():
                        for _ in range(times):
                            teacher(torch.ones(1, 3))
                student(torch.ones(1, 3)).sum().backward()
            optimizer.step()

    runs = []
    for beside in (False, True):
        with recording() as run:
            program(run, beside=beside)
        runs.append(run)
    assert not content(runs[0]) - content(runs[1])
    found = [r.coordinates for r in runs[1].records("teacher.output")]
    assert {c.phase for c in found} == {"train"}
    assert [(c.step, c.pass_index, c.call) for c in found] == list(
        product(range(3), range(2), range(times))
    )


def test_a_copy_that_anchors_the_same_names_is_told_from_the_model_that_is_trained():
    model = Net()
    average = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording() as run:
        for _ in range(3):
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            with torch.no_grad():
                average(torch.ones(1, 3))
    found = [r.coordinates for r in run.records("h")]
    assert [(c.phase, c.step, c.call) for c in found] == [
        (phase, step + (phase == "no_grad"), 0)
        for step in range(3)
        for phase in ("train", "no_grad")
    ]


def test_a_name_that_is_used_both_ways_in_the_training_itself_stays_in_it():
    model = nn.Linear(2, 2)
    with recording() as run:
        for _ in range(3):
            online = anchorlib.anchor(model(torch.ones(1, 2)), "q")
            with torch.no_grad():
                target = anchorlib.anchor(model(torch.ones(1, 2)), "q")
            (online - target - 1).sum().backward()
            run.session.step()
    assert run.at("q") == [(step, 0, call) for step in range(3) for call in range(2)]


@pytest.mark.parametrize("frozen", [False, True])
def test_where_nothing_is_trained_each_forward_of_a_watched_root_is_a_pass_of_training(frozen):
    model = nn.Linear(2, 2).requires_grad_(not frozen)
    with recording() as run, torch.no_grad():
        run.session.watch(model, tensors=["output"])
        for _ in range(3):
            model(torch.ones(1, 2))
    assert run.at("output") == [(0, 0, 0), (0, 1, 0), (0, 2, 0)]
    assert {r.coordinates.phase for r in run.records("output")} == {"train"}


def test_an_explicit_phase_wins_over_no_grad():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording() as run:
        run.session.watch(model, tensors=["output"], optimizer=optimizer)
        with run.session.phase("probe"), torch.no_grad():
            model(torch.ones(1, 2))
    assert [r.coordinates.phase for r in run.records("output")] == ["probe"]


def test_a_frozen_part_of_a_forward_of_training_belongs_to_it():
    """Under its own watch too: its root runs inside another one's forward."""

    class Momentum(nn.Module):
        def __init__(self):
            super().__init__()
            self.online, self.slow = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            with torch.no_grad():
                key = self.slow(x) + self.slow(2 * x)
            return (self.online(x) * key).sum()

    model = Momentum()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording() as run:
        run.session.watch(model, tensors=["output"], optimizer=optimizer)
        run.session.watch(model.slow, tensors=["k.output"], prefix="k", optimizer=optimizer)
        for _ in range(2):
            model(torch.ones(1, 2)).backward()
            optimizer.step()
    assert run.at("output") == [(0, 0, 0), (1, 0, 0)]
    assert run.at("k.output") == [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)]
    assert {r.coordinates.phase for r in run.records("k.output")} == {"train"}


def test_a_leaf_that_is_looked_at_keeps_its_gradient_where_it_is_trained():
    w = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)
    with recording() as run:
        for _ in range(3):
            loss = anchorlib.anchor(w, "w").sum()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                anchorlib.anchor(w, "w")
    assert run.at("w", "grad") == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]
    assert {r.coordinates.phase for r in run.records("w", "grad")} == {"train"}


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_part_that_is_looked_at_before_any_training_takes_none_of_its_coordinates(mode):
    """A program acts, or finds neighbours, by a part alone, before the first step and later."""
    coordinates = []
    for looks in (False, True):
        model = nn.ModuleDict({"body": nn.Linear(3, 4), "head": nn.Linear(4, 1)})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with recording() as run:
            run.session.watch(model, tensors=["body"], optimizer=optimizer)
            for _ in range(2):
                if looks:
                    getattr(model["body"], mode)()
                    with torch.no_grad():
                        model["body"](torch.ones(5, 3))
                    model["body"].train()
                model["head"](model["body"](torch.ones(2, 3))).mean().backward()
                optimizer.step()
        records = run.records("body")
        coordinates.append([r.coordinates for r in records if r.coordinates.phase == "train"])
        assert [r.coordinates.phase for r in records].count("no_grad") == 2 * looks
    assert [(c.step, c.pass_index, c.call) for c in coordinates[0]] == [
        (c.step, c.pass_index, c.call) for c in coordinates[1]
    ]


def test_a_part_that_is_only_looked_at_has_one_phase_in_all_steps():
    """Features of a part that an optimizer holds, though no gradient ever reaches it."""
    body, head = nn.Linear(3, 4).eval(), nn.Linear(4, 1)
    model = nn.ModuleDict({"body": body, "head": head})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording() as run:
        run.session.watch(model, tensors=["body", "head"], optimizer=optimizer)
        for _ in range(3):
            with torch.no_grad():
                features = body(torch.ones(2, 3))
            head(features).mean().backward()
            optimizer.step()
    assert {r.coordinates.phase for r in run.records("body")} == {"no_grad"}
    assert {r.coordinates.phase for r in run.records("head")} == {"train"}
