"""Activation checkpointing repeats a forward inside backward: nothing is recorded twice or lost."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import anchorlib
from anchorlib import Summary, anchor
from anchorlib.capture.counting import checkpointing
from tests.recording import recording

REENTRANT = pytest.mark.parametrize("reentrant", [False, True], ids=["by hooks", "reentrant"])


class Doubled(torch.autograd.Function):
    """A node of its own, whose backward has an anchor."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return anchor(g * 2 + 0 * x, "in backward")


class ByHand(torch.autograd.Function):
    """Reentrant checkpointing as others have written it."""

    @staticmethod
    def forward(ctx, function, x):
        ctx.function = function
        ctx.name = ctx._sequence_nr = "what users keep here is theirs"
        ctx.save_for_backward(x)
        with torch.no_grad():
            return function(x)

    @staticmethod
    def backward(ctx, g):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.function(x)
        torch.autograd.backward(y, g)
        return None, x.grad


def plain(function, *arguments, **_options):
    return function(*arguments)


def inputs():
    torch.manual_seed(0)
    return torch.randn(4, 5, requires_grad=True), torch.randn(5, 5, requires_grad=True)


def recorded(run):
    """Every record, and how often it came; the order of backward is autograd's."""
    return sorted(
        (r.name, r.kind, r.coordinates.pass_index, r.coordinates.call, r.raw.tobytes())
        for r in run.sink.records
    )


def assert_as_without(program, *arguments):
    """`program(how, x, w)` records what it records where nothing is checkpointed."""
    runs = []
    for how in (plain, checkpoint):
        x, w = inputs()
        with recording() as run:
            program(how, x, w, *arguments)
        assert not run.session.counters.skipped
        runs.append(recorded(run))
    assert runs[0]
    assert runs[1] == runs[0]


def without_gradients(h, w):
    with torch.no_grad():
        anchor(h * 3, "b")
    h = anchor(torch.tanh(h @ w), "b")
    with torch.no_grad():
        anchor(h.mean(), "quiet")
    return h.sin()


@REENTRANT
def test_a_part_without_gradients_is_recorded_once(reentrant):
    def program(how, x, w):
        for _ in range(2):
            h = how(without_gradients, x, w, use_reentrant=reentrant)
            how(without_gradients, h, w, use_reentrant=reentrant).sum().backward()

    assert_as_without(program)


def inner(h, w):
    return anchor(torch.tanh(h @ w), "inner").sin()


@REENTRANT
@pytest.mark.parametrize("outer", [False, True], ids=["in hooks", "in reentrant"])
def test_a_checkpoint_in_a_checkpoint_records_once_and_every_gradient(outer, reentrant):
    def program(how, x, w):
        def region(h, w):
            h = how(inner, h, w, use_reentrant=reentrant).cos()
            h = anchor(h * 1, "between")
            return how(inner, h, w, use_reentrant=reentrant).cos()

        for _ in range(2):
            h = how(region, x, w, use_reentrant=outer)
            how(region, h, w, use_reentrant=outer).sum().backward()

    assert_as_without(program)


@REENTRANT
@pytest.mark.parametrize("times", [2, 3])
def test_each_backward_through_one_forward_is_recorded(times, reentrant):
    def program(how, x, w):
        h = how(inner, x, w, use_reentrant=reentrant)
        loss = how(inner, h, w, use_reentrant=reentrant).sum()
        for _ in range(times):
            loss.backward(retain_graph=True)

    assert_as_without(program)


def test_each_backward_through_a_checkpoint_in_a_checkpoint_is_recorded():
    def program(how, x, w):
        def region(h, w):
            return how(inner, how(inner, h, w, use_reentrant=True), w, use_reentrant=True)

        loss = how(region, x, w, use_reentrant=True).sum()
        loss.backward(retain_graph=True)
        loss.backward()

    assert_as_without(program)


@REENTRANT
def test_two_losses_of_one_region_have_a_gradient_each(reentrant):
    def program(how, x, w):
        h = how(inner, x, w, use_reentrant=reentrant)
        h.sum().backward(retain_graph=True)
        h.pow(2).sum().backward()

    assert_as_without(program)


@REENTRANT
def test_forwards_before_their_backwards_keep_their_gradients_apart(reentrant):
    def program(how, x, w):
        losses = [how(inner, x * n, w, use_reentrant=reentrant).sum() for n in (1, 2, 3)]
        for n in (1, 2, 0):
            losses[n].backward()

    assert_as_without(program)


@REENTRANT
def test_nodes_of_a_region_do_not_hide_its_calls(reentrant):
    """A custom Function takes a number of autograd's, in a forward without gradients too."""

    def region(h, w):
        h = anchor(Doubled.apply(h) @ w, "after one")
        return anchor(Doubled.apply(Doubled.apply(h)).sin(), "after three")

    def program(how, x, w):
        h = how(region, x, w, use_reentrant=reentrant)
        how(region, h, w, use_reentrant=reentrant).sum().backward()

    assert_as_without(program)


def test_a_checkpoint_that_others_wrote_is_followed_too():
    def program(how, x, w):
        def region(h):
            return inner(Doubled.apply(h), w)

        apply = plain if how is plain else ByHand.apply
        h = apply(region, x)
        apply(region, h).sum().backward()

    assert_as_without(program)


