"""Lineage: hand-written truth for what each value was computed from."""

from __future__ import annotations

import gc
import tracemalloc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import anchorlib
from anchor_server import Collector
from anchorlib import Final
from anchorlib.capture.ancestry import lineage as capture_lineage
from anchorlib.capture.ancestry import walk
from anchorlib.diagnosis.causes.ancestry import between
from anchorlib.diagnosis.causes.lineage import Lineage
from anchorlib.record import Parent
from tests.recording import recording

anchor = anchorlib.anchor


def told(run, name, **where):
    """The edges of one forward call, by default the first of step 0."""
    run.session._queue.flush(10) if not run.sink.closed else None
    return Lineage(run.sink.lineage).edges(name, **{"step": 0, **where})


def truth(run, name, **where):
    """{parent: operations between}; a call other than 0 as `name#1`, parameters as they are."""
    edges = told(run, name, **where)
    return {
        parent.name + (f"#{parent.call}" if parent.call else ""): [
            edges.ops[place] for place in between(edges, number)
        ]
        for number, parent in enumerate(edges.parents, 1)
    }


def watched(model, *inputs, tensors="*", passes=1):
    with recording() as run:
        run.session.watch(model, tensors=tensors)
        for _ in range(passes):
            out = model(*inputs)
            loss = (out[0] if isinstance(out, tuple) else out).pow(2).sum()
            anchor(loss, "loss")
            loss.backward()
    return run


# -- hand-written truth


def test_a_chain():
    class Chain(nn.Module):
        def forward(self, w):
            h1 = anchor(torch.tanh(w), "tanh1")
            h2 = anchor(torch.sigmoid(h1) * 3, "scaled")
            return h2.exp()

    run = watched(Chain(), torch.randn(3, requires_grad=True))
    assert truth(run, "input") == {}
    assert told(run, "input").missing == ()
    assert truth(run, "tanh1") == {"input": ["TanhBackward0"]}
    assert truth(run, "scaled") == {"tanh1": ["MulBackward0", "SigmoidBackward0"]}
    assert truth(run, "output") == {"scaled": ["ExpBackward0"]}
    assert truth(run, "loss") == {"output": ["SumBackward0", "PowBackward0"]}
    # A constant and a tensor without a graph look alike to autograd.
    assert told(run, "scaled").inputs == ((1, 0), (-1,))


def test_parameters_and_a_layer():
    run = watched(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.randn(2, 4))
    assert truth(run, "0") == {
        "0.bias": ["AddmmBackward0"],
        "0.weight": ["AddmmBackward0", "TBackward0"],
        "input": [],
    }
    assert told(run, "0").inputs == ((-1, 0, 1), (-2,))  # bias, data, weight transposed
    assert truth(run, "1") == {"0": ["TanhBackward0"]}
    assert truth(run, "output") == {"1": []}, "the same tensor under another name"
    assert truth(run, "loss") == {"output": ["SumBackward0", "PowBackward0"]}
    assert told(run, "input").missing == ("it has no graph",)


def test_a_residual_block_has_both_ways():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return x + torch.tanh(self.fc(x))

    x = torch.randn(2, 4, requires_grad=True)
    run = watched(Block(), x)
    assert truth(run, "output") == {
        "input": ["AddBackward0"],
        "fc": ["AddBackward0", "TanhBackward0"],
    }
    coarse = watched(Block(), x, tensors=["input", "output", "fc.weight"])
    assert truth(coarse, "output") == {
        "input": ["AddBackward0", "TanhBackward0", "AddmmBackward0"],
        "fc.bias": ["AddBackward0", "TanhBackward0", "AddmmBackward0"],
        "fc.weight": ["AddBackward0", "TanhBackward0", "AddmmBackward0", "TBackward0"],
    }
    edges = told(coarse, "output")
    assert edges.ops == ("AddBackward0", "TanhBackward0", "AddmmBackward0", "TBackward0")
    assert [p.name for p in edges.parents] == ["input", "fc.bias", "fc.weight"]
    assert edges.inputs == ((-1, 1), (2,), (-2, -1, 3), (-3,))


def test_a_shared_layer_that_is_called_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(torch.relu(self.fc(x)))

    run = watched(Twice(), torch.randn(2, 4))
    weights = {"fc.bias": ["AddmmBackward0"], "fc.weight": ["AddmmBackward0", "TBackward0"]}
    assert truth(run, "fc") == {**weights, "input": []}
    assert truth(run, "fc", call=1) == {**weights, "fc": ["AddmmBackward0", "ReluBackward0"]}
    assert truth(run, "output") == {"fc#1": []}


