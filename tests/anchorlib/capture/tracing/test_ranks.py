"""Distributed trainings are traced on each rank, and compute what they compute untraced."""

from __future__ import annotations

import pytest

from tests.anchorlib.capture.test_distributed import run_ranks

pytestmark = pytest.mark.slow

WRAPPED = {
    "ddp": "called = nn.parallel.DistributedDataParallel(model)",
    "fsdp2": """
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (world,))
    fully_shard(model[0], mesh=mesh)
    called = fully_shard(model, mesh=mesh)
""",
}
SCRIPT = """
def train(session):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    WRAP
    optimizer = torch.optim.Adam(called.parameters(), lr=0.1)
    if session is not None:
        session.watch(called, tensors="*", optimizer=optimizer)
        session.trace(2)
    torch.manual_seed(10 + rank)
    for _ in range(3):
        optimizer.zero_grad()
        called(torch.randn(5, 6)).pow(2).sum().backward()
        optimizer.step()
    return [getattr(p, "_local_tensor", p).detach().clone() for p in called.parameters()]

plain = train(None)
with anchorlib.start("run1", store=store) as session:
    traced = train(session)
    said = [reason for reason in session.counters.skipped if "operation" in reason]
assert all(torch.equal(a, b) for a, b in zip(plain, traced)), "the bits differ"
assert not said, said
assert not torch._C._len_torch_dispatch_stack()
"""


@pytest.mark.parametrize("wrapped", ["ddp", pytest.param("fsdp2", marks=pytest.mark.long)])
def test_a_traced_rank_has_the_bits_of_an_untraced_one(tmp_path, wrapped):
    run = run_ranks(SCRIPT.replace("    WRAP", "    " + WRAPPED[wrapped].strip()), tmp_path)
    for rank in (0, 1):
        ops = run.ops(rank=rank)
        assert {op.step for op in ops} == {0, 1}
        assert {op.rank for op in ops} == {rank}
        backward = [op for op in ops if op.stage == "backward" and op.node == "TanhBackward0"]
        assert {op.module for op in backward} == {"1"}
