"""What a trace says of each operation is what torch ran."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

import anchorlib
from anchorlib.capture.tracing.arguments import Arguments
from anchorlib.capture.tracing.schemas import facts_of
from anchorlib.operations import FLOAT, RecordMakers, align_ops, read_entries, segment
from tests.anchorlib.capture.tracing.programs import SITUATIONS, Net, train
from tests.anchorlib.operations.made import made
from tests.recording import recording

ONE_BY_ONE = [name for name in SITUATIONS if "inductor" not in name and "," not in name]


def traced(body, model=None, optimizer=None, **options):
    """The operations of one step: what `body` runs."""
    with recording() as run:
        if model is not None:
            run.session.watch(model, tensors="*", optimizer=optimizer)
        run.session.trace(1, **options)
        body()
        if optimizer is None:
            run.session.step()
    return read_entries(run.sink.traced)


def one(ops, name, **where):
    (found,) = [
        op for op in ops if op.op == name and all(getattr(op, k) == v for k, v in where.items())
    ]
    return found


def test_a_backward_operation_has_number_module_and_line_of_its_forward_operation():
    model = Net()

    def body():
        model(torch.randn(4, 6)).sum().backward()

    ops = traced(body, model)
    forward = one(ops, "aten.tanh.default", module="tanh1")
    backward = one(ops, "aten.tanh_backward.default", module="tanh1")
    assert (forward.stage, backward.stage) == ("forward", "backward")
    assert forward.seq == backward.seq is not None
    assert backward.node == "TanhBackward0"
    assert backward.where == forward.where
    assert forward.where.startswith("programs.py:")


def test_producers_lead_from_an_operation_to_what_made_its_inputs():
    w = torch.randn(3, 3)

    def body():
        made = w.sin()
        seen = made.view(9).view(3, 3)
        made.add_(1.0)
        torch.mm(seen, w)

    ops = traced(body)
    assert [op.op.split(".")[1] for op in ops] == ["sin", "view", "view", "add_", "mm"]
    assert [op.view for op in ops] == [False, True, True, False, False]
    assert ops[0].producers == (None,)
    assert ops[3].mutates == (0,)
    assert ops[3].producers == (0,)
    assert ops[4].producers == (3, None), "a view shares the memory that add_ wrote last"
    assert ops[3].inputs[0].digest == ops[0].outputs[0].digest != ops[3].outputs[0].digest


def test_what_a_fused_operation_writes_is_among_its_outputs():
    _, ops, _ = train("fused", traced=True)
    fused = one(ops, "aten._fused_adam_.default", step=0)
    assert len(fused.mutates) == 4 * 6, "parameters, two moments, steps"
    names = {operand.argument.partition("[")[0] for operand in fused.outputs}
    assert names >= {"self", "exp_avgs", "exp_avg_sqs"}
    before = {operand.argument: operand.digest for operand in fused.inputs}
    assert all(before[o.argument] != o.digest for o in fused.outputs if "self" in o.argument)


def test_arguments_that_are_no_tensors_are_text_by_name():
    def body():
        x = torch.arange(6.0).view(2, 3)
        torch.addmm(x[0], x, x.t() @ x, beta=0.5, alpha=2)
        x.sum(dim=[1], keepdim=True, dtype=torch.float64)

    ops = traced(body)
    assert one(ops, "aten.addmm.default").args == "beta=0.5, alpha=2"
    assert one(ops, "aten.sum.dim_IntList").args == "dim=[1], keepdim=True, dtype=float64"


def test_an_argument_that_was_left_out_is_what_the_schema_has():
    def body(**options):
        x = torch.arange(6.0).view(2, 3)
        torch.add(x, x, **options)
        torch.ops.aten.renorm(x, 2.0, 0, 1.0)

    ops = traced(body)
    assert one(ops, "aten.add.Tensor").args == "alpha=1"
    assert one(ops, "aten.renorm.default").args == "p=2.0, dim=0, maxnorm=1.0", "it has none"
    other = traced(lambda: body(alpha=2))
    assert [op.arguments for op in align_ops(ops, other).every] == ["alpha 1 | 2"]


@pytest.mark.parametrize("given", [{}, {"alpha": 1}, {"alpha": 1.0}])
def test_an_argument_that_was_left_out_in_one_run_alone_is_no_difference(given):
    facts = facts_of(torch.ops.aten.add.Tensor)
    x = torch.ones(2)
    left_out = Arguments(facts.arguments, (x, x), {}, facts.defaults)
    told = Arguments(facts.arguments, (x, x), given, facts.defaults)
    a, b = (made("add", takes="xx", args=one.text) for one in (left_out, told))
    b = replace(b, args=b.args.replace(FLOAT, repr(given.get("alpha"))))
    assert not align_ops([a], [b]).every


def test_operands_have_dtype_shape_stride_and_the_digest_of_a_record():
    x = torch.randn(3, 5).t()

    def body():
        anchorlib.anchor(x.bfloat16(), "low")

    with recording() as run:
        run.session.trace(1)
        body()
        run.session.step()
    (op,) = read_entries(run.sink.traced)
    (made,) = op.outputs
    (record,) = run.records("low")
    assert (made.argument, made.dtype, made.shape) == ("out", "bfloat16", (5, 3))
    assert op.inputs[0].stride == (1, 5)
    assert made.digest == record.summary.digest.hex()


def joined(situation):
    """Each record of the traced steps that an operation can have made, and that operation."""
    _, ops, run = train(situation, traced=True)
    makers = RecordMakers(ops)
    first = {record.name for record in run.sink.records if record.kind == "pass_grad"}
    return [
        (
            record,
            makers.maker(
                *(record.name, record.kind, record.summary.digest.hex(), record.shape),
                step=record.step,
                pass_index=record.pass_index,
            ),
        )
        for record in run.sink.records
        if record.step < 2
        and not record.name.startswith("input")
        and record.kind in {"value", "grad", "pass_grad", "updated", "opt.exp_avg"}
        and not (record.kind == "value" and record.step == 0 and record.name in first)
        and not (situation == "vmap of grad" and record.name.endswith(("weight", "bias")))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("situation", ONE_BY_ONE)
def test_a_record_of_a_traced_step_is_joined_to_the_operation_that_made_it(situation):
    found = joined(situation)
    assert len(found) > 20
    assert sum(op is not None for _, op in found) >= 0.99 * len(found)
    for record, op in found:
        assert op is None or record.summary.digest.hex() in {one.digest for one in op.outputs}


def test_the_operation_of_an_output_or_gradient_is_that_of_its_module():
    found = {(r.name, r.kind): op for r, op in joined("adam") if r.step == 1}
    assert found["tanh1", "value"].op == "aten.tanh.default"
    assert found["tanh1", "value"].module == "tanh1"
    assert (found["fc2", "grad"].op, found["fc2", "grad"].module) == (
        "aten.tanh_backward.default",
        "tanh2",
    )
    assert (found["fc1.weight", "pass_grad"].stage, found["fc1.weight", "updated"].stage) == (
        "backward",
        "optimizer",
    )
    before = found["fc1.weight", "value"]
    assert (before.step, before.stage, before.op) == (0, "optimizer", "aten.addcdiv_.default")


def test_producers_lead_from_an_origin_to_its_parents():
    _, ops, run = train("adam", traced=True)
    ops = [op for op in ops if op.step == 1]
    makers = RecordMakers(ops)

    def maker(name, kind):
        (record,) = [r for r in run.records(name, kind) if r.step == 1]
        digest = record.summary.digest.hex()
        return makers.maker(name, kind, digest, record.shape, step=1)

    stops = [maker("tanh2", "grad"), maker("tanh2", "value")]
    between = segment(ops, maker("fc2", "grad"), stops)
    assert [op.op for op in between] == ["aten.tanh_backward.default"]


@pytest.mark.parametrize(
    "situation",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name == "aot_eager"))
        for name in ONE_BY_ONE
        if name != "vmap of grad"
    ],
)
def test_backward_operations_know_their_module(situation):
    _, ops, _ = train(situation, traced=True)
    backward = [op for op in ops if op.stage == "backward"]
    assert sum(bool(op.module) for op in backward) >= 0.95 * len(backward)


class Overwriting(nn.Module):
    """Its forward writes in place what autograd keeps, and a view of memory."""

    def forward(self, x):
        h = x.sin()
        h.mul_(torch.ones(3, requires_grad=True))  # autograd keeps a copy of `h` as it was
        h[0] = 0  # a node for `h`, and one for the view
        return h.cos()


def test_backward_operations_of_what_is_written_in_place_know_their_module():
    model = nn.Sequential(Overwriting(), nn.Tanh())
    ops = traced(lambda: model(torch.ones(2, 3, requires_grad=True)).sum().backward(), model)
    backward = [op for op in ops if op.stage == "backward"]
    assert {"MulBackward0", "torch::autograd::CopySlices"} <= {op.node for op in backward}
    told = {op.module for op in backward if op.node not in {"SumBackward0", "TanhBackward0"}}
    assert told == {"0"}
    mul = one(ops, "aten.mul_.Tensor")
    assert {op.seq for op in backward if op.node == "MulBackward0"} == {mul.seq}


@pytest.mark.parametrize("training", [True, False])
def test_a_norm_that_trains_writes_its_running_statistics(training):
    model = nn.BatchNorm1d(3).train(training)
    ops = traced(lambda: model(torch.randn(4, 3)), model)
    norm = one(ops, "aten.native_batch_norm.default")
    written = [norm.inputs[at].argument for at in norm.mutates]
    assert written == (["running_mean", "running_var"] if training else [])
    assert [one.argument for one in norm.outputs][3:] == written


@pytest.mark.slow
def test_operations_of_our_own_hooks_are_no_part_of_a_trace():
    _, some, _ = train("transformer", traced=True, watched="norm")
    _, every, _ = train("transformer", traced=True, watched="*")
    assert [(op.op, op.inputs, op.outputs) for op in some] == [
        (op.op, op.inputs, op.outputs) for op in every
    ]


def test_gradients_that_are_summed_are_a_stage_of_their_own():
    model = nn.Linear(2, 2)

    def body():
        for _ in range(2):
            h = model(torch.ones(1, 2))
            (h.sin() + h.cos()).sum().backward()

    ops = traced(body, model)
    summed = [op for op in ops if op.stage == "accumulate" and op.op.startswith("aten.add")]
    assert {op.module for op in summed if op.op == "aten.add_.Tensor"} == {"output"}
    assert len([op for op in summed if op.node != "torch::autograd::AccumulateGrad"]) == 2


def test_passes_are_told_apart():
    _, ops, _ = train("sgd", traced=True)
    first = [op for op in ops if op.step == 0]
    assert [op.pass_index for op in first] == sorted(op.pass_index for op in first)
    assert {op.pass_index for op in first if op.stage == "backward"} == {0, 1}
    assert {op.pass_index for op in first if op.stage == "optimizer"} == {1}


@pytest.mark.slow
def test_a_forward_that_checkpointing_repeats_is_recompute():
    for situation in ("reentrant", "not reentrant"):
        _, ops, _ = train(situation, traced=True)
        repeated = [op for op in ops if op.stage == "recompute"]
        assert {op.module.split(".")[0] for op in repeated if op.module} == {"blocks"}
        assert any(op.op == "aten.gelu.default" for op in repeated)


def test_an_optimizers_operations_belong_to_the_module_of_their_parameter():
    _, ops, _ = train("adam", traced=True)
    moments = [op for op in ops if op.op == "aten.lerp_.Scalar" and op.step == 1]
    assert [op.module for op in moments] == ["fc1", "fc1", "fc2", "fc2", "fc3", "fc3"]
    assert {op.stage for op in moments} == {"optimizer"}


def test_a_closure_that_an_optimizer_calls_is_forward_and_backward():
    _, ops, _ = train("lbfgs", traced=True)
    losses = [op for op in ops if op.op == "aten.mse_loss.default"]
    assert losses
    assert {op.stage for op in losses} == {"forward"}
    assert any(op.stage == "optimizer" for op in ops)


def test_a_users_own_backward_has_its_own_line():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g.mul(2)

    w = torch.randn(3, requires_grad=True)
    ops = traced(lambda: Double.apply(w).sum().backward())
    inside = one(ops, "aten.mul.Tensor", stage="backward")
    assert inside.node == "DoubleBackward"
    assert inside.where.startswith("test_ops.py:")


def test_what_runs_inside_a_tensor_of_another_class_is_seen():
    class Wrapped(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
            made.inner = inner
            return made

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            plain = [one.inner if isinstance(one, Wrapped) else one for one in args]
            return Wrapped(func(*plain, **(kwargs or {})))

    x = Wrapped(torch.ones(3))
    found = []
    ops = traced(lambda: found.append(x.sin()))
    assert isinstance(found[0], Wrapped)
    assert one(ops, "aten.sin.default").outputs[0].digest


def test_a_training_may_run_code_on_fake_tensors_while_it_is_traced():
    found = []

    def body():
        with FakeTensorMode():
            found.append((torch.randn(5, 5) @ torch.randn(5, 5)).t())
        found.append(make_fx(torch.sin, tracing_mode="fake")(torch.ones(3))(torch.ones(3)))
        torch.ones(3).cos()

    ops = traced(body)
    assert found[0].shape == (5, 5)
    assert torch.equal(found[1], torch.ones(3).sin())
    assert one(ops, "aten.cos.default").outputs[0].digest
    assert "aten.mm.default" not in {op.op for op in ops}, "fake tensors have no values"


def test_digests_may_be_of_outputs_alone_or_of_nothing():
    def body():
        torch.ones(3).sin()

    for choice, expected in (("outputs", (False, True)), ("none", (False, False))):
        op = one(traced(body, digests=choice), "aten.sin.default")
        assert (op.inputs[0].digest is not None, op.outputs[0].digest is not None) == expected


def test_tensors_without_values_have_no_digest_and_disturb_nothing():
    def body():
        torch.empty(3, device="meta").sin()
        torch.eye(3).to_sparse().coalesce()
        torch.empty(0).sin()

    ops = traced(body)
    assert one(ops, "aten.sin.default", index=1).outputs[0].digest is None
    assert ops[-1].outputs[0].digest is not None, "an empty tensor has the digest of no bytes"


def test_memory_that_nobody_has_written_yet_has_no_digest():
    ops = traced(lambda: torch.empty(3, 3).bernoulli_(0.5).add_(1))
    assert [op.op.split(".")[1] for op in ops] == ["empty", "bernoulli_", "add_"]
    assert ops[0].outputs[0].digest is None
    assert ops[1].inputs[0].digest is None
    assert ops[1].outputs[0].digest == ops[2].inputs[0].digest is not None


def test_traced_tensors_stay_resizable():
    x, model = torch.randn(3), nn.Linear(3, 3)
    held = []
    traced(lambda: held.append(functional.relu(model(x))), model)
    for tensor in (x, model.weight, held[0]):
        assert tensor.untyped_storage().resizable()
