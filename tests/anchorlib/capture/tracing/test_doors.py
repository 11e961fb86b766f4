"""torch still has the private names through which compiled code is read."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from anchorlib.capture.tracing.doors import DOORS, missing, node_of


@pytest.mark.parametrize("name", DOORS)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # inductor's own
def test_torch_has_the_name(name):
    assert name not in missing()


def test_a_graphs_module_knows_the_node_of_each_of_its_lines():
    found = []

    def look(x):
        import sys

        found.append(node_of(sys._getframe(1)))
        return x

    graph = fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_function(look, (x,))
    second = graph.call_function(look, (first,))
    graph.output(second)
    fx.GraphModule(torch.nn.Module(), graph)(torch.ones(1))
    assert [node.name for node in found] == [first.name, second.name]
