"""Every benchmark, each in a process of its own, as one table of targets and figures.

    python -m benchmarks [NAME…] [--json FILE] [--peers]

NAME is one of the modules below; `--json` appends one line to FILE for history. Figures are ratios
within one run, or costs as differences between arms that took turns; see `benchmarks.timing`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.figures import Figure, append_history, machine, table
from benchmarks.timing import touch_memory

MODULES = (
    "calls", "training", "storing", "forms", "collecting", "reading", "comparing", "page", "scaling"
)  # fmt: skip
PEERS = "peers"


def main() -> None:
    """Runs what was asked for and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*MODULES, PEERS, []], metavar="NAME")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a line for history")
    parser.add_argument("--peers", action="store_true", help="other tools too (pip install them)")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        alone(options.names[0])
        return
    names = options.names or [*MODULES, *([PEERS] if options.peers else [])]
    found: list[Figure] = []
    for name in names:
        found += measured(name)
    print(f"\n{machine()}\n\n{table(found)}")
    if options.json:
        append_history(options.json, found)


def measured(name: str) -> list[Figure]:
    """The figures of one module, from a fresh process; shown as they come."""
    command = [sys.executable, "-m", "benchmarks", "--here", name]
    found: list[Figure] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith("{"):
                continue
            one = Figure(**json.loads(line))
            found.append(one)
            print(table([one]).splitlines()[-1], file=sys.stderr, flush=True)
    if process.returncode:
        print(f"benchmarks: {name} failed with exit code {process.returncode}", file=sys.stderr)
    return found


def alone(name: str) -> None:
    """Prints each figure as one JSON line."""
    touch_memory()
    for one in importlib.import_module(f"benchmarks.{name}").figures():
        print(json.dumps(asdict(one)), flush=True)


if __name__ == "__main__":
    main()
