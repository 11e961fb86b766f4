"""The operations of compiled code are told as those of eager code are."""

from __future__ import annotations

import shutil
import sys
import warnings
from collections import Counter

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._decomp import get_decompositions
from torch._dynamo.backends.common import aot_autograd

from anchorlib.capture.tracing.graph_nodes import ModulePath, _module_path
from anchorlib.capture.tracing.graph_reader import GraphReader
from anchorlib.operations import RecordMakers, computes, read_entries
from tests.anchorlib.capture.tracing.programs import Net, train
from tests.recording import recording

pytestmark = pytest.mark.slow  # compilers take their time


def one_step(call, model, **options):
    """The operations of one step with `call`, which was made of `model`."""
    with recording() as run:
        run.session.watch(model, tensors="*")
        run.session.trace(1, **options)
        call(torch.ones(4, 6)).sum().backward()
        run.session.step()
    return read_entries(run.sink.traced)


def backend(*decomposed):
    """An AOT backend that runs graphs as they are, after these decompositions."""

    def nothing(graph_module, _inputs):
        return make_boxed_func(graph_module.forward)

    table = get_decompositions(decomposed)
    return aot_autograd(fw_compiler=nothing, bw_compiler=nothing, decompositions=table)


def hidden():
    """An AOT backend whose graphs run without a word to modes."""

    def compiles(graph_module, _inputs):
        def run(*args):
            with torch._C._DisableTorchDispatch():
                return graph_module.forward(*args)

        return make_boxed_func(run)

    return aot_autograd(fw_compiler=compiles, bw_compiler=compiles)


def computed(ops, **where):
    return [
        op
        for op in ops
        if not op.view
        and op.op not in {"aten.detach.default", "aten._unsafe_view.default"}
        and all(getattr(op, key) == value for key, value in where.items())
    ]


def names(ops):
    return [op.op.split(".")[1] for op in ops]


def test_two_decomposition_tables_of_one_backend_differ_in_what_they_decompose():
    found = []
    for table in ((), (torch.ops.aten.tanh_backward,)):
        torch._dynamo.reset()
        model = Net()
        ops = one_step(torch.compile(model, backend=backend(*table)), model)
        found.append(computed(ops, stage="backward", module="tanh2"))
    whole, parts = found
    assert names(whole) == ["tanh_backward"]
    assert names(parts) in (["mul", "sub", "mul"], ["mul", "rsub", "mul"])
    assert [op.origin for op in whole] == [""]
    assert {op.origin for op in parts} == {"aten.tanh_backward.default"}
    assert parts[0].seq == whole[0].seq


DROPOUTS = {"empty_like", "bernoulli_", "div_", "mul", "native_dropout", "native_dropout_backward"}


def test_graphs_that_run_operation_by_operation_tell_what_eager_code_tells():
    eager, compiled = (train(how, traced=True)[1] for how in ("transformer", "aot_eager"))
    assert {op.source for op in compiled} == {"eager", "graph"}
    for stage in ("forward", "backward", "accumulate", "optimizer"):
        alike, other = (
            Counter((op.module, op.op) for op in computed(ops, stage=stage))
            for ops in (eager, compiled)
        )
        differing = (alike - other) | (other - alike)
        assert {name.split(".")[1] for _, name in differing} <= DROPOUTS
        assert not differing or stage in {"forward", "backward"}


def function(model):
    @torch.compile(backend="aot_eager")
    def call(x):
        return model(x)

    return call


def method(model):
    model.compile(backend="aot_eager")
    return model


def wrapper(model):
    return torch.compile(model, backend="aot_eager")


@pytest.mark.parametrize(
    ("compiles", "watches_wrapper"),
    [(wrapper, False), (wrapper, True), (method, False), (function, False)],
)
def test_modules_are_known_however_a_model_is_compiled_and_watched(compiles, watches_wrapper):
    torch._dynamo.reset()
    model = Net()
    call = compiles(model)
    ops = one_step(call, call if watches_wrapper else model)
    plain = Net()
    assert placed(ops) == placed(one_step(plain, plain))


def placed(ops):
    """How often each operation of forward and backward computes bits in each module."""
    stages = {"forward", "backward"}
    return Counter((op.module, op.op) for op in ops if op.stage in stages and computes(op))