def test_attention():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(4, 4, bias=False) for _ in range(4))

        def forward(self, x):
            q, k, v = self.q(x), self.k(x), self.v(x)
            scores = anchor(q @ k.mT / 2, "scores")
            return self.o(torch.softmax(scores, -1) @ v)

    run = watched(Attention(), torch.randn(3, 4))
    for name in "qkv":
        assert truth(run, name) == {f"{name}.weight": ["MmBackward0", "TBackward0"], "input": []}
    assert truth(run, "scores") == {
        "q": ["DivBackward0", "MmBackward0"],
        "k": ["DivBackward0", "MmBackward0", "TransposeBackward0"],
    }
    assert truth(run, "o") == {
        "v": ["MmBackward0", "MmBackward0"],
        "scores": ["MmBackward0", "MmBackward0", "SoftmaxBackward0"],
        "o.weight": ["MmBackward0", "TBackward0"],
    }


def test_tied_weights_are_one_parameter():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(7, 4)
            self.head = nn.Linear(4, 7, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens):
            return self.head(self.embed(tokens))

    run = watched(Tied(), torch.tensor([1, 2]))
    assert truth(run, "embed") == {"embed.weight": ["EmbeddingBackward0"], "input": []}
    assert truth(run, "head") == {
        "embed": ["MmBackward0"],
        "embed.weight": ["MmBackward0", "TBackward0"],
    }


def test_a_tuple_of_outputs_of_one_node():
    class Halves(nn.Module):
        def forward(self, x):
            low, high = torch.exp(x).chunk(2)
            return low, {"high": high}

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.halves = Halves()

        def forward(self, x):
            low, rest = self.halves(x)
            return anchor(low * 2, "low"), anchor(rest["high"] * 2, "high")

    run = watched(Model(), torch.randn(4, requires_grad=True))
    assert truth(run, "halves") == {"input": ["SplitBackward0", "ExpBackward0"]}
    assert truth(run, "halves:1.high") == {"input": ["SplitBackward0", "ExpBackward0"]}
    assert truth(run, "low") == {"halves": ["MulBackward0"]}
    assert truth(run, "high") == {"halves:1.high": ["MulBackward0"]}
    assert truth(run, "output:1") == {"high": []}


def test_a_branch_that_ends():
    with recording() as run:
        w = torch.randn(3, requires_grad=True)
        h = anchor(w * 2, "h")
        anchor(h.sigmoid(), "metric")
        anchor(anchor(h.tanh(), "used").sum(), "loss").backward()
    assert truth(run, "metric") == {"h": ["SigmoidBackward0"]}
    assert truth(run, "used") == {"h": ["TanhBackward0"]}
    assert truth(run, "loss") == {"used": ["SumBackward0"]}
    assert run.records("metric", "grad") == []


def test_the_second_pass_of_sam_is_like_the_first_and_told_once():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    run = watched(model, torch.randn(2, 3), passes=2)
    assert run.at("1") == [(0, 0, 0), (0, 1, 0)]
    for pass_index in (0, 1):
        assert truth(run, "1", pass_index=pass_index) == {"0": ["TanhBackward0"]}
    names = [edges.name for edges in run.sink.lineage]
    assert len(names) == len(set(names))


def test_passes_that_differ_are_told_apart():
    """A discriminator sees data first, then what a generator made."""
    generator, discriminator = nn.Linear(2, 2), nn.Linear(2, 1)
    with recording() as run:
        run.session.watch(generator, prefix="g")
        run.session.watch(discriminator, prefix="d")
        for made in (False, True):
            x = torch.randn(3, 2)
            discriminator(generator(x) if made else x).sum().backward()
    assert set(truth(run, "d.output")) == {"d.weight", "d.bias"}
    assert set(truth(run, "d.output", pass_index=1)) == {"d.weight", "d.bias", "g.output"}


def test_unnamed_leaves_are_missing_parents():
    with recording() as run:
        w = torch.randn(3, requires_grad=True)
        anchor(w * 2, "h")
    assert truth(run, "h") == {}
    assert told(run, "h").missing == ("a leaf that is not anchored",)


