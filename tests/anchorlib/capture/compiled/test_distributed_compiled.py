"""Distributed training of compiled models, and of layers that tensors are split across."""

from __future__ import annotations

import numpy as np
import pytest

from tests.anchorlib.capture.test_distributed import run_ranks

TRAIN = """
def train(run, model, call):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with anchorlib.start(run, store=store) as session:
        session.watch(call, tensors="*", optimizer=optimizer)
        for n in range(2):
            optimizer.zero_grad()
            call(X * (n + 1)).pow(2).sum().backward()
            optimizer.step()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        h = torch.tanh(self.up(x))
        anchorlib.anchor(h, "h")
        anchorlib.print_tensor(h, "h")
        return self.down(h)

torch.manual_seed(10 + rank)
X = torch.randn(5, 4)
torch.manual_seed(0)
"""

DDP = """
ddp = nn.parallel.DistributedDataParallel
train("plain", model := ddp(Net()), model)
torch.manual_seed(0)
train("run1", model := ddp(Net()), torch.compile(model, backend="aot_eager"))
"""

FSDP = """
from torch.distributed.fsdp import fully_shard
def sharded(compiled):
    model = Net()
    for layer in (model.up, model.down):
        if compiled:
            layer.compile(backend="aot_eager")
        fully_shard(layer)
    return fully_shard(model)

train("plain", model := sharded(False), model)
torch.manual_seed(0)
train("run1", model := sharded(True), model)
"""

SPLIT = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module,
)
mesh = init_device_mesh("cpu", (world,))
X = torch.ones(5, 4)
model = Net()
train("plain", model, model)
torch.manual_seed(0)
plan = {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel()}
model = parallelize_module(Net(), mesh, plan)
train("run1", model, model)
"""


def run_of(store, script):
    """What both ranks recorded, and the same trained without what is tested."""
    import anchorlib

    run = run_ranks(TRAIN + script, store)
    return run, anchorlib.open_run("plain", store)


@pytest.mark.long
@pytest.mark.parametrize(
    "script", [DDP, pytest.param(FSDP, marks=pytest.mark.long)], ids=["DDP", "FSDP"]
)
def test_a_compiled_model_is_recorded_as_the_model_itself_on_every_rank(tmp_path, script):
    run, plain = run_of(tmp_path, script)
    wanted = {(i.name, i.kind): i.records for i in plain.tensors()}
    assert {(i.name, i.kind): i.records for i in run.tensors()} == wanted
    assert {"up", "h", "output", "up.weight"} <= {name for name, _ in wanted}
    for name, kind in wanted:
        for rank in (0, 1):
            got, truth = (r.series(name, kind, rank=rank).values() for r in (run, plain))
            np.testing.assert_allclose(got, truth, rtol=1e-4, atol=1e-5, err_msg=f"{name}@{kind}")


def test_split_layers_record_their_shards_and_how_they_lie(tmp_path):
    run, plain = run_of(tmp_path, SPLIT)
    for name, kind, axis in (
        ("h", "value", -1),
        ("h", "grad", -1),
        ("up.weight", "grad", -2),
        ("down.weight", "updated", -1),
    ):
        shards = [run.series(name, kind, rank=rank).values() for rank in (0, 1)]
        whole = plain.series(name, kind, rank=0).values()
        np.testing.assert_allclose(np.concatenate(shards, axis), whole, rtol=1e-4, atol=1e-5)
    assert run.series("h:placements", rank=0).values().tolist() == [[[1, 1], [-1, 5], [-1, 6]]]