def test_what_stands_in_a_backward_is_recorded_where_its_graph_is_made_too():
    x, _ = inputs()
    with recording() as run:
        (g,) = torch.autograd.grad(Doubled.apply(x).sin().sum(), x, create_graph=True)
        g.sum().backward()
    assert run.at("in backward") == [(0, 0, 0), (0, 0, 1)]


def test_an_anchor_in_a_hook_is_recorded_whether_or_not_a_graph_is_made():
    x, _ = inputs()
    with recording() as run:
        for create_graph in (False, True):
            h = x * 2
            h.register_hook(lambda g: anchor(g, "in a hook"))
            torch.autograd.grad(h.sum(), x, create_graph=create_graph)
    assert len(run.records("in a hook")) == 2


def test_a_gradient_that_a_region_takes_inside_is_taken_once():
    def force(h, w):
        with torch.enable_grad():
            position = h.detach().requires_grad_()
            energy = anchor(Doubled.apply(position).sin(), "energy").sum()
            (pull,) = torch.autograd.grad(energy, position)
        return inner(h, w) + pull

    def program(how, x, w):
        how(force, x, w, use_reentrant=False).sum().backward()

    assert_as_without(program)


@REENTRANT
def test_modes_count_a_checkpointed_call_once(reentrant):
    x, w = inputs()
    with recording(mode=[anchorlib.Sum, Summary]) as run:
        for _ in range(2):
            checkpoint(inner, x, w, use_reentrant=reentrant).sum().backward()
        run.session.step()
    assert [r.count for r in run.records("inner", "value", "sum")] == [2]
    assert [r.count for r in run.records("inner", "grad", "sum")] == [2]
    assert len(run.records("inner", "grad", "summary")) == 2


@REENTRANT
def test_a_watched_model_that_is_checkpointed_is_one_pass(reentrant):
    model = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 1))
    x, _ = inputs()
    found = []
    for how in (plain, checkpoint):
        with recording() as run:
            run.session.watch(model, tensors="*")
            for _ in range(2):
                loss = how(model, x, use_reentrant=reentrant).sum()
                anchor(loss, "loss").backward()
        found.append({(n, r) for n in ("0", "output", "0.weight", "loss") for r in run.at(n)})
        assert run.at("0", "grad") == run.at("output", "grad") == [(0, 0, 0), (0, 1, 0)]
    assert found[0] == found[1]


def test_a_checkpointed_evaluation_keeps_its_phase():
    model = nn.Linear(5, 1).eval()
    x, _ = inputs()
    with recording() as run:
        run.session.watch(model, tensors=["output"])
        for _ in range(2):
            checkpoint(model, x, use_reentrant=False).sum().backward()
        anchor(x, "after")
    assert {r.coordinates.phase for r in run.records("output")} == {"eval"}
    assert [r.coordinates.phase for r in run.records("after")] == ["train"]


@REENTRANT
def test_a_checkpointed_sequence(reentrant):
    layers = nn.Sequential(*[nn.Sequential(nn.Linear(5, 5), nn.Tanh()) for _ in range(4)])
    x, _ = inputs()
    with recording() as run:
        run.session.watch(layers, tensors=["*.0"])
        checkpoint_sequential(layers, 2, x, use_reentrant=reentrant).sum().backward()
    for n in range(4):
        assert run.at(f"{n}.0") == run.at(f"{n}.0", "grad") == [(0, 0, 0)]


def test_threads_do_not_take_each_others_calls():
    barrier = threading.Barrier(4)

    def work(n):
        x, w = inputs()

        def region(h, w):
            return anchor(torch.tanh(Doubled.apply(h) @ w), f"t{n}").sin()

        barrier.wait()
        for _ in range(5):
            h = x
            for _ in range(3):
                h = checkpoint(region, h, w, use_reentrant=True)
            h.sum().backward()

    with recording() as run:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for n in range(4):
        assert len(run.records(f"t{n}")) == 15
        assert sorted(run.at(f"t{n}", "grad")) == sorted(run.at(f"t{n}"))


def test_a_gradient_whose_call_is_forgotten_is_counted(monkeypatch):
    monkeypatch.setattr(checkpointing, "_LIMIT", 2)
    x, w = inputs()
    with recording() as run:
        h = x
        for _ in range(3):
            h = checkpoint(inner, h, w, use_reentrant=True)
        h.sum().backward()
    assert len(run.records("inner")) == 3
    assert run.at("inner", "grad") == [(0, 0, 2)]
    assert run.session.counters.skipped == {"a gradient whose forward is not known": 2}


@REENTRANT
def test_printing_shows_a_part_without_gradients_once(reentrant, capsys):
    def region(x):
        with torch.no_grad():
            anchorlib.print_tensor(x.detach(), "quiet")
        return anchorlib.print_tensor(x * 2, "loud")

    checkpoint(region, torch.ones(1, requires_grad=True), use_reentrant=reentrant).backward()
    shown = [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()]
    assert shown == ["quiet", "loud", "loud_gradient"]
