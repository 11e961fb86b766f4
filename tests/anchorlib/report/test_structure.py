"""What two runs are made of: modules, shapes and operations that differ are told, by module."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import anchorlib
from anchorlib.diagnosis import compare
from anchorlib.report.gathering import gather
from anchorlib.report.structure import MOST_NODES, structure
from tests.anchorlib.report.compared import compared
from tests.cli.made import make_run, record


class Net(nn.Module):
    """A body and a head, the body of any modules."""

    def __init__(self, body: list[nn.Module], out: int = 2) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)
        self.head = nn.Linear(4, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def trained(store, name, net):
    """A run of one step of `net`."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with anchorlib.start(name, store=store) as session:
        session.watch(net, optimizer=optimizer)
        net(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    return anchorlib.open_run(name, store)


def nodes(a, b):
    """The nodes of two runs: path -> (change, names, facts)."""
    told = structure(compare(a, b), gather(a), gather(b))
    assert told["more"] == 0
    return {path: (change, names, facts) for path, change, names, facts in told["nodes"]}


def test_runs_of_one_model_have_equal_modules_only(tmp_path):
    a, b = (trained(tmp_path, name, Net([nn.Linear(4, 4)])) for name in "ab")
    found = nodes(a, b)
    assert {change for change, _, _ in found.values()} == {"equal"}
    assert set(found) == {"body", "head", "output"}


def test_a_module_of_one_run_alone_is_one_node_with_all_its_names(tmp_path):
    a = trained(tmp_path, "a", Net([nn.Tanh()]))
    b = trained(tmp_path, "b", Net([nn.Tanh(), nn.Linear(4, 4)]))
    assert nodes(a, b)["body.1"] == ("added", 3, [])
    assert nodes(b, a)["body.1"] == ("removed", 3, [])


def test_a_module_that_computes_otherwise_says_by_which_operations(tmp_path):
    bodies = (("a", nn.Tanh()), ("b", nn.GELU()))
    a, b = (trained(tmp_path, name, Net([nn.Linear(4, 4), one])) for name, one in bodies)
    change, _, facts = nodes(a, b)["body.1"]
    assert change == "other"
    assert facts == [
        ["module", "Tanh()", "GELU(approximate='none')"],
        ["operations", "TanhBackward0", "GeluBackward0"],
    ]


def test_a_view_is_no_other_operation(tmp_path):
    bodies = (("a", nn.Identity()), ("b", nn.Flatten()))
    a, b = (trained(tmp_path, name, Net([nn.Tanh(), one])) for name, one in bodies)
    assert nodes(a, b)["body.0"][0] == "equal"


def test_another_width_is_another_shape(tmp_path):
    a, b = (trained(tmp_path, n, Net([nn.Tanh()], out)) for n, out in (("a", 2), ("b", 3)))
    assert nodes(a, b)["head.weight"] == ("other", 1, [["shape", "2×4", "3×4"]])


@pytest.mark.slow
def test_no_more_than_a_bounded_number_is_listed_and_the_rest_is_counted(tmp_path):
    many = MOST_NODES + 10
    for name, size in (("a", 1), ("b", 2)):
        parts = [record(f"x{number}", "value", np.ones(size)) for number in range(many)]
        make_run(tmp_path, parts, name)
    a, b = (anchorlib.open_run(name, tmp_path) for name in "ab")
    told = structure(compared(a, b), gather(a), gather(b))
    assert len(told["nodes"]) == MOST_NODES
    assert told["more"] == 10
