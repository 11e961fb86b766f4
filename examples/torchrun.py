"""Several ranks of one job, each of which records; torchrun names the rank and the run.

    torchrun --nproc-per-node 2 examples/torchrun.py
    ANCHOR_RUN=job1 torchrun --nproc-per-node 2 --max-restarts 3 examples/torchrun.py \\
        --checkpoint job1.pt

Nothing here names the run or the rank: they come from RANK and, without ANCHOR_RUN, from
TORCHELASTIC_RUN_ID (under SLURM from SLURM_PROCID and SLURM_JOB_ID). Where torchrun starts the
ranks again, they go on from their checkpoint, and what they record is the run's next attempt.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from digits import batches, load
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import anchorlib


def train(options: argparse.Namespace) -> anchorlib.Session:
    """Train on this rank's share of the digits, and return the closed session."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 32), nn.Tanh(), nn.Linear(32, 10))
    first = load_checkpoint(options.checkpoint, model)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = load()
    share = batches(images[rank::world], labels[rank::world], size=50, seed=0)
    with anchorlib.start(store=options.store, first_step=first) as session:
        session.watch(parallel, optimizer=optimizer)
        for step in range(first, options.steps):
            x, y = share[step % len(share)]
            loss = nn.functional.cross_entropy(parallel(x), y)
            anchorlib.anchor(loss, "loss", grad=False)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            save_checkpoint(options.checkpoint, model, step + 1)
            if step == options.fail_at and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                session.flush()
                dist.barrier()
                raise SystemExit("failing, as it was asked to")
    return session


def load_checkpoint(path: Path | None, model: nn.Module) -> int:
    """Load the model from the checkpoint, and return the step to go on with."""
    if path is None or not path.exists():
        return 0
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    return int(saved["step"])


def save_checkpoint(path: Path | None, model: nn.Module, step: int) -> None:
    """Write the checkpoint on rank 0; the other ranks wait until it is there."""
    if path is None:
        return
    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "step": step}, path)
    dist.barrier()


def main() -> None:
    """Train as one of the ranks; once all have recorded, rank 0 prints each rank's last loss."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", help="where runs live (default: anchors)")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--checkpoint", type=Path, help="a file, to go on from after a restart")
    parser.add_argument("--fail-at", type=int, help="a step at which the first attempt fails")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    session = train(options)
    dist.barrier()  # every rank has closed its part of the run
    if dist.get_rank() == 0:
        run = anchorlib.open_run(session.run, store=options.store)
        for rank in run.ranks:
            losses = run.series("loss", rank=rank).values()
            print(f"{run.name} rank {rank}: {len(losses)} steps, last loss {losses[-1]:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