def test_modules_are_known_of_a_wrapper_whose_backend_runs_it_out_of_sight():
    torch._dynamo.reset()
    call = torch.compile(Net(), backend=hidden())
    ops = [op for op in one_step(call, call) if op.source == "aot"]
    assert {op.module for op in ops if "tanh" in op.op} == {"tanh1", "tanh2"}


def test_a_path_that_leads_over_our_hooks_is_the_path_without_them():
    def hooked(module):
        hooks = f"{module}._forward_pre_hooks"
        return f"{hooks}[list(dict.keys({hooks}))[0]]._module()"

    root = hooked("L['m']")
    deep = hooked(f"{root}.blocks._modules['0']")
    assert _module_path(f"{deep}.fc1") == ModulePath(False, "m", ("blocks", "0", "fc1"))


class Blocks(nn.Module):
    """Two blocks that dynamo compiles once."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2))
        for block in self.blocks:
            block.compile(backend="aot_eager")

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo's own
def test_modules_that_share_one_graph_are_told_apart():
    torch._dynamo.reset()
    model = Blocks()
    ops = [op for op in one_step(model, model) if "tanh" in op.op]
    assert [(op.stage, op.module) for op in ops] == [
        ("forward", "blocks.0.1"),
        ("forward", "blocks.1.1"),
        ("backward", "blocks.1.1"),
        ("backward", "blocks.0.1"),
    ]
    assert [op.seq for op in ops[2:]] == [op.seq for op in reversed(ops[:2])]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # inductor's own
def test_a_compiled_optimizer_is_the_stage_optimizer(inductors):
    del inductors
    torch._dynamo.reset()
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @torch.compile
    def update():
        optimizer.step()

    with recording() as run:
        run.session.watch(model, tensors="*", optimizer=optimizer)
        run.session.trace(1)
        model(torch.ones(1, 2)).sum().backward()
        update()
    written = [op for op in read_entries(run.sink.traced) if op.mutates and op.source != "eager"]
    assert {(op.op, op.stage) for op in written} == {("aten.copy_.default", "optimizer")}
    digests = {op.outputs[0].digest for op in written}
    assert digests == {
        one.summary.digest.hex() for one in run.sink.records if one.kind == "updated"
    }


@pytest.fixture(scope="module")
def inductors():
    """A training that Inductor has compiled: its operations, and its run."""
    if shutil.which("g++") is None:
        pytest.skip("Inductor needs a C++ compiler: there is no g++")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*torch.jit", DeprecationWarning)  # inductor's own
        _, ops, run = train("inductor", traced=True)
    return ops, run


def test_inductors_operations_have_kernel_origin_module_and_number(inductors):
    ops = [op for op in inductors[0] if op.step == 1 and op.source == "inductor"]
    parts = computed(ops, stage="backward", module="tanh2")
    assert names(parts) == ["mul", "sub", "mul"]
    assert {op.origin for op in parts} == {"aten.tanh_backward.default"}
    assert len({op.group for op in parts}) == 1, "one kernel computes all three"
    (forward,) = computed(ops, stage="forward", module="tanh2")
    assert (forward.op, forward.origin, forward.seq) == ("aten.tanh.default", "", parts[0].seq)
    assert forward.group is not None
    assert forward.where.startswith("programs.py:")
    backward = [op for op in ops if op.stage == "backward"]
    assert all(op.module for op in backward)


def test_inductors_values_are_those_that_are_in_memory(inductors):
    ops, run = inductors
    first, _, last = computed([op for op in ops if op.step == 1], stage="backward", module="tanh2")
    assert first.outputs[0].digest is None, "it is in a register alone"
    assert last.outputs[0].digest is not None
    makers = RecordMakers(ops)
    for name, kind in (("tanh2", "value"), ("fc2", "grad"), ("fc1.weight", "pass_grad")):
        (record,) = [one for one in run.records(name, kind) if one.step == 1]
        digest = record.summary.digest.hex()
        maker = makers.maker(name, kind, digest, record.shape, step=1)
        assert maker.source == "inductor"
        assert maker.stage == ("forward" if kind == "value" else "backward")


def test_inductors_operations_lead_from_eager_ones_to_eager_ones(inductors):
    ops = [op for op in inductors[0] if op.step == 1]
    (loss,) = [op for op in ops if op.op == "aten.mse_loss.default"]
    assert ops[loss.producers[0]].source == "inductor"
    assert ops[loss.producers[0]].module == "fc3"
    (first, *_) = [op for op in ops if op.source == "inductor" and "addmm" in op.op]
    assert {ops[one].op for one in first.producers if one is not None} >= {"aten.randn.default"}


def test_code_that_was_compiled_before_its_trace_is_a_gap_and_is_not_compiled_again(inductors):
    del inductors
    torch._dynamo.reset()
    model = Net()
    call = torch.compile(model)
    x = torch.ones(4, 6)
    with recording() as run:
        run.session.watch(model, tensors="*")
        call(x).sum().backward()
        run.session.step()
        before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        run.session.trace(1)
        call(x).sum().backward()
        run.session.step()
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before
    ops = read_entries(run.sink.traced)
    assert {op.source for op in ops} == {"eager"}
    assert not any(op.where.startswith("c") for op in ops), "Inductor's files are nobody's lines"
    assert "operations inside compiled code" in run.session.counters.skipped


def test_a_backend_that_runs_graphs_out_of_sight_has_them_listed_once():
    torch._dynamo.reset()
    model = Net()
    call = torch.compile(model, backend=hidden())
    with recording() as run:
        run.session.watch(model, tensors="*")
        run.session.trace(2)
        for _ in range(2):
            call(torch.ones(4, 6)).sum().backward()
            run.session.step()
    ops = [op for op in read_entries(run.sink.traced) if op.source == "aot"]
    assert {op.step for op in ops} == {0}
    (forward,) = computed(ops, stage="forward", module="tanh1")
    (backward,) = computed(ops, stage="backward", module="tanh1")
    assert (forward.op, backward.op) == ("aten.tanh.default", "aten.tanh_backward.default")
    assert backward.inputs[0].shape == (4, 16)
    assert any("out of sight" in reason for reason in run.session.counters.skipped)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # inductor's own
def test_a_trace_leaves_the_entries_of_the_users_caches_valid(inductors, tmp_path, monkeypatch):
    del inductors
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    found = {}
    counters = torch._dynamo.utils.counters
    for how in ("fills", "traced", "hits"):
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        model = Net()
        call = torch.compile(model)
        if how == "traced":
            assert any(op.source == "inductor" for op in one_step(call, model))
        else:
            call(torch.ones(4, 6)).sum().backward()
        found[how] = Counter(counters["aot_autograd"]) + Counter(counters["inductor"])
    assert found["fills"]["autograd_cache_miss"] == 1
    assert not found["traced"]["autograd_cache_miss"] + found["traced"]["autograd_cache_hit"]
    assert found["hits"]["autograd_cache_hit"] == 1


def test_a_name_that_torch_has_moved_is_a_gap_that_says_it(inductors, monkeypatch):
    del inductors
    from torch._inductor import debug

    said = []
    monkeypatch.setattr(debug, "log_ir_post_fusion", None)
    reader = GraphReader(lambda *_: None, lambda _: None, lambda *_: None, said.append)
    reader.open()
    reader.close()
    assert said == [
        "Inductor's graphs and kernels: this torch has no torch._inductor.debug.log_ir_post_fusion"
    ]


def test_nothing_of_torchs_is_replaced_after_a_trace(inductors):
    del inductors
    import torch._functorch.config as aot
    import torch._inductor.config as inductor
    from torch._functorch._aot_autograd import graph_compile
    from torch._inductor import debug, output_code

    found = (
        graph_compile._log_fw_bw_graphs,
        graph_compile._log_inference_graph,
        debug.log_ir_post_fusion,
        output_code.CompiledFxGraph.__call__,
    )
    assert [one.__module__.partition(".")[0] for one in found] == ["torch"] * 4
    assert (inductor.fx_graph_cache, aot.enable_autograd_cache) == (True, True)
    assert not any(type(one).__name__ == "ImportCallbacks" for one in sys.meta_path)