def test_an_anchored_parameter_is_both():
    model = nn.Linear(2, 2, bias=False)
    with recording() as run:
        run.session.watch(model)
        anchor(model.weight, "w")
        model(torch.randn(3, 2)).sum().backward()
    assert truth(run, "w") == {"weight": []}
    assert truth(run, "output") == {"w": ["MmBackward0", "TBackward0"]}


def test_two_modes_of_one_anchor_are_one_tensor():
    with recording() as run:
        w = torch.ones(2, requires_grad=True)
        for _ in range(3):
            h = anchor(w, "w") * 2
            anchor(h, "h")
            anchor(h, "alias")
            anchor(h, "h", Final)
            anchor(h.exp(), "y").sum().backward()
            run.session.step()
    assert truth(run, "h") == {"w": ["MulBackward0"]}
    assert truth(run, "alias") == {"h": []}
    assert len([edges for edges in run.sink.lineage if edges.name == "h"]) == 1


# -- situations


def test_in_place_operations_after_the_anchor_stand_between():
    with recording() as run:
        w = anchor(torch.randn(3, requires_grad=True), "w")
        h = anchor(w * 3, "h")
        h.relu_()
        anchor(h.exp(), "y").sum().backward()
    assert truth(run, "h") == {"w": ["MulBackward0"]}
    assert truth(run, "y") == {"h": ["ExpBackward0", "ReluBackward0"]}


def test_views_and_writing_through_them():
    with recording() as run:
        w = anchor(torch.randn(2, 3, requires_grad=True), "w")
        base = anchor(w * 2, "base")
        row = anchor(base[0], "row")
        anchor(row.t().exp(), "y")
        row.mul_(2)  # writes into the base
        anchor(base.sum(), "loss").backward()
    assert truth(run, "row") == {"base": ["SelectBackward0"]}
    assert truth(run, "y") == {"row": ["ExpBackward0", "PermuteBackward0"]} or truth(run, "y") == {
        "row": ["ExpBackward0", "TBackward0"]
    }
    assert truth(run, "loss") == {"base": ["SumBackward0", "CopySlices"]}


def test_a_checkpointed_region_is_walked_through_unless_it_is_reentrant():
    fc = nn.Linear(3, 3)

    def region(h):
        return anchor(torch.tanh(anchor(fc(h), "inside")), "also")

    for reentrant in (False, True):
        with recording() as run:
            run.session.watch(fc, tensors=["*@grad"], optimizer=torch.optim.SGD(fc.parameters()))
            x = anchor(torch.randn(2, 3, requires_grad=True), "x")
            y = checkpoint(region, x.exp(), use_reentrant=reentrant)
            anchor(y * 2, "y").sum().backward()
        if reentrant:
            hidden = "CheckpointFunctionBackward"
            assert truth(run, "y") == {"input": ["MulBackward0", hidden]}
            assert truth(run, "input") == {"x": ["ExpBackward0"]}
            assert told(run, "y").missing == (f"{hidden} hides what is inside",)
            assert truth(run, "inside") == {"output": []}, "the same tensor under another name"
        else:
            assert truth(run, "y") == {"also": ["MulBackward0"]}
            assert truth(run, "also") == {"inside": ["TanhBackward0"]}
            assert {"input", "weight", "bias"} == truth(run, "output").keys()
            assert truth(run, "input") == {"x": ["ExpBackward0"]}
            assert told(run, "y").missing == told(run, "output").missing == ()


def test_without_gradients_nothing_is_known_and_that_is_said():
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    with recording() as run:
        run.session.watch(model)
        with torch.no_grad():
            model(torch.randn(2, 2))
            anchor(torch.ones(2), "a")
        with torch.inference_mode():
            anchor(torch.ones(2), "b")
    for name in ("a", "b"):
        assert told(run, name).missing == ("it has no graph",)
        assert told(run, name).parents == ()
    assert told(run, "0").missing == ("what it was given is not anchored",)


