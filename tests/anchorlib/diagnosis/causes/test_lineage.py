"""What follows from forward edges: hand-written truth for gradients, updates and gaps."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import anchorlib
from anchorlib import EveryN
from anchorlib.diagnosis.causes.ancestry import Link
from anchorlib.diagnosis.causes.lineage import Lineage
from anchorlib.record import Edges, Parent
from tests.recording import recording

anchor = anchorlib.anchor


def chain(*names, ops=()):
    """Each name computed from the one before by an operation of its own."""
    edges = [Edges(names[0], "train", 0, 0, (2,))]
    for above, name in pairwise(names):
        op = f"{name.title()}Backward"
        edges.append(Edges(name, "train", 0, 0, (2,), 0, (Parent(above),), (op,), ((-1,),)))
    return edges


def everything(edges, passes=(0,)):
    """A step in which every value and gradient was recorded."""
    there = {}
    for one in edges:
        for pass_index in passes:
            there[one.name, "value", pass_index, one.call] = one.shape
            there[one.name, "grad", pass_index, one.call] = one.shape
            for parent in one.parents:
                if parent.call is None:
                    there[parent.name, "value", pass_index, 0] = (2,)
                    there[parent.name, "pass_grad", pass_index, 0] = (2,)
    return there


def texts(ancestry, saved=False):
    """`name@kind` (with `#call`), each with its operations; what was only saved by itself."""
    return {
        f"{link.name}{f'#{link.call}' if link.call else ''}@{link.kind}": list(link.ops)
        for link in ancestry.parents
        if link.saved is saved
    }


class Run:
    """A recorded session and its lineage."""

    def __init__(self, run):
        self.records = run.sink.records
        self.lineage = Lineage(run.sink.lineage)

    def step(self, number=0, phase="train", **more):
        there = {
            (r.name, r.kind, r.coordinates.pass_index, r.coordinates.call): r.shape
            for r in self.records
            if (r.coordinates.step, r.coordinates.phase) == (number, phase)
        }
        recorded = {(r.name, r.kind) for r in self.records}
        sampled = {(r.name, r.kind) for r in self.records if r.mode not in ("all", "summary")}
        known = {"recorded": recorded, "sampled": sampled} | more
        return self.lineage.step(there, number=number, phase=phase, **known)


def test_a_chain_backwards():
    edges = chain("a", "b", "c")
    step = Lineage(edges).step(everything(edges))
    assert texts(step.parents("c", "value")) == {"b@value": ["CBackward"]}
    grad = step.parents("a", "grad")
    assert texts(grad) == {"b@grad": ["BBackward"]}
    assert texts(grad, saved=True) == {"b@value": [], "a@value": []}
    assert (grad.ops, grad.complete) == (("BBackward",), True)
    last = step.parents("c", "grad")
    assert last.parents == ()
    assert last.missing == ("nothing recorded is known to have led the gradient to c",)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return anchor(x + anchor(torch.tanh(self.fc(x)), "tanh"), "sum")


def train(model, optimizer=None, steps=1, passes=1, tensors="*", size=4, mode=anchorlib.All):
    with recording() as run:
        run.session.watch(model, tensors=tensors, optimizer=optimizer, mode=mode)
        for _ in range(steps):
            for _ in range(passes):
                h = anchor(torch.randn(2, size, requires_grad=True), "x")
                anchor(model(h).pow(2).sum(), "loss").backward()
            if optimizer is None:
                run.session.step()
            else:
                optimizer.step()
    return Run(run)


def test_a_residual_block_gathers_both_gradients():
    step = train(Block()).step()
    gradient = step.parents("input", "grad")
    assert texts(gradient) == {"fc@grad": ["AddmmBackward0"], "sum@grad": ["AddBackward0"]}
    assert texts(gradient, saved=True).keys() == {
        *("fc@value", "fc.bias@value", "fc.weight@value", "input@value"),
        *("sum@value", "tanh@value"),
    }
    assert texts(step.parents("x", "grad")) == {"input@grad": []}
    assert texts(step.parents("fc", "grad")) == {"tanh@grad": ["TanhBackward0"]}
    assert texts(step.parents("sum", "grad")) == {"output@grad": []}
    weight = step.parents("fc.weight", "pass_grad")
    assert texts(weight) == {"fc@grad": ["AddmmBackward0", "TBackward0"]}
    assert "input@value" in texts(weight, saved=True)
    assert step.parents("loss", "grad").missing
    assert step.loose == [("x", "value", 0, 0)]  # a leaf: nothing says what the program made it of


def test_a_shared_layer_and_its_weight_over_both_calls():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(torch.relu(self.fc(x)))

    step = train(Twice()).step()
    assert texts(step.parents("fc", "grad", call=0)) == {
        "fc#1@grad": ["AddmmBackward0", "ReluBackward0"]
    }
    assert texts(step.parents("fc", "value", call=1)).keys() == {
        *("fc@value", "fc.weight@value", "fc.bias@value"),
    }
    assert texts(step.parents("fc.bias", "pass_grad")) == {
        "fc@grad": ["AddmmBackward0"],
        "fc#1@grad": ["AddmmBackward0"],
    }


def test_attention_backwards():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(4, 4, bias=False) for _ in range(3))

        def forward(self, x):
            q, k, v = self.q(x), self.k(x), self.v(x)
            return torch.softmax(anchor(q @ k.mT, "scores"), -1) @ v

    step = train(Attention()).step()
    assert texts(step.parents("q", "grad")) == {"scores@grad": ["MmBackward0"]}
    assert texts(step.parents("q", "grad"), saved=True).keys() == {
        *("scores@value", "q@value", "k@value"),
    }
    assert texts(step.parents("k", "grad")) == {
        "scores@grad": ["MmBackward0", "TransposeBackward0"]
    }
    assert texts(step.parents("v", "grad")) == {"output@grad": ["MmBackward0"]}
    assert texts(step.parents("scores", "grad")) == {
        "output@grad": ["MmBackward0", "SoftmaxBackward0"]
    }
    assert set(texts(step.parents("input", "grad"))) == {"q@grad", "k@grad", "v@grad"}


def test_a_dead_branch_gives_no_gradient():
    with recording() as run:
        w = anchor(torch.randn(3, requires_grad=True), "w")
        h = anchor(w * 2, "h")
        anchor(h.sigmoid(), "metric")
        anchor(h.exp().sum(), "loss").backward()
    step = Run(run).step()
    gradient = step.parents("h", "grad")
    assert texts(gradient) == {"loss@grad": ["SumBackward0", "ExpBackward0"]}
    assert gradient.complete
    assert "metric@value" not in texts(gradient, saved=True)


def test_a_tensor_without_records_is_looked_through():
    with recording() as run:
        w = anchor(torch.randn(3, requires_grad=True), "w")
        h = anchor(anchor(w * 2, "h").tanh(), "silent", grad=False)
        anchor(h.exp().sum(), "loss").backward()
    step = Run(run).step()
    assert texts(step.parents("loss", "value")) == {
        "silent@value": ["SumBackward0", "ExpBackward0"]
    }
    gradient = step.parents("h", "grad")
    assert texts(gradient) == {"loss@grad": ["TanhBackward0", "SumBackward0", "ExpBackward0"]}
    assert gradient.complete
    without = {pair for pair in ((r.name, r.kind) for r in run.sink.records) if pair[0] != "h"}
    blind = Lineage(run.sink.lineage).step({(name, kind, 0, 0): (3,) for name, kind in without})
    assert texts(blind.parents("silent", "value")) == {"w@value": ["TanhBackward0", "MulBackward0"]}


def test_operations_on_several_ways_are_named_once():
    shared = Edges(
        *("d", "train", 0, 0, (2,), 0),
        parents=(Parent("b"), Parent("c")),
        ops=("Top", "Add"),
        inputs=((1,), (-1, -2)),
    )
    edges = [
        *chain("a", "b"),
        Edges("c", "train", 0, 0, (2,), 0, (Parent("a"),), ("CBackward",), ((-1,),)),
        shared,
    ]
    there = {("a", "value", 0, 0): (2,), ("d", "value", 0, 0): (2,)}
    up = Lineage(edges).step(there).parents("d", "value")
    assert up.ops == ("Top", "Add", "BBackward", "CBackward")
    assert texts(up) == {"a@value": ["Top", "Add", "BBackward", "Top", "Add", "CBackward"]}
    there = {("a", "grad", 0, 0): (2,), ("d", "grad", 0, 0): (2,)}
    unhooked = [e if e.name == "d" else Edges(**{**fields(e), "grad": False}) for e in edges]
    down = Lineage(unhooked).step(there).parents("a", "grad")
    assert down.ops == ("BBackward", "Top", "Add", "CBackward")
    assert [link.name for link in down.parents] == ["d"]


def fields(edges):
    return {name: getattr(edges, name) for name in Edges.__dataclass_fields__}


def test_updates_and_optimizer_state_follow_from_gradients():
    model = nn.Linear(4, 4, bias=False)
    run = train(model, torch.optim.Adam(model.parameters()), steps=2, passes=2)
    step = run.step(1)
    assert texts(step.parents("weight", "grad")) == {"weight@pass_grad": []}
    assert [link.pass_index for link in step.parents("weight", "grad").parents] == [0, 1]
    for kind in ("updated", "delta", "opt.exp_avg"):
        found = step.parents("weight", kind)
        assert set(texts(found)) == {
            "weight@value",
            "weight@grad",
            "weight@opt.exp_avg",
            "weight@opt.exp_avg_sq",
            "weight@opt.step",
        }
        state = {link.kind: link.steps_back for link in found.parents}
        assert (state["value"], state["grad"], state["opt.exp_avg"]) == (0, 0, 1)
        assert found.complete
    (before,) = step.parents("weight", "value").parents
    assert before == Link("weight", "updated", None, steps_back=1)
    between_passes = step.parents("weight", "value", pass_index=1)
    assert not between_passes.complete


def test_without_pass_grads_the_consumed_gradient_comes_from_the_anchors():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh())
    run = train(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        passes=2,
        tensors=["0", "1", "0.weight@grad", "0.weight@delta"],
    )
    found = run.step().parents("0.weight", "grad")
    grads = [link for link in found.parents if link.kind == "grad"]
    assert [(link.name, link.pass_index) for link in grads] == [("0", 0), ("0", 1)]
    delta = run.step().parents("0.weight", "delta")
    assert texts(delta) == {"0.weight@grad": []}
    assert delta.missing == ("0.weight@value is not recorded",)


def test_passes_do_not_mix():
    run = train(Block(), passes=2)
    step = run.step()
    for pass_index in (0, 1):
        found = step.parents("fc", "grad", pass_index=pass_index)
        assert {link.pass_index for link in found.parents} == {pass_index}
        assert texts(found) == {"tanh@grad": ["TanhBackward0"]}


def test_sampled_tensors_are_looked_through_where_they_have_no_record():
    with recording() as run:
        for _ in range(4):
            w = anchor(torch.randn(3, requires_grad=True), "w")
            h = anchor(anchor(w * 2, "h").tanh(), "seldom", mode=EveryN(2))
            anchor(h.exp().sum(), "loss").backward()
            run.session.step()
    found = Run(run)
    for number, above, below in (
        (0, "h", ["TanhBackward0", "SumBackward0", "ExpBackward0"]),
        (1, "seldom", ["TanhBackward0"]),
    ):
        step = found.step(number)
        assert list(texts(step.parents("loss", "value"))) == [f"{above}@value"]
        gradient = step.parents("h", "grad")
        (name,) = texts(gradient)
        assert texts(gradient)[name] == below
        assert gradient.complete


def test_what_autograd_does_not_follow_is_named():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with recording() as run:
        run.session.watch(model, tensors="*")
        anchor(model(torch.randn(3, 4)).sum(), "loss").backward()
    step = Run(run).step()
    found = step.parents("0", "value")
    assert found.untracked == ("AddmmBackward0",)
    assert found.complete
    names = {name for name, *_ in step.loose}
    assert names == {"input", "1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert step.parents("input", "value").missing == ("it has no graph",)
    assert step.parents("1.running_mean", "value").missing == ("it is a buffer",)
    assert step.buffers == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}


def test_the_statement_that_holds_is_the_one_of_that_place_and_time():
    def says(op, pass_index=0, shape=(2,), step=0, call=0):
        return Edges("h", "train", pass_index, call, shape, step, (), (op,), ((0,),))

    lineage = Lineage(
        [says("first"), says("other", shape=(3,)), says("pass1", 1), says("later", 1, step=5)]
    )

    def op(**where):
        return lineage.edges("h", **where).ops[0]

    assert op(step=0) == op(step=9, shape=(2,)) == "first"
    assert op(step=9, shape=(3,)) == "other"
    assert op(step=4, pass_index=1) == "pass1"
    assert op(step=5, pass_index=1) == op(step=6, pass_index=1) == "later"
    assert op(step=5, pass_index=1, shape=(3,)) == "first"
    assert op(step=5, pass_index=7) == "first"
    assert lineage.edges("h", step=0, call=1) is None
    assert lineage.edges("h", step=0, phase="eval") is None
    assert lineage.edges("h", step=0, attempt=1) is None


def test_the_gradient_of_a_second_name_is_made_of_all_that_reads_the_tensor():
    """A model returns an inner result: what its layers made of it reaches the returned name too."""
    edges = [
        *chain("x", "codes", "layer"),
        Edges("output", "train", 0, 0, (2,), 0, (Parent("codes"),), (), ()),
        Edges("loss", "train", 0, 0, (2,), 0, (Parent("output"),), ("SumBackward",), ((-1,),)),
    ]
    step = Lineage(edges).step(everything(edges))
    readers = {"loss@grad": ["SumBackward"], "layer@grad": ["LayerBackward"]}
    assert texts(step.parents("output", "grad")) == readers
    inner = {"output@grad": [], "layer@grad": ["LayerBackward"]}
    assert texts(step.parents("codes", "grad")) == inner


def test_an_input_that_a_later_pass_differentiates_by_is_no_parameter():
    """A residual is computed from the slope at the model's input, which no pass made anew."""
    edges = [
        Edges("input", "train", 0, 0, (2,)),
        Edges("out", "train", 0, 0, (2,), 0, (Parent("input"),), ("MmBackward",), ((-1,),)),
        Edges(
            "residual",
            "train",
            1,
            0,
            (2,),
            0,
            (Parent("input", None), Parent("w", None)),
            ("MulBackward",),
            ((-1, -2),),
        ),
    ]
    step = Lineage(edges).step(everything(edges, passes=(0, 1)))
    assert set(step.parameters) == {"w"}
    assert ("input", "value", 0, 0) in step.loose


