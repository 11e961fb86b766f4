"""A training step beside a collector that is dead, slow or silent, as a ratio to embedded.

    python benchmarks/delivery_step_time.py [--rounds 5] [--steps 60]

Every round trains under each condition once, one after the other, so that other load on the machine
affects all of them alike. A condition's figure is its median step over that of embedded recording,
as the median over the rounds. A second column uses the mean step instead of the median step, in
which rare long steps count. No ratio should exceed 1.15.

    dead        nobody listens
    slow        a collector behind a line that takes 30 ms for each 64 KiB
    blackhole   a line that takes everything and answers nothing
    well        a collector on this machine
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import anchorlib

WARM_UP = 10
CONDITIONS = ("dead", "slow", "blackhole", "well")


def main() -> None:
    """Print the table, or serve a line for another process that prints it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--line", choices=CONDITIONS)
    options = parser.parse_args()
    if options.line:
        serve_line(options.line)
    else:
        compare(options.rounds, options.steps)


def compare(rounds: int, steps: int) -> None:
    """All conditions, `rounds` times."""
    logging.getLogger("anchorlib").setLevel(logging.CRITICAL)  # of lines that are meant to be bad
    torch.set_num_threads(1)
    medians: dict[str, list[float]] = {name: [] for name in ("embedded", *CONDITIONS)}
    means: dict[str, list[float]] = {name: [] for name in ("embedded", *CONDITIONS)}
    for number in range(rounds):
        for name in medians:
            with tempfile.TemporaryDirectory() as folder:
                os.environ["ANCHOR_SPOOL"] = f"{folder}/spools"
                with line(name, Path(folder)) as store:
                    taken = train(f"{name}{number}", store, steps)
            medians[name].append(statistics.median(taken))
            means[name].append(statistics.mean(taken))
    base = statistics.median(medians["embedded"])
    print(f"embedded: {1000 * base:.2f} ms a step; ratios to it, median of {rounds} rounds")
    for name in CONDITIONS:
        ratios = [
            statistics.median(a / b for a, b in zip(of[name], of["embedded"], strict=True))
            for of in (medians, means)
        ]
        print(f"{name:>10}: median step {ratios[0]:.3f}   mean step {ratios[1]:.3f}")


def train(run: str, store: str, steps: int) -> list[float]:
    """Seconds of each step of a perceptron whose gradients are recorded, 0.5 MB a step."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(2048, 256), torch.randint(0, 10, (2048,))
    taken = []
    session = anchorlib.start(run, store=store)
    session.watch(model, tensors=["re:\\d+[.](weight|bias)@grad"], optimizer=optimizer)
    for step in range(WARM_UP + steps):
        began = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step >= WARM_UP:
            taken.append(time.perf_counter() - began)
    session.close(timeout=0.1)
    # What was left out would have made the step cheaper; what waits in the spool is not lost.
    assert not session.counters.gaps, session.counters
    return taken


@contextlib.contextmanager
def line(name: str, folder: Path) -> Iterator[str]:
    """The address to send records to; a process of its own answers there."""
    if name == "embedded":
        yield str(folder / "store")
        return
    if name == "dead":
        with socket.socket() as taken:  # bound, and nobody listens
            taken.bind(("127.0.0.1", 0))
            yield f"grpc://127.0.0.1:{taken.getsockname()[1]}"
        return
    command = [sys.executable, __file__, "--line", name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder) as process:
        assert process.stdout is not None
        try:
            yield f"grpc://{process.stdout.readline().strip()}"
        finally:
            process.kill()


def serve_line(name: str) -> None:
    """Run a collector in the present directory behind this line; print its address."""
    from anchor_server import serve

    with serve(Path("store")) as collector:
        if name == "well":
            print(collector.address, flush=True)
        else:
            listener = socket.create_server(("127.0.0.1", 0))
            print(f"127.0.0.1:{listener.getsockname()[1]}", flush=True)
            threading.Thread(target=accept, args=(listener, collector.address, name)).start()
        time.sleep(3600)


def accept(listener: socket.socket, address: str, name: str) -> None:
    """Carry each connection to the collector, or nowhere."""
    host, _, port = address.rpartition(":")
    while True:
        near, _ = listener.accept()
        far = socket.create_connection((host, int(port)))
        for ends in ((near, far), (far, near)):
            threading.Thread(target=carry, args=(*ends, name)).start()


def carry(source: socket.socket, target: socket.socket, name: str) -> None:
    """Carry the bytes of one connection in one direction."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            if name == "slow":
                time.sleep(0.03 * len(data) / (1 << 16))
            if name != "blackhole":
                target.sendall(data)
        target.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    main()