def without_graph(forward, *, model=None, tensors="*", steps=1):
    """A model recorded in steps that `forward(model)` makes."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh()) if model is None else model
    with recording() as run:
        run.session.watch(model, tensors=tensors)
        for _ in range(steps):
            forward(model)
            run.session.step()
    return run


def made(run, name, **where):
    """What an output was made of without a graph, and how."""
    edges = told(run, name, **where)
    assert edges.inputs == ((0,),), "no gradient comes back to any of these"
    return edges.ops, [parent.name for parent in edges.parents], edges.missing


def test_without_a_graph_a_module_made_its_output_of_what_it_was_given():
    @torch.no_grad()
    def forward(model):
        model(torch.randn(2, 3))

    run = without_graph(forward)
    assert made(run, "0") == (("Linear.forward",), ["input", "0.weight", "0.bias"], ())
    assert made(run, "1") == (("Tanh.forward",), ["0"], ())
    assert truth(run, "output") == {"1": []}, "the same tensor under another name"


def test_a_frozen_layer_made_its_output_of_what_it_was_given_by_keyword_too():
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 3)

        def forward(self, x):
            return self.head(input=torch.relu(anchor(self.body(input=x) * 2, "twice")))

    run = without_graph(lambda model: model(torch.randn(2, 3)).sum().backward(), model=Frozen())
    assert made(run, "body") == (("Linear.forward",), ["input", "body.weight", "body.bias"], ())
    assert told(run, "twice").missing == ("it has no graph",)
    assert [parent.name for parent in told(run, "head").parents] == ["head.bias", "head.weight"]


def test_a_module_that_holds_others_may_have_made_its_output_of_theirs():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x):
            return x + self.fc(x)

    @torch.no_grad()
    def forward(model):
        model(torch.randn(2, 3))

    run = without_graph(forward, model=Block())
    hidden = ("what happens inside is not followed",)
    assert made(run, "output") == (("Block.forward",), ["input"], hidden)


def test_a_detached_tensor_is_known_by_its_memory_until_something_writes_there():
    def forward(model):
        y = model(torch.randn(2, 3))
        anchor(y.detach()[0], "row")
        copy = y.detach().clone()
        anchor(copy.view(-1), "copy")
        anchor(copy.view(6).detach(), "flat")
        anchor(copy.add_(1), "written")
        y.sum().backward()

    run = without_graph(forward)
    assert made(run, "row") == (("detach",), ["output"], ())
    assert told(run, "copy").missing == ("it has no graph",)
    assert truth(run, "flat") == {"copy": []}, "the same tensor under another name"
    assert told(run, "written").missing == ("it has no graph",)


def test_what_is_carried_through_detach_is_known_from_the_second_step_on():
    cell, state = nn.RNNCell(3, 3), [torch.zeros(2, 3)]

    def forward(model):
        new = model(torch.randn(2, 3), state[0])
        new.sum().backward()
        state[0] = new.detach()

    run = without_graph(forward, model=cell, steps=3)
    assert told(run, "input:1").missing == ("it has no graph",)
    edges = told(run, "input:1", step=1)
    assert (edges.ops, edges.inputs) == (("detach",), ((0,),))
    assert edges.parents == (Parent("output", 0, 1, 0),)


def test_a_batch_that_is_given_again_is_no_copy_of_itself():
    x = torch.randn(2, 3)
    run = without_graph(lambda model: model(x).sum().backward(), steps=3)
    assert [edges.name for edges in run.sink.lineage].count("input") == 1


def test_evaluation_does_not_speak_for_training():
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    with recording() as run:
        run.session.watch(model)
        model.eval()
        with torch.no_grad():
            model(torch.randn(2, 2))
        model.train()
        model(torch.randn(2, 2)).sum().backward()
    assert made(run, "1", phase="eval") == (("Tanh.forward",), ["0"], ())
    assert truth(run, "1", phase="train") == {"0": ["TanhBackward0"]}


def test_a_state_that_is_carried_into_the_next_step():
    with recording() as run:
        w = torch.ones(2, requires_grad=True)
        h = torch.zeros(2)
        for _ in range(3):
            h = anchor(torch.tanh(h + anchor(w, "w")), "h")
            run.session.step()
        h.sum().backward()
    assert truth(run, "h") == {"w": ["TanhBackward0", "AddBackward0"]}
    assert told(run, "h", step=2).parents == (Parent("h", 0, 1, 0), Parent("w"))


def test_a_leaf_anchored_at_every_step_is_a_parent_of_that_step():
    with recording() as run:
        w = torch.ones(2, requires_grad=True)
        for _ in range(3):
            anchor(w, "w")
            anchor(w * 2, "h").sum().backward()
            run.session.step()
    assert all(p.steps_back == 0 for e in run.sink.lineage for p in e.parents)


def test_a_leaf_anchored_long_ago_is_a_parent_without_a_call():
    with recording() as run:
        w = anchor(torch.ones(2, requires_grad=True), "w")
        for _ in range(4):
            anchor(w * 2, "h").sum().backward()
            run.session.step()
    assert told(run, "h", step=3).parents == (Parent("w", None),)


def test_custom_functions_are_walked_through():
    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.variable = "a name that AccumulateGrad has too"
            return x.round()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    with recording() as run:
        w = anchor(torch.randn(3, requires_grad=True), "w")
        h = anchor(Straight.apply(w), "h")
        anchor(Straight.apply(h).sum(), "loss").backward()
    assert truth(run, "h") == {"w": ["StraightBackward"]}
    assert truth(run, "loss") == {"h": ["SumBackward0", "StraightBackward"]}


def keeping(**attributes):
    """A custom Function, twice its input, that keeps these on its `ctx`."""

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            for name, value in attributes.items():
                setattr(ctx, name, value)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return anchor(gradient * 2, "inside")

    return Doubled


@pytest.mark.parametrize("value", ["text", None, print], ids=["text", "None", "function"])
def test_what_a_custom_function_keeps_on_its_node_is_never_taken_for_torchs_own(value, caplog):
    asked = ["name", "variable", "register_hook", "_sequence_nr", "_register_hook_dict"]
    doubled = keeping(**dict.fromkeys(asked, value))
    with recording() as run:
        w = anchor(torch.randn(3, requires_grad=True), "w")
        h = anchor(doubled.apply(w), "h")
        again = anchor(doubled.apply(h), "again")
        anchor(again.sum(), "loss").backward()
    assert truth(run, "h") == {"w": ["DoubledBackward"]}
    assert truth(run, "again") == {"h": ["DoubledBackward"]}
    assert truth(run, "loss") == {"again": ["SumBackward0"]}
    assert run.arrays("h", "grad")[0].tolist() == [2, 2, 2]
    assert run.at("inside") == [(0, 0, 0), (0, 0, 1)]
    assert not run.session.counters.skipped
    assert not caplog.records


@pytest.mark.parametrize("name", ["next_functions", "metadata", "saved_tensors"])
def test_torch_itself_keeps_users_from_replacing_the_rest(name):
    with pytest.raises(AttributeError, match="not writable"):
        keeping(**{name: "text"}).apply(torch.ones(1, requires_grad=True))


def test_a_function_of_a_users_with_the_name_of_compiled_code_keeps_its_gradients(caplog):
    compiled = type("CompiledFunction", (keeping(name="text"),), {"__module__": "mine"})
    with recording() as run:
        h = anchor(compiled.apply(torch.ones(2, requires_grad=True)), "h")
        h.sum().backward()
    assert truth(run, "h") == {}
    assert run.arrays("h", "grad")[0].tolist() == [1, 1]
    assert not run.session.counters.skipped
    assert not caplog.records


def test_a_graph_without_end_is_given_up_and_that_is_said(monkeypatch):
    monkeypatch.setattr(walk, "_MAX_NODES", 50)
    with recording() as run:
        h = anchor(torch.ones(2, requires_grad=True), "w")
        for _ in range(60):
            h = h * 2
        anchor(h, "h")
    assert told(run, "h").missing == ("more than 50 operations lead here",)
    assert told(run, "h").ops == ()


def test_functorch_and_anomaly_mode_are_left_alone():
    with recording() as run:

        def f(x):
            return anchor(anchor(x * 2, "inside").exp(), "too").sum()

        assert torch.equal(
            torch.func.grad(f)(torch.zeros(3)), torch.func.vmap(torch.func.grad(f))(torch.zeros(3))
        )
        with pytest.warns(UserWarning, match="Anomaly"):
            anomalies = torch.autograd.detect_anomaly()
        with anomalies:
            h = anchor(torch.ones(2, requires_grad=True) * 2, "h")
            anchor(h.exp(), "y").sum().backward()
    assert truth(run, "y") == {"h": ["ExpBackward0"]}


def test_marks_of_a_session_that_is_over_mean_nothing():
    w = torch.ones(2, requires_grad=True)
    with recording():
        h = anchor(anchor(w, "w") * 2, "old")
    assert not w._backward_hooks
    with recording() as run:
        anchor(h.exp(), "new")
    assert truth(run, "new") == {}
    assert told(run, "new").missing == ("a leaf that is not anchored",)


@pytest.mark.parametrize("times", [1, 2])
def test_the_parameters_of_a_model_that_is_watched_again_are_still_parents(times):
    model = nn.Linear(2, 2)
    with recording() as run:
        for _ in range(times):
            run.session.watch(model, tensors="*", optimizer=None)
            gc.collect()
        model(torch.ones(1, 2)).sum().backward()
    assert {"weight", "bias"} <= truth(run, "output").keys()


# -- once per place


def count_walks(monkeypatch):
    walks = []
    original = walk.Walk.back_from

    def counted(self, x):
        walks.append(self._own)
        return original(self, x)

    monkeypatch.setattr(walk.Walk, "back_from", counted)
    return walks


def test_a_place_is_walked_once_and_again_when_shapes_change(monkeypatch):
    walks = count_walks(monkeypatch)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    with recording() as run:
        run.session.watch(model)

        def step(batch):
            model(torch.ones(batch, 3)).sum().backward()
            run.session.step()

        step(4)
        step(4)
        assert len(walks) == 6  # 0, 1, output
        for _ in range(10):
            step(4)
        assert len(walks) == 6
        for batch in (2, 4, 2, 2, 4, 2):
            step(batch)
        assert len(walks) == 12
    told = [(edges.name, edges.shape) for edges in run.sink.lineage]
    same = [("0", (4, 3)), ("1", (4, 3)), ("output", (4, 3))]
    assert told == [*same, ("0", (2, 3))], "the same edges are told again for other data alone"
    assert truth(run, "1", step=12, shape=(2, 3)) == {"0": ["TanhBackward0"]}


def test_edges_that_change_with_the_shape_are_told_for_that_shape():
    with recording() as run:
        w = torch.ones(3, requires_grad=True)
        for batch in (4, 2, 4):
            h = anchor(w.expand(batch, 3) * 2, "h")
            anchor(h.tanh() if batch < 3 else h.exp(), "y").sum().backward()
            run.session.step()
    assert truth(run, "y", shape=(4, 3)) == {"h": ["ExpBackward0"]}
    assert truth(run, "y", step=1, shape=(2, 3)) == {"h": ["TanhBackward0"]}


def test_an_anchor_that_appears_later_comes_between():
    with recording() as run:
        w = anchor(torch.ones(3, requires_grad=True), "w")
        for step in range(6):
            h = w * 2
            if step >= 3:
                anchor(h, "late")
            anchor(h.exp(), "y").sum().backward()
            run.session.step()
    assert truth(run, "y", step=2) == {"w": ["ExpBackward0", "MulBackward0"]}
    assert truth(run, "y", step=3) == {"late": ["ExpBackward0"]}
    assert truth(run, "y", step=5) == {"late": ["ExpBackward0"]}


def test_what_is_not_recorded_is_no_parent():
    with recording(tensors=["w", "y"]) as run:
        w = anchor(torch.ones(3, requires_grad=True), "w")
        anchor(anchor(w * 2, "h").exp(), "y").sum().backward()
    assert truth(run, "y") == {"w": ["ExpBackward0", "MulBackward0"]}
    assert [edges.name for edges in run.sink.lineage] == ["w", "y"]


def test_a_value_that_is_not_recorded_still_passes_its_gradient_on():
    with recording(tensors=["*@grad"]) as run:
        w = anchor(torch.ones(3, requires_grad=True), "w")
        anchor(anchor(w * 2, "h", grad=False).exp(), "y").sum().backward()
    assert truth(run, "y") == {"w": ["ExpBackward0", "MulBackward0"]}
    assert told(run, "y").grad


# -- nothing is kept


def test_nothing_is_kept_alive():
    died = []
    gc.disable()
    try:
        with recording() as run:
            leaf = anchor(torch.randn(4, requires_grad=True), "leaf")
            weakref.finalize(leaf, died.append, "leaf")
            h = anchor(leaf * 2, "h")
            weakref.finalize(h, died.append, "h")
            y = anchor(h.exp(), "y")
            y.sum().backward()
            del leaf, h, y
            assert sorted(died) == ["h", "leaf"], "without the help of the cycle collector"
            other, swapped = torch.ones(2, requires_grad=True), torch.zeros(2, requires_grad=True)
            anchor(other, "other")
            torch.utils.swap_tensors(other, swapped)
        assert len(run.sink.lineage) == 4
    finally:
        gc.enable()


@pytest.mark.slow
def test_memory_is_flat_over_500_steps():
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    with recording(mode=Final("run")) as run:
        run.session.watch(model, tensors="*")
        tracker = run.session._observer.lineage

        def steps(count):
            for step in range(count):
                x = torch.randn(2 + step % 3, 8, requires_grad=True)  # a new leaf each time
                loss = model(x).pow(2).sum()
                anchor(loss, "loss")
                loss.backward()
                model.zero_grad()
                run.session.step()
            run.session.flush()  # what waits to be written is not yet in the sink
            gc.collect()

        steps(150)
        sizes = [len(tracker._seen), len(tracker._stated), len(run.sink.lineage)]
        tracemalloc.start()
        before = tracemalloc.take_snapshot()
        steps(500)
        after = tracemalloc.take_snapshot()
        tracemalloc.stop()
        here = [tracemalloc.Filter(True, one.__file__) for one in (capture_lineage, walk)]
        grown = after.filter_traces(here).compare_to(before.filter_traces(here), "filename")
        assert sum(one.size_diff for one in grown) < 64 << 10
        assert sizes == [len(tracker._seen), len(tracker._stated), len(run.sink.lineage)]
        assert len(tracker.marks._leaves) <= 65


def test_places_without_end_are_not_all_remembered(monkeypatch):
    monkeypatch.setattr(capture_lineage, "_MAX_SITES", 5)
    with recording() as run:
        w = torch.ones(1, requires_grad=True)
        for batch in range(1, 20):
            anchor(w.expand(batch) * 2, "h").sum().backward()
            run.session.step()
        assert len(run.session._observer.lineage._seen) == 5
    assert len(run.arrays("h")) == 19


def test_a_fault_in_lineage_never_reaches_training_nor_the_record(monkeypatch, caplog):
    def broken(self, x):
        raise RuntimeError("a defect")

    monkeypatch.setattr(walk.Walk, "back_from", broken)
    with recording() as run:
        for _ in range(3):
            h = anchor(torch.ones(2, requires_grad=True) * 2, "h")
            h.sum().backward()
            run.session.step()
    assert len(run.arrays("h")) == len(run.arrays("h", "grad")) == 3
    assert run.session.counters.gaps == 0
    assert caplog.text.count("the tensors from which h was computed are not known") == 1


def test_an_observed_model_computes_the_same_with_lineage():
    def train(session):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if session is not None:
            session.watch(model, tensors="*", optimizer=optimizer)
        losses = []
        for _ in range(5):
            loss = model(torch.randn(4, 8)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    with recording() as run:
        observed = train(run.session)
    assert observed == train(None)


# -- to the reader


@pytest.mark.slow
def test_the_same_edges_are_read_embedded_and_collected(tmp_path):
    def train(store):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
        with anchorlib.start("run1", store=store) as session:
            session.watch(model, tensors="*")
            for batch in (3, 3, 2):
                loss = model(torch.randn(batch, 4)).sum()
                anchor(loss, "loss", mode=Final("run"))  # its record comes long after its edges
                loss.backward()
                session.step()
        return session

    train(tmp_path / "here")
    with Collector(tmp_path / "there", bind="127.0.0.1:0") as collector:
        train(f"grpc://{collector.address}")
        remote = anchorlib.open_run(f"grpc://{collector.address}/run1").edges()
    embedded = anchorlib.open_run("run1", tmp_path / "here").edges(0)
    assert embedded == remote == anchorlib.open_run("run1", tmp_path / "there").edges()
    names = ["input", "0", "1", "2", "output", "loss"]
    assert [edges.name for edges in embedded] == [*names, "0", "0"], "what 0 was given is data"
    assert embedded[5].parents[0].name == "output"


def test_each_attempt_has_edges_of_its_own(tmp_path):
    for resume, function in ((False, torch.exp), (True, torch.tanh)):
        with anchorlib.start("run1", store=tmp_path, resume=resume):
            w = anchor(torch.ones(2, requires_grad=True), "w")
            anchor(function(w), "h").sum().backward()
    lineage = Lineage(anchorlib.open_run("run1", tmp_path).edges())
    assert lineage.edges("h", step=0, attempt=0).ops == ("ExpBackward0",)
    assert lineage.edges("h", step=0, attempt=1).ops == ("TanhBackward0",)
    assert lineage.edges("nothing", step=0) is None


def test_a_sparse_tensor_without_a_gradient_comes_from_nowhere_and_is_no_fault(caplog):
    with recording() as run:
        anchor(torch.eye(2).to_sparse(), "sparse")
    assert told(run, "sparse").missing == ("it has no graph",)
    assert caplog.messages == []
