"""Where torch has moved a private name, compiled graphs are read by what is left."""

from __future__ import annotations

import logging
import shutil

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd import graph_compile

from anchorlib.capture.tracing import graph_reader, log_listener, running_nodes
from anchorlib.capture.tracing.graph_texts import read_text
from anchorlib.operations import read_entries
from tests.anchorlib.capture.tracing.programs import Net
from tests.recording import recording

pytestmark = [
    pytest.mark.slow,  # compilers take their time
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),  # inductor's own
]

LOGGER = logging.getLogger(f"{graph_compile.__name__}.__aot_graphs")


def hidden(graph_module, _inputs):
    """A backend of AOT's that runs its graphs out of sight."""

    def run(*args):
        with torch._C._DisableTorchDispatch():
            return graph_module.forward(*args)

    return make_boxed_func(run)


class Normed(Net):
    def forward(self, x):
        return nn.functional.layer_norm(super().forward(x), (3,)).topk(2)[0]


def trained(backend, model=None, steps=2):
    """The operations and the gaps of a compiled training."""
    torch._dynamo.reset()
    model = Normed() if model is None else model
    call = torch.compile(model, backend=backend)
    with recording() as run:
        run.session.watch(model, tensors=[])
        run.session.trace(steps)
        for _ in range(steps):
            call(torch.ones(4, 6)).sum().backward()
            run.session.step()
        with torch.no_grad():
            call(torch.ones(2, 6))
    return read_entries(run.sink.traced), set(run.session.counters.skipped)


def unseen():
    """A backend of AOT's that runs its graphs out of sight."""
    return aot_autograd(fw_compiler=hidden, bw_compiler=hidden)


def shown(op):
    """What the text of a graph tells of an operation."""
    inputs = [(one.argument, one.dtype, one.shape, one.stride) for one in op.inputs]
    outputs = [(one.dtype, one.shape, one.stride) for one in op.outputs]
    return op.op, op.stage, inputs, outputs, op.args, op.producers, op.mutates, op.view


@pytest.fixture(scope="module")
def whole():
    """The operations of a training whose graphs run out of sight, read from the graphs."""
    return [op for op in trained(unseen())[0] if op.source == "aot"]


@pytest.fixture
def heard(monkeypatch):
    """What the program's own handler of AOT's texts is given."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    monkeypatch.setattr(LOGGER, "handlers", [handler])
    monkeypatch.setattr(LOGGER, "propagate", False)
    yield said
    LOGGER.manager._clear_cache()


@pytest.mark.parametrize("moved", [("_log_fw_bw_graphs",), graph_reader.AOT_LOGS])
def test_graphs_are_read_from_their_text_where_their_objects_cannot_be_had(
    whole, moved, monkeypatch, heard
):
    level = LOGGER.level
    for name in moved:
        hide(monkeypatch, name)
    ops, gaps = trained(unseen())
    found = [op for op in ops if op.source == "aot"]
    assert [shown(op) for op in found] == [shown(op) for op in whole]
    assert not any(op.module or op.seq is not None for op in found)
    assert all(one.digest is None for op in found for one in (*op.inputs, *op.outputs))
    assert "modules and numbers of operations in graphs that were read from their text" in gaps
    for name in moved:
        told = "graphs of backends of AOT's: this torch has no "
        assert f"{told}{graph_compile.__name__}.{name}" in gaps
    assert (LOGGER.level, LOGGER.filters) == (level, [])
    assert not heard, "torch logs no more than without a trace"


def test_a_program_that_asked_for_the_texts_gets_them_as_ever(monkeypatch, heard):
    monkeypatch.setattr(LOGGER, "level", logging.INFO)
    LOGGER.manager._clear_cache()
    hide(monkeypatch, "_log_fw_bw_graphs")
    trained(unseen())
    assert sum("Backward graph" in one for one in heard) == 1
    assert LOGGER.level == logging.INFO


@pytest.fixture
def logger(monkeypatch):
    """A logger that stands for those through which torch logs a kind."""
    one = logging.getLogger("anchorlib.tests.heard")
    monkeypatch.setattr(log_listener, "loggers_of", lambda _: [one])
    yield one
    one.setLevel(logging.NOTSET)


@pytest.mark.parametrize("chosen", [logging.DEBUG, logging.ERROR, logging.NOTSET])
def test_a_level_that_the_program_sets_while_it_is_heard_stays(logger, chosen):
    listener = log_listener.LogListener(lambda _: None)
    listener.begin("any")
    logger.setLevel(chosen)
    listener.end()
    assert (logger.level, logger.filters) == (chosen, [])


def test_a_program_sees_what_it_asked_for_at_each_moment(logger, caplog):
    said = []
    listener = log_listener.LogListener(lambda message: said.append(message.getMessage()))
    logger.setLevel(logging.INFO)
    listener.begin("any")
    logger.debug("one")
    logger.setLevel(logging.DEBUG)
    logger.debug("two")
    listener.end()
    assert said == ["one", "two"]
    assert caplog.messages == ["two"]


def hide(monkeypatch, name):
    """Let a private function of torch be called as ever, and be found under its name no more."""
    found = graph_reader.getattr if hasattr(graph_reader, "getattr") else getattr

    def without(holder, asked, *default):
        if asked == name and str(getattr(holder, "__name__", "")).startswith("torch."):
            return None
        return found(holder, asked, *default)

    monkeypatch.setattr(graph_reader, "getattr", without, raising=False)


def test_graphs_are_read_from_their_text_where_the_module_of_their_objects_is_gone(
    whole, monkeypatch
):
    monkeypatch.setattr(graph_reader, "AOT_MODULE", "torch._functorch._aot_autograd.elsewhere")
    ops, gaps = trained(unseen())
    assert [shown(op) for op in ops if op.source == "aot"] == [shown(op) for op in whole]
    assert any("this torch has no torch._functorch._aot_autograd.elsewhere" in one for one in gaps)


def test_lines_of_user_code_stand_in_the_text_of_a_graph():
    text = """TRACED GRAPH
 ===== Backward graph 3 =====
 torch/fx/_lazy_graph_module.py class GraphModule(torch.nn.Module):
    def forward(self, x: "\x1b[31mf32\x1b[0m[4, s0][s0, 1]cpu", many, n: "Sym(s0)"):
        # File: /home/me/train.py:12 in forward, code: return torch.cat([x, x]).relu_()
        cat: "f32[8, s0]" = torch.ops.aten.cat.default([x, x], 1)
        relu_ = torch.ops.aten.relu_.default(cat);  cat = None

        # No stacktrace found for following nodes
        other = torch.ops.nowhere.other.default(relu_, dtype = torch.float32, flag = None)
        return [other, None]
