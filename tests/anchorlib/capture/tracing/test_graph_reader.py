"""Compiled code is read through names of torch, whatever stands behind them."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import fx

from anchorlib.capture.tracing.graph_reader import GraphReader
from anchorlib.capture.tracing.running_nodes import RunningNodes
from anchorlib.torch_private import door


def two_nodes(look):
    """A module of a graph that calls `look` twice, and its nodes."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_function(look, (x,))
    second = graph.call_function(look, (first,))
    graph.output(second)
    return fx.GraphModule(torch.nn.Module(), graph), [first, second]


def test_a_graphs_module_knows_the_node_of_each_of_its_lines():
    found, lines = [], RunningNodes()

    def look(x):
        found.append(lines.node(sys._getframe(1)))
        return x

    module, nodes = two_nodes(look)
    module(torch.ones(1))
    assert [node.name for node in found] == [node.name for node in nodes]
    nodes[0].replace_all_uses_with(next(iter(module.graph.nodes)))
    module.graph.erase_node(nodes[0])
    module.recompile()
    module(torch.ones(1))
    assert found[-1] is nodes[1]


def test_a_graph_is_walked_once_a_step_however_many_operations_it_has(monkeypatch):
    lines, walks = RunningNodes(), []
    module, _ = two_nodes(lambda x: (lines.node(sys._getframe(1)), x)[1])
    nodes = list(module.graph.nodes)
    monkeypatch.setattr(fx.Graph, "nodes", property(lambda _: walks.append(1) or nodes))
    module(torch.ones(1))
    assert len(walks) == 1
    lines.forget()
    module(torch.ones(1))
    assert len(walks) == 2


def test_what_torch_has_otherwise_harms_no_import_of_it(monkeypatch):
    said = []
    broken = SimpleNamespace(__name__="torch._functorch.config", enable_autograd_cache=True)
    monkeypatch.setitem(sys.modules, "torch._functorch.config", broken)
    reader = GraphReader(lambda *_: None, lambda _: None, lambda *_: None, said.append)
    reader.open()
    reader.close()
    assert ["has no attribute 'patch'" in one for one in said] == [True]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # inductor's own
def test_what_cannot_be_put_back_keeps_nothing_else_from_it(monkeypatch):
    class Stubborn:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            raise RuntimeError("the settings are gone")

    said = []
    debug = importlib.import_module("torch._inductor.debug")
    logged = debug.log_ir_post_fusion
    config = SimpleNamespace(
        __name__="torch._functorch.config",
        enable_autograd_cache=True,
        patch=lambda _: Stubborn(),
    )
    monkeypatch.setitem(sys.modules, "torch._functorch.config", config)
    reader = GraphReader(lambda *_: None, lambda _: None, lambda *_: None, said.append)
    reader.open()
    assert debug.log_ir_post_fusion is not logged
    reader.close()
    assert debug.log_ir_post_fusion is logged
    assert ["the settings are gone" in one for one in said] == [True]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # inductor's own
def test_a_name_that_stands_for_another_kind_of_thing_is_left_alone_and_is_a_gap(monkeypatch):
    said = []
    debug = importlib.import_module("torch._inductor.debug")
    monkeypatch.setattr(debug, "log_ir_post_fusion", 7)
    monkeypatch.setattr(door, "_others", {})  # what other tests find is as it was
    reader = GraphReader(lambda *_: None, lambda _: None, lambda *_: None, said.append)
    reader.open()
    assert debug.log_ir_post_fusion == 7
    reader.close()
    lost = "Inductor's graphs and kernels: this torch has another torch._inductor.debug"
    assert [one.startswith(lost) for one in said] == [True]
