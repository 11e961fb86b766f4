"""1,024 ranks in virtual time, with costs measured here, and checked against 64 real streams.

    python -m benchmarks.simulate [--ranks 1024] [--streams 64] [--steps 200] [--json]
                                  [--gb-month P] [--put P] [--hour P]

Three things in one command: what a stream, a series, a batch, a record and a byte cost a real
collector, by small recordings; what the simulation then predicts for 64 streams, beside what 64
streams into a real collector take, as a ratio; and what 7B and 70B parameters on so many ranks ask
for.
Costs are of this machine's processor; on another one they are other costs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from anchorlib.block import block_of
from anchorlib.sinks import RunOptions, open_sink
from benchmarks.fleet import Costs, Job, Prices, demand, job_of, simulated
from benchmarks.storing import records

MODELS = {"7B": (6.7e9, 32, 2.0), "70B": (69e9, 80, 12.0)}  # parameters, layers, seconds a step
WHAT = {
    "summary": "Summary of everything",
    "tenth": "the same, each tenth step",
    "sampled": "and each hundredth gradient",
    "gradients": "all gradients",
}
Plan = tuple[int, int, int, int]
SMALL = 100  # elements of a small record
LARGE = 1 << 18
PLANS = [
    (48, 1, 1, SMALL),  # mostly streams
    (4, 2000, 1, SMALL),  # mostly series
    (4, 2, 1200, SMALL),  # mostly batches
    (4, 400, 200, SMALL),  # mostly records
    (4, 1, 160, LARGE),  # mostly bytes
]
"""Streams, series, steps and elements of the recordings that the costs come from."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A recording: its size, the seconds it took, and those that the collector's processor did."""

    streams: int
    series: int
    steps: int
    elements: int
    wall: float
    cpu: float

    @property
    def amounts(self) -> tuple[int, int, int, int, int]:
        """Streams, series, batches, records and bytes of values, of all streams together."""
        series = self.streams * self.series
        values = series * self.steps * self.elements * 4
        return self.streams, series, self.streams * self.steps, series * self.steps, values


