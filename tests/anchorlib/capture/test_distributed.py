"""Distributed training on gloo: local and reduced gradients told apart, shards, no collectives."""

from __future__ import annotations

import os
import socket
import subprocess
import textwrap

import numpy as np
import pytest
import torch
from torch import nn

import anchorlib
from tests.warm import warm_python

pytestmark = pytest.mark.slow

PROLOGUE = """
import os, sys, torch, torch.distributed as dist
from torch import nn
import anchorlib
torch.set_num_threads(1)
rank, world, store = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[1]
dist.init_process_group("gloo", rank=rank, world_size=world)
torch.manual_seed(0)
"""
EPILOGUE = """
dist.barrier()
dist.destroy_process_group()
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_ranks(script, store, world=2):
    port = str(free_port())
    body = PROLOGUE + textwrap.dedent(script) + EPILOGUE
    clean = {k: v for k, v in os.environ.items() if not k.startswith("ANCHOR_")}
    ranks = [
        subprocess.Popen(
            [warm_python(), "-c", body, str(store)],
            env={
                **clean,
                "RANK": str(rank),
                "WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    for rank in ranks:
        _, said = rank.communicate(timeout=120)
        assert rank.returncode == 0, said
    return anchorlib.open_run("run1", store)


def test_ddp_pass_gradients_are_local_and_the_consumed_one_is_averaged(tmp_path):
    run = run_ranks(
        """
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        ddp = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        with anchorlib.start("run1", store=store) as session:
            session.watch(ddp, tensors="*", optimizer=optimizer)
            torch.manual_seed(10 + rank)
            for _ in range(2):
                optimizer.zero_grad()
                ddp(torch.randn(5, 3)).pow(2).sum().backward()
                optimizer.step()
        """,
        tmp_path,
    )
    assert run.ranks == [0, 1]
    names = {info.name for info in run.tensors()}
    assert {"0", "2", "output", "0.weight", "2.bias"} <= names
    assert not any("module" in name for name in names)
    local = [run.series("0.weight", "pass_grad", rank=r).values() for r in (0, 1)]
    consumed = [run.series("0.weight", "grad", rank=r).values() for r in (0, 1)]
    assert np.array_equal(consumed[0], consumed[1])
    assert not np.array_equal(local[0], local[1])
    assert np.allclose((local[0] + local[1]) / 2, consumed[0], atol=1e-6)
    assert np.array_equal(
        run.series("0.weight", "updated", rank=0).values(),
        run.series("0.weight", "updated", rank=1).values(),
    )


def test_fsdp_records_local_shards_without_any_collective(tmp_path):
    run = run_ranks(
        """
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.device_mesh import init_device_mesh
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
        whole = {n: p.detach().clone() for n, p in model.named_parameters()}
        mesh = init_device_mesh("cpu", (world,))
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with anchorlib.start("run1", store=store) as session:
            session.watch(model, tensors="*", optimizer=optimizer)
            anchorlib.anchor(whole["0.weight"], "whole", grad=False)
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(5, 4)).pow(2).sum().backward()
                # One rank alone does something more: a collective of ours would hang here.
                if rank == 0:
                    anchorlib.anchor(model[0].weight, "only_rank_0", grad=False)
                optimizer.step()
        """,
        tmp_path,
    )
    shards = [run.series("0.weight", rank=r).values() for r in (0, 1)]
    assert shards[0].shape == (2, 3, 4)
    whole = run.series("whole", rank=0).values()[0]
    assert np.array_equal(np.concatenate([s[0] for s in shards]), whole)
    for rank in (0, 1):
        per_pass = run.series("0.weight", "pass_grad", rank=rank).values()
        consumed = run.series("0.weight", "grad", rank=rank).values()
        assert np.array_equal(per_pass, consumed)  # both are reduced: sharding has no local one
        delta = run.series("0.weight", "delta", rank=rank).values()
        assert np.allclose(delta, -0.1 * consumed, atol=1e-7)
    # Sharded along dimension 0 of (6, 4): said once, since it stays so.
    lies = run.series("0.weight:placements", "grad", rank=1).values()
    assert lies.tolist() == [[[1, 0], [-1, 6], [-1, 4]]]
    assert run.series("only_rank_0", rank=0).values().shape == (2, 3, 4)
    assert run.series("output", rank=1).values().shape == (2, 5, 2)


def test_a_sharded_gradient_that_is_a_running_sum_is_counted_not_recorded(tmp_path):
    run = run_ranks(
        """
        from torch.distributed.fsdp import fully_shard
        model = nn.Sequential(nn.Linear(4, 6))
        fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with anchorlib.start("run1", store=store) as session:
            session.watch(model, tensors=["0.weight@pass_grad"], optimizer=optimizer)
            for _ in range(3):
                model(torch.ones(5, 4)).sum().backward()
            optimizer.step()
        """,
        tmp_path,
        world=1,
    )
    assert len(run["0.weight@pass_grad"]) == 1
    (gap,) = run.gaps()
    assert "sum over passes" in gap.reason
    assert gap.count == 2


@pytest.fixture
def one_rank():
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    dist.init_process_group("gloo", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_dtensor_is_its_local_shard(one_rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    from tests.recording import recording

    mesh = init_device_mesh("cpu", (1,))
    w = torch.randn(4, 3)
    leaf = distribute_tensor(w, mesh, [Shard(0)]).requires_grad_()
    with recording() as run:
        h = leaf * 2
        anchorlib.anchor(h, "h")
        h.sum().backward()
    assert np.array_equal(run.arrays("h")[0], (w * 2).numpy())
    assert run.arrays("h:placements")[0].tolist() == [[1, 0], [-1, 4], [-1, 3]]
    assert run.arrays("h", "grad")[0].tolist() == torch.ones(4, 3).tolist()


def test_data_parallel_on_a_machine_without_gpus_passes_through():
    from tests.recording import recording

    model = nn.DataParallel(nn.Linear(3, 2))
    with recording() as run:
        run.session.watch(model)
        model(torch.randn(4, 3)).sum().backward()
    assert "weight@pass_grad" in run.names()
