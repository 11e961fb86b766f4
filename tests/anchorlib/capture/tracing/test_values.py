"""`trace(values=...)` keeps what selected operations take and make, and changes nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import anchorlib
from anchor_server import Collector
from anchorlib.capture.tracing.dispatch_mode import OpMode
from anchorlib.errors import OptionError
from anchorlib.operations import gaps_of, kept_as, kept_name, read_entries
from tests.anchorlib.capture.tracing.programs import Net, train
from tests.recording import recording

DEMANDING = (
    *("foreach", "reentrant", "vmap of grad", "autocast", "bfloat16", "aot_eager"),
    pytest.param("inductor, bfloat16", marks=pytest.mark.long),
)
TANH = "tanh1/aten.tanh_backward.default"


def one_step(values, call=None, model=None, **options):
    """The recording of one step of a small net, nothing of which is recorded but these values."""
    model = Net() if model is None else model
    with recording() as run:
        run.session.watch(model, tensors=[])
        run.session.trace(1, values=values, **options)
        call = model if call is None else call
        call(torch.ones(4, 6)).sum().backward()
        run.session.step()
    return run


def reasons(run):
    return [gap.reason for gap in gaps_of(run.sink.traced)]


def traced(body, values, **options):
    """The recording of one step that is `body`."""
    with recording(**options) as run:
        run.session.trace(1, values=values)
        body()
        run.session.step()
    return run


def test_every_kept_tensor_has_the_bits_that_its_operation_took_or_made():
    run = one_step("*")
    kept = {(r.name, r.kind, r.coordinates.call): r for r in run.sink.records}
    calls, seen = {}, 0
    for op in read_entries(run.sink.traced):
        name = kept_name(op.module, op.op)
        calls[name] = call = calls.get(name, -1) + 1
        for kind, operand in kept_as(op):
            record = kept.pop((name, kind, call))
            assert record.summary.digest.hex() == operand.digest
            assert (record.shape, record.dtype) == (operand.shape, operand.dtype)
            seen += 1
    assert not kept
    assert seen > 40
    assert not reasons(run)


def test_an_operation_in_place_has_its_input_of_before_and_its_output_of_after():
    x, out = torch.ones(3), torch.zeros(3)

    def body():
        x.add_(2)
        torch._foreach_mul_([x], 5)
        torch.neg(x, out=out)

    run = traced(body, "*")
    values = {(r.name, r.kind): r.array.tolist() for r in run.sink.records}
    assert values["aten.add_.Tensor", "op.in.self"] == [1, 1, 1]
    assert values["aten.add_.Tensor", "op.out"] == [3, 3, 3]
    assert values["aten._foreach_mul_.Scalar", "op.in.self[0]"] == [3, 3, 3]
    assert values["aten._foreach_mul_.Scalar", "op.out.self[0]"] == [15, 15, 15]
    assert values["aten.neg.out", "op.in.out"] == [0, 0, 0]
    assert values["aten.neg.out", "op.out"] == [-15, -15, -15]


def test_views_are_kept_and_memory_that_nobody_has_written_is_not():
    def body():
        torch.empty(4, 3).fill_(1).t()[1:]

    kept = {(r.name, r.kind): r for r in traced(body, "*").sink.records}
    assert kept["aten.slice.Tensor", "op.out"].array.tolist() == [[1] * 4] * 2
    assert ("aten.empty.memory_format", "op.out") not in kept
    assert ("aten.fill_.Scalar", "op.in.self") not in kept


@pytest.mark.parametrize(
    "selector",
    [
        *("aten.tanh_backward.default", "aten.tanh_backward", "tanh_backward", "*tanh_back*"),
        *("tanh1/tanh_backward", "tanh1/*", "tanh1/aten.tanh_backward", "re:.*/tanh_ba.*"),
        *("tanh1", "tanh?"),
    ],
)
def test_an_operation_is_selected_by_its_name_or_by_its_module_or_by_both(selector):
    run = one_step([selector])
    modules = {name.partition("/")[0] for name in {r.name for r in run.sink.records}}
    assert {"op.in.grad_output", "op.in.output", "op.out"} == {
        r.kind for r in run.sink.records if r.name == TANH
    }
    of_one = "tanh1" in selector
    assert modules == ({"tanh1"} if of_one else {"tanh1", "tanh2"})
    if "back" in selector:
        assert {r.name.rpartition("/")[2] for r in run.sink.records} == {TANH[6:]}


def test_a_kind_narrows_a_selector_to_some_of_an_operations_tensors():
    run = one_step([f"{TANH}@op.out", "tanh2/*backward@op.in.*"])
    taken = ("op.in.grad_output", "op.in.output")
    assert run.names() == [
        *(f"tanh2/aten.tanh_backward.default@{kind}" for kind in taken),
        f"{TANH}@op.out",
    ]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("", "is empty"),
        (["tanh", ""], "is empty"),
        (["@op.out"], "is empty"),
        ([3], "is a text"),
        (3, "are selectors"),
        (["re:("], "a selector of operations or modules"),
        (["fc1@grad"], "op.in.ARGUMENT"),
    ],
)
def test_what_is_no_selector_is_refused_in_a_line_before_anything_is_traced(values, said):
    with recording() as run:
        with pytest.raises(OptionError, match=said) as refused:
            run.session.trace(1, values=values)
        assert "\n" not in str(refused.value)
        assert not torch._C._len_torch_dispatch_stack()


def test_a_selector_that_selects_nothing_is_said_and_is_a_gap(caplog):
    run = one_step(["tanh_backward", "tanh_bckward"])
    assert reasons(run) == ["values of operations named 'tanh_bckward': no traced operation is"]
    [line] = [r.getMessage() for r in caplog.records if "trace(values=" in r.getMessage()]
    assert "'tanh_bckward'" in line


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")  # torch's own
def test_tensors_without_plain_values_are_gaps_of_the_trace_and_not_of_records():
    def body():
        torch.eye(3).to_sparse()
        torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
        torch.empty(3, device="meta").sin()

    run = traced(body, "*")
    told = {reason.rpartition(": ")[2] for reason in reasons(run)}
    assert told == {
        "a tensor of layout sparse_coo is not kept whole",
        "a tensor of qint8 is not kept whole",
        "a meta tensor is not kept whole",
    }
    assert not run.session.counters.gaps
    assert "aten.quantize_per_tensor.default@op.in.self" in run.names()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")  # torch's own
def test_a_nested_tensor_ends_no_trace_and_is_a_gap_of_its_values():
    def body():
        _ = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)]) * 2
        torch.ones(3).cos()

    run = traced(body, "*")
    assert "a nested tensor is not kept whole" in {
        reason.rpartition(": ")[2] for reason in reasons(run)
    }
    assert not any("has ended" in reason for reason in reasons(run))
    assert "aten.cos.default@op.out" in run.names()


def test_without_values_the_mode_of_a_trace_is_the_one_that_keeps_none():
    with recording() as run:
        run.session.trace(1)
        mode = torch.utils._python_dispatch._get_current_dispatch_mode()
        run.session.step()
    assert type(mode) is OpMode
    assert not run.sink.records


@pytest.mark.slow
@pytest.mark.parametrize("situation", DEMANDING)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # inductor's own
def test_a_training_whose_values_are_kept_has_the_bits_of_an_unobserved_one(situation):
    plain, _, _ = train(situation, traced=False)
    kept, _, run = train(situation, traced=True, values="*")
    assert all(torch.equal(a, b) for a, b in zip(plain, kept, strict=True))
    assert any(r.kind == "op.out" for r in run.sink.records)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # inductor's own
def test_of_compiled_code_what_lies_in_memory_is_kept_and_the_rest_is_a_gap():
    torch.manual_seed(0)
    model = Net()
    run = one_step(["tanh2", "fc2/mm"], torch.compile(model), model)
    ops = [op for op in read_entries(run.sink.traced) if op.source == "inductor"]
    digests = {r.kind: r.summary.digest.hex() for r in run.sink.records if "aten.mm" in r.name}
    product = [op for op in ops if (op.module, op.op) == ("fc2", "aten.mm.default")][-1]
    assert digests == {kind: one.digest for kind, one in kept_as(product)}
    inner = [
        op for op in ops if op.module == "tanh2" and op.origin.endswith("tanh_backward.default")
    ]
    assert [op.op for op in inner] == ["aten.mul.Tensor", "aten.sub.Tensor", "aten.mul.Tensor"]
    assert "tanh2/aten.mul.Tensor@op.in.self" in run.names(), "the graph was given it"
    assert "tanh2/aten.sub.Tensor@op.out" not in run.names(), "it is in no memory"
    assert "values of aten.sub.Tensor: a kernel of Inductor's computes them" in " ".join(
        reasons(run)
    )


@pytest.mark.slow
def test_of_a_graph_that_runs_operation_by_operation_all_is_kept():
    model = Net()
    run = one_step("tanh_backward", torch.compile(model, backend="aot_eager"), model)
    assert {f"{TANH}@{kind}" for kind in ("op.in.grad_output", "op.in.output", "op.out")} < set(
        run.names()
    )
    assert not reasons(run)


# -- what becomes of them


def training(store, name, act, values, **options):
    """A stored training that keeps values of its first step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), act(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with anchorlib.start(name, store=store, **options) as session:
        session.watch(model, optimizer=optimizer)
        session.trace(1, values=values)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()


@pytest.mark.slow
def test_a_comparison_is_the_same_whichever_runs_have_kept_values(tmp_path):
    training(tmp_path, "plain", nn.Tanh, ())
    training(tmp_path, "kept", nn.Tanh, ["*", "nothing"])
    training(tmp_path, "full", nn.Tanh, "*", max_bytes=2000)
    training(tmp_path, "other", lambda: nn.Sequential(nn.Sigmoid(), nn.Tanh()), "*")
    full = anchorlib.open_run("full", tmp_path)
    assert any(gap.kind.startswith("op.") for gap in full.gaps()), "some values had no room"

    def compared(a, b, **options):
        told = anchorlib.compare(a, b, store=tmp_path, **options).to_dict()
        return {key: told[key] for key in ("verdict", "counts", "complete", "origins", "ops")}

    plain = compared("plain", "plain")
    assert plain["verdict"] == "identical"
    assert compared("plain", "kept") == plain
    assert compared("kept", "plain") == plain
    assert compared("kept", "other") == compared("plain", "other")
    narrowed = compared("kept", "kept", tensors="1/aten.tanh*@op.*")
    assert narrowed["counts"]["matched"] == 5, "those that are asked for by name are compared"


@pytest.mark.slow
def test_kept_values_reach_a_collector_and_readers_as_other_records_do(tmp_path):
    with Collector(tmp_path, bind="127.0.0.1:0") as collector:
        store = f"grpc://{collector.address}"
        training(store, "run1", nn.Tanh, "tanh_backward")
        run = anchorlib.open_run("run1", store)
        series = run["1/aten.tanh_backward.default@op.out"]
        record = series.record(0, summary=True)
        [op] = [op for op in run.ops() if op.op == "aten.tanh_backward.default"]
        shape = series.values().shape
        taken = run["1/aten.tanh_backward.default@op.in.output"].record(0, summary=True)
        assert run.op_of(record) == run.op_of(taken) == op
        assert run.op_of(series.record(0)) == op, "records are mostly read without their summary"
    assert shape == (1, 3, 8)


def test_the_environment_asks_for_operations_alone(monkeypatch):
    monkeypatch.setenv("ANCHOR_TRACE", "0:1")
    with recording() as run:
        torch.ones(2).sin()
        run.session.step()
    assert read_entries(run.sink.traced)
    assert not run.sink.records
