"""Opens two sessions that record ten small tensors each, and prints their cost as JSON.

python benchmarks/observing/opening.py FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

import anchorlib

RECORDS = 10


def opened(folder: Path) -> dict[str, float]:
    """Seconds that `start` and `close` took: wall time, and CPU of this process."""
    xs = [torch.randn(8, 8) for _ in range(RECORDS)]
    wall, cpu = time.perf_counter(), time.process_time()
    session = anchorlib.start("run", store=folder)
    started, started_cpu = time.perf_counter() - wall, time.process_time() - cpu
    for number, x in enumerate(xs):
        anchorlib.anchor(x, f"h{number}")
    wall, cpu = time.perf_counter(), time.process_time()
    session.close()
    closed, closed_cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "start, CPU of the trainer": started_cpu,
        "start, wall": started,
        "close, CPU of the trainer": closed_cpu,
        "close, wall": closed,
    }


def main() -> None:
    """Measure both sessions and print the result."""
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    # A training has loaded what it anchors with, and used torch, before its session starts.
    anchorlib.anchor(torch.randn(8, 8), "h")
    print(json.dumps({which: opened(folder / which) for which in ("first", "later")}))


if __name__ == "__main__":
    main()
