"""Phases belong to a thread: what one enters says nothing of what another records."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import anchorlib
from anchorlib.capture.counting.phases import Phases
from tests.recording import recording


def carried(run, name, kind="value"):
    return [record.coordinates.phase for record in run.records(name, kind)]


def test_two_threads_in_phases_keep_each_their_own():
    inside, outside = threading.Barrier(2), threading.Barrier(2)

    def work(name):
        with run.session.phase(name):
            inside.wait(10)
            anchorlib.anchor(torch.ones(1), name)
            outside.wait(10)  # the first to leave must not take the other's phase along
        anchorlib.anchor(torch.ones(1), name)

    with recording() as run, ThreadPoolExecutor(2) as pool:
        list(pool.map(work, ["actor", "learner"]))
    assert carried(run, "actor") == ["actor", "train"]
    assert carried(run, "learner") == ["learner", "train"]


def test_a_phase_that_another_thread_leaves_first_stays():
    entered, left = threading.Event(), threading.Event()

    def other():
        with run.session.phase("other"):
            entered.set()
            left.wait(10)

    with recording() as run:
        thread = threading.Thread(target=other)
        thread.start()
        entered.wait(10)
        with run.session.phase("own"):
            left.set()
            thread.join()
            anchorlib.anchor(torch.ones(1), "x")
    assert carried(run, "x") == ["own"]


def test_an_evaluation_in_another_thread_leaves_training_in_its_phase():
    evaluated, trained = threading.Event(), threading.Event()

    class Slow(nn.Linear):
        def forward(self, x):
            evaluated.set()
            trained.wait(10)
            return super().forward(x)

    model, teacher = nn.Linear(2, 2), Slow(2, 2).eval()
    with recording() as run:
        run.session.watch(model, tensors=["output"])
        run.session.watch(teacher, tensors=["teacher.output"], prefix="teacher")
        thread = threading.Thread(target=teacher, args=(torch.ones(1, 2),))
        thread.start()
        evaluated.wait(10)
        model(torch.ones(1, 2)).sum().backward()
        trained.set()
        thread.join()
    assert carried(run, "output") == carried(run, "output", "grad") == ["train"]
    assert carried(run, "teacher.output") == ["eval"]


def test_a_gradient_has_the_phase_of_its_forward_wherever_backward_is_called():
    model = nn.Linear(2, 2)
    with recording() as run:
        run.session.watch(model, tensors=["output", "weight@pass_grad"])
        with run.session.phase("warmup"):
            loss = model(torch.ones(1, 2)).sum()
        loss.backward()
        with run.session.phase("probe"):
            loss = model(torch.ones(1, 2)).sum()
            thread = threading.Thread(target=loss.backward)
            thread.start()
            thread.join()
    assert carried(run, "output", "grad") == ["warmup", "probe"]
    assert carried(run, "weight", "pass_grad") == ["warmup", "probe"]


def test_a_model_that_is_trained_in_eval_mode_has_its_gradients_in_one_phase():
    model = nn.Linear(2, 2).eval()
    with recording() as run:
        run.session.watch(model, tensors=["output", "weight@pass_grad"])
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
    where = [(c.phase, c.pass_index) for c in (r.coordinates for r in run.records("output"))]
    assert where == [("eval", 0), ("eval", 1)]
    for name, kind in (("output", "grad"), ("weight", "pass_grad")):
        found = [r.coordinates for r in run.records(name, kind)]
        assert [(c.phase, c.pass_index) for c in found] == where


def test_what_a_backward_makes_besides_has_the_phase_of_the_thread_that_called_it():
    """As where autograd runs it in threads of its own, which it does for accelerators."""

    class Noted(torch.autograd.Function):
        @staticmethod
        def forward(_ctx, x):
            return x * 2

        @staticmethod
        def backward(_ctx, g):
            return anchorlib.anchor(g, "made in backward")

    with recording() as run:
        x = torch.ones(2, requires_grad=True)
        with run.session.phase("warmup"):
            Noted.apply(x).sum().backward()
    assert carried(run, "made in backward") == ["warmup"]


def test_a_thread_of_autograds_is_in_the_phase_of_the_one_that_called_it():
    """torch hands what a thread has stashed on to the threads that run its backward."""
    phases, found = Phases(), []

    def backward():
        x = torch.ones(2, requires_grad=True)
        x.register_hook(lambda _g: found.append(phases.in_backward()))
        x.sum().backward()

    def device(handed):
        backward()
        torch._C._stash_obj_in_tls("anchorlib.phases", handed)
        backward()

    with phases.named("warmup"):
        handed = torch._C._get_obj_in_tls("anchorlib.phases")
        thread = threading.Thread(target=device, args=(handed,))
        thread.start()
        thread.join()
    assert found == ["train", "warmup"]


def test_a_phase_inside_a_hook_of_backward_holds_there():
    with recording() as run:

        def probe(g):
            with run.session.phase("probe"):
                anchorlib.anchor(g, "in a hook")

        x = torch.ones(2, requires_grad=True)
        h = anchorlib.anchor(x * 2, "h")
        h.register_hook(probe)
        h.sum().backward()
    assert carried(run, "in a hook") == ["probe"]
    assert carried(run, "h", "grad") == ["train"]


def test_a_leaf_keeps_its_own_phase():
    with recording() as run:
        x = torch.ones(2, requires_grad=True)
        with run.session.phase("warmup"):
            loss = anchorlib.anchor(x, "x").sum()
        loss.backward()
    assert carried(run, "x", "grad") == ["warmup"]


@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.slow)])
def test_threads_in_phases_run_compiled_code_each_in_its_own(backend):
    def function(x, name):
        h = x * 2
        anchorlib.anchor(h, name)
        return h.sum()

    compiled = torch.compile(function, backend=backend)
    inside = threading.Barrier(2)

    def work(name):
        x = torch.ones(2, requires_grad=True)
        with run.session.phase(name):
            inside.wait(60)
            loss = compiled(x, name)
            inside.wait(60)
            loss.backward()

    with recording() as run:
        for name in ("actor", "learner"):  # traced one after the other
            compiled(torch.ones(2, requires_grad=True), name)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(work, ["actor", "learner"]))
    for name in ("actor", "learner"):
        assert carried(run, name) == ["train", name]
        assert carried(run, name, "grad") == [name]
