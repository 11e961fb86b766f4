"""Where a step's time goes, on the training thread and off it: py-spy's samples as two tables.

    python -m benchmarks.profiling [mlp|transformer|tiny] [--gil]

`mlp` and `transformer` are those of `benchmarks.training`, `tiny` the 8x8 anchors of
`benchmarks.calls`. With `--gil` only samples count in which the thread held Python's lock: what it
kept others from running.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

import anchorlib
from benchmarks.calls import chain, stepping
from benchmarks.training import Trained, mlp, transformer

SECONDS = 12
SHOWN = 18


def main() -> None:
    """Profiles one workload and prints a table for each thread."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiling", description=__doc__)
    parser.add_argument("workload", nargs="?", default="mlp", choices=[*WORKLOADS, "step"])
    parser.add_argument("--gil", action="store_true", help="samples that held Python's lock alone")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        WORKLOADS[options.workload]()
        return
    with tempfile.TemporaryDirectory() as folder:
        samples = Path(folder) / "samples"
        mine = [sys.executable, "-m", "benchmarks.profiling", options.workload, "--run"]
        spy = ["py-spy", "record", "-r", "250", "-d", str(SECONDS), "-t", "-f", "raw"]
        spy += ["--gil"] if options.gil else []
        python = Path(sys.executable).parent
        command = [str(python / spy[0]), *spy[1:], "-o", str(samples), "--", *mine]
        subprocess.run(command, check=True, capture_output=True)
        show(samples.read_text())


def show(raw: str) -> None:
    """The tables: for each thread, time inside each function itself and with what it calls."""
    own: dict[str, Counter[str]] = {}
    whole: dict[str, Counter[str]] = {}
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        thread, *frames = stack.split(";")
        names = [short(frame) for frame in frames]
        if not names:
            continue
        own.setdefault(thread, Counter())[names[-1]] += int(count)
        inside = whole.setdefault(thread, Counter())
        for name in set(names):
            inside[name] += int(count)
    total = sum(sum(counter.values()) for counter in own.values())
    for thread, counter in sorted(own.items(), key=lambda item: -sum(item[1].values())):
        share = sum(counter.values()) / total
        if share < 0.01:
            continue
        print(f"\n{thread}: {share:.0%} of all samples\n{'itself':>8} {'whole':>8}")
        for name, _count in whole[thread].most_common(SHOWN):
            print(f"{counter[name] / total:8.1%} {whole[thread][name] / total:8.1%}  {name}")


def short(frame: str) -> str:
    """A frame without its line: function (file)."""
    name, _, place = frame.partition(" (")
    file = place.rstrip(")").partition(":")[0]
    for root in ("site-packages/", "anchorlib/"):
        if root in file:
            file = file.rpartition(root)[2]
    return f"{name} ({file})"


def trained(model: Callable[[], torch.nn.Module], inputs: torch.Tensor) -> Callable[[], None]:
    """A workload that watches everything."""

    def run() -> None:
        torch.set_num_threads(1)
        one = Trained(model, inputs)
        with (
            tempfile.TemporaryDirectory() as folder,
            anchorlib.start("run", store=folder) as session,
        ):
            session.watch(one.model, optimizer=one.optimizer)
            while True:
                one.step()

    return run


def tiny() -> None:
    """8x8 anchors."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, anchorlib.start("run", store=folder) as session:
        steps = stepping(chain(named=True), session)
        while True:
            steps()


WORKLOADS = {
    "mlp": trained(mlp, torch.randn(1000, 784)),
    "transformer": trained(transformer, torch.randn(8, 128, 512)),
    "tiny": tiny,
}

if __name__ == "__main__":
    main()