"""
    [cat, relu, other] = read_text(text).graph.ops
    assert (cat.op, cat.node.where, cat.node.is_backward) == (
        "aten.cat.default",
        "train.py:12",
        True,
    )
    assert [form[:3] for form in cat.inputs] == [
        (f"tensors[{at}]", "float32", (4, 0)) for at in (0, 1)
    ]
    assert (cat.args, cat.outputs[0][2]) == ("dim=1", (8, 0))
    assert (relu.node.where, relu.mutates, relu.takes) == ("train.py:12", (0,), (("cat", 0),))
    assert (other.op, other.node.where, other.args) == (
        "nowhere.other.default",
        "",
        "dtype=float32",
    )


@pytest.mark.parametrize("text", ["", "aot_config id: 0, fw_metadata=ViewAndMutationMeta()"])
def test_a_text_without_a_graph_has_none(text):
    assert read_text(text) is None


def test_what_a_graph_tells_of_a_running_line_is_told_without_the_table_of_lines(monkeypatch):
    whole, _ = trained("aot_eager")
    monkeypatch.setattr(running_nodes, "node_lines", lambda _: None)
    found, _ = trained("aot_eager")
    assert [(op.op, op.stage, op.module, op.seq, op.where, op.source) for op in found] == [
        (op.op, op.stage, op.module, op.seq, op.where, op.source) for op in whole
    ]
    assert any(op.source == "graph" and op.module == "tanh1" and op.seq is not None for op in found)


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
@pytest.mark.parametrize("name", ["log_ir_post_fusion", "CompiledFxGraph", "V"])
def test_without_a_name_of_inductors_its_graphs_are_listed_once_as_aot_made_them(name, monkeypatch):
    if name == "V":
        monkeypatch.setattr(graph_reader, "inductors_graph", lambda: torch._inductor.nowhere)
    else:
        hide(monkeypatch, name)
    ops, gaps = trained("inductor")
    listed = [op for op in ops if op.source == "aot"]
    assert {op.step for op in listed} == {0}
    assert not [op for op in ops if op.source == "inductor"]
    backward = [op for op in listed if op.module == "tanh1" and op.stage == "backward"]
    assert [op.origin for op in backward if op.op == "aten.sub.Tensor"] == [
        "aten.tanh_backward.default"
    ]
    assert any(name in reason or "nowhere" in reason for reason in gaps)
