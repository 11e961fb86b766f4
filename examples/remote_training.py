"""Two training processes record into one collector; then the run is read from the collector.

    python examples/remote_training.py

To do the same from a shell, on as many machines as you like:

    anchor serve --store anchors                               # here
    ANCHOR_STORE=grpc://HOST:50051 ANCHOR_RUN=run1 torchrun train.py   # there
    anchor hist run1 --store grpc://HOST:50051 --tensor 2.bias         # anywhere
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import torch
from digits import batches, load
from torch import nn

import anchorlib
from anchor_server import Collector

RANKS = 2


def train(store: str, run: str, rank: int, steps: int) -> None:
    """One rank: trains on its share of the digits and records into the collector."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 32), nn.Tanh(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = load()
    share = slice(rank, None, RANKS)
    with anchorlib.start(run, store=store, rank=rank) as session:
        session.watch(model, optimizer=optimizer)
        for x, y in batches(images[share], labels[share], size=50, seed=rank)[:steps]:
            loss = nn.functional.cross_entropy(model(x), y)
            anchorlib.anchor(loss, "loss", grad=False)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    counters = session.counters
    print(f"rank {rank}: {counters.records} records, {counters.bytes} bytes, {counters.gaps} gaps")


def main() -> None:
    """Start a collector and two ranks, wait for them, and read the run back."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--run", default="remote")
    parser.add_argument("--store", default="anchors", help="the collector's directory")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--train", help=argparse.SUPPRESS)  # the ranks are this script again
    options = parser.parse_args()
    if options.train:
        train(options.train, options.run, int(os.environ["RANK"]), options.steps)
        return

    with Collector(options.store, bind="127.0.0.1:0") as collector:
        url = f"grpc://{collector.address}"
        print(f"collecting on {url} into {options.store}", flush=True)
        command = [sys.executable, __file__, "--train", url, "--run", options.run]
        command += ["--steps", str(options.steps)]
        ranks = [
            subprocess.Popen(command, env={**os.environ, "RANK": str(rank)})
            for rank in range(RANKS)
        ]
        if any(rank.wait() for rank in ranks):
            sys.exit("a rank failed")

        run = anchorlib.open_run(options.run, store=url)
        for rank in run.ranks:
            losses = run.series("loss", "value", rank=rank).values()
            print(f"rank {rank}: {len(losses)} losses, {losses[0]:.4f} … {losses[-1]:.4f}")
        print(f"2.bias@grad: {run.histogram('2.bias@grad').numel} elements from both ranks")


if __name__ == "__main__":
    main()