def test_what_a_module_computes_without_gradients_is_not_followed_under_any_name():
    edges = [
        *chain("x", "made"),
        Edges("told", "train", 0, 0, (2,), 0, (Parent("x"),), ("Linear.forward",), ((-1,),)),
        Edges("output", "train", 0, 0, (2,), 0, (Parent("told"),), (), ()),
    ]
    step = Lineage(edges).step(everything(edges))
    followed = {name: step.is_followed(name, 0, 0) for name in ("x", "made", "told", "output")}
    assert followed == {"x": True, "made": True, "told": False, "output": False}


def test_a_circle_of_edges_ends():
    edges = [
        Edges("a", "train", 0, 0, (2,), 0, (Parent("b"),)),
        Edges("b", "train", 0, 0, (2,), 0, (Parent("a"),)),
    ]
    step = Lineage(edges).step({("c", "value", 0, 0): (2,)})
    assert step.parents("a", "value").parents == ()
    assert step.parents("a", "grad").parents == ()


@given(st.lists(st.booleans(), min_size=3, max_size=9))
def test_whatever_is_unrecorded_parents_are_the_nearest_that_are(kept):
    names = [f"t{number}" for number in range(len(kept))]
    there = {}
    for name, keep in zip(names, kept, strict=True):
        if keep:
            there[name, "value", 0, 0] = (2,)
            there[name, "grad", 0, 0] = (2,)
    edges = [Edges(**{**fields(e), "grad": False}) for e in chain(*names)]
    step = Lineage(edges).step(there) if there else None
    present = [number for number, keep in enumerate(kept) if keep]
    for number in present:
        above = [other for other in present if other < number]
        below = [other for other in present if other > number]
        up = step.parents(names[number], "value")
        assert [link.name for link in up.parents] == [names[other] for other in above[-1:]]
        between = range(number, above[-1] if above else 0, -1)
        assert up.ops == tuple(f"T{n}Backward" for n in between)
        down = step.parents(names[number], "grad")
        found = [link for link in down.parents if not link.saved]
        assert [link.name for link in found] == [names[other] for other in below[:1]]
        assert down.complete == bool(below)
        if below:
            assert found[0].ops == tuple(f"T{n}Backward" for n in range(number + 1, below[0] + 1))


def test_a_parameter_that_nothing_was_made_of_has_unknown_gradients_of_passes():
    edges = chain("a", "b")
    found = Lineage(edges).step(everything(edges)).parents("fc.weight", "pass_grad")
    assert found.missing == ("no anchored tensor is known that was made of fc.weight",)


@pytest.mark.parametrize("kind", ["updated", "delta", "opt.exp_avg"])
def test_an_update_follows_from_its_gradient_though_autograd_knows_nothing_of_the_parameter(kind):
    edges = chain("a", "b")
    kinds = ("value", "grad", kind)
    there = [*everything(edges), *(("fc.weight", one, 0, 0) for one in kinds)]
    found = Lineage(edges).step(dict.fromkeys(there, (2,))).parents("fc.weight", kind)
    assert {"value", "grad"} <= {link.kind for link in found.parents if not link.steps_back}
    assert found.complete