def main() -> None:
    """Measure the costs, predict and check 64 streams, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate", description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024, metavar="N")
    parser.add_argument("--streams", type=int, default=64, metavar="N", help="of the check")
    parser.add_argument("--steps", type=int, default=200, metavar="N", help="of virtual time")
    for name, value in asdict(Prices()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=value, metavar="P")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, collecting(Path(folder)) as (address, pid):
        measure(address, pid, (1, 20, 5, SMALL))  # its first stream loads what all need
        found = [measured(address, pid, plan) for plan in PLANS]
        check = measured(address, pid, (options.streams, 20, 60, SMALL))
    prices = Prices(options.gb_month, options.put, options.hour)
    costs = {clock: fitted(found, clock) for clock in ("cpu", "wall")}
    predicted = {clock: virtual(check, costs[clock]) for clock in costs}
    answer = {
        "costs": asdict(costs["cpu"]),
        "check": {
            "streams": check.streams,
            **{
                clock: {
                    "predicted_s": predicted[clock],
                    "measured_s": getattr(check, clock),
                    "ratio": predicted[clock] / getattr(check, clock),
                }
                for clock in ("cpu", "wall")
            },
        },
        "jobs": list(jobs(options.ranks, options.steps, costs["cpu"], prices)),
    }
    sys.stdout.write(json.dumps(answer) + "\n" if options.json else told(answer))


@contextmanager
def collecting(folder: Path) -> Iterator[tuple[str, int]]:
    """A collector in a process of its own: its address, and its number."""
    command = [sys.executable, "-m", "anchor_cli", "serve", "--store", str(folder), "--bind"]
    process = subprocess.Popen([*command, "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield "grpc://" + line.split(" on ")[1].split(" into ")[0], process.pid
    finally:
        process.terminate()
        process.wait()


def measured(address: str, pid: int, plan: Plan) -> Measured:
    """The shorter of two recordings, since other load on the machine only adds time."""
    found = [measure(address, pid, plan, turn) for turn in range(2)]
    wall, cpu = (min(getattr(one, clock) for one in found) for clock in ("wall", "cpu"))
    return Measured(*plan, wall, cpu)


def measure(address: str, pid: int, plan: Plan, turn: int = 0) -> Measured:
    """Records a plan: each stream a rank, all at once, until all is acknowledged."""
    streams, series, steps, elements = plan
    every = records(series, steps, elements)
    blocks = [block_of(every[at : at + series]) for at in range(0, len(every), series)]
    run = "-".join(map(str, ("r", *plan, turn)))

    def stream(rank: int) -> None:
        sink = open_sink(address, RunOptions(run, rank=rank, on_full="block"))
        for block in blocks:
            sink.put(block)
        sink.flush().wait(None)
        sink.close(60)

    threads = [threading.Thread(target=stream, args=(rank,)) for rank in range(streams)]
    began, worked = time.perf_counter(), processor_seconds(pid)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall = time.perf_counter() - began
    return Measured(*plan, wall, processor_seconds(pid) - worked)


def processor_seconds(pid: int) -> float:
    """User and system time of a process so far (proc(5): fields 14 and 15 of stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fitted(found: Sequence[Measured], clock: str) -> Costs:
    """What a stream, series, batch, record and byte cost: least squares of relative errors."""
    amounts = np.array([one.amounts for one in found])
    seconds = np.array([getattr(one, clock) for one in found])
    kept = list(range(5))
    while True:  # a cost below nothing is none, and the others are fitted without it
        solution = np.linalg.lstsq(amounts[:, kept] / seconds[:, None], np.ones(len(found)))[0]
        if (solution >= 0).all():
            break
        kept.pop(int(np.argmin(solution)))
    costs = [0.0] * 5
    for place, cost in zip(kept, solution.tolist(), strict=True):
        costs[place] = cost
    return Costs(*costs)


def virtual(check: Measured, costs: Costs) -> float:
    """The seconds of a recording in virtual time, in which steps follow each other at once."""
    values = check.series * check.elements * 4
    job = Job(check.streams, 1e-9, check.series, check.series, values)
    return simulated(job, costs, 1, check.steps).ends


def jobs(ranks: int, steps: int, costs: Costs, prices: Prices) -> Iterator[dict[str, object]]:
    """Each model and recording: the arithmetic, and what virtual time says of that many."""
    for model, (parameters, layers, step_s) in MODELS.items():
        for what, title in WHAT.items():
            job = job_of(parameters, layers, ranks, step_s, what)
            asked = demand(job, costs, prices)
            virtual_time = simulated(job, costs, asked.collectors, steps)
            yield {"model": model, "what": title, **asdict(asked), **asdict(virtual_time)}


def told(answer: dict) -> str:
    """The answer as text for people."""
    costs, check = answer["costs"], answer["check"]
    lines = [
        f"a collector here works {costs['stream'] * 1e3:.1f} ms a stream, "
        f"{costs['series'] * 1e3:.2f} ms a series, {costs['batch'] * 1e6:.0f} us a batch, "
        f"{costs['record'] * 1e6:.1f} us a record, "
        f"{1e-6 / costs['byte'] if costs['byte'] else float('inf'):,.0f} MB of values a second",
    ]
    for clock, name in (("cpu", "the collector's processor"), ("wall", "until all is stored")):
        one = check[clock]
        lines.append(
            f"{check['streams']} streams, {name}: predicted {one['predicted_s']:.2f} s, measured "
            f"{one['measured_s']:.2f} s, ratio {one['ratio']:.2f}"
        )
    head = f"{'model':<6}{'recorded':<30}{'records/s':>11}{'MB/s':>9}{'collectors':>11}"
    lines += ["", f"{head}{'TB/day':>8}{'objects':>10}{'money':>9}{'lag s':>8}{'start s':>9}"]
    lines += [
        f"{one['model']:<6}{one['what']:<30}{one['records_s']:>11,.0f}{one['bytes_s'] / 1e6:>9,.0f}"
        f"{one['collectors']:>11}{one['day_bytes'] / 1e12:>8.1f}{one['objects']:>10,}"
        f"{one['money']:>9,.0f}{one['lag'][1]:>8.2f}{one['started']:>9.1f}"
        for one in answer["jobs"]
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
