"""Runs benchmarks, each in a process of its own, and prints one table of targets and figures.

    python -m benchmarks [NAME…] [--json FILE] [--peers] [--store DIR]
    python -m benchmarks observing [--rows ROW…] [--rounds N]
    python -m benchmarks gpu       (on a machine with a GPU alone)

NAME is one of the modules below; `--json` appends one line to FILE for history; files are kept in
DIR meanwhile, else in TMPDIR, else in memory where 8 GiB of it are free. Figures are ratios within
one run, or costs as differences between arms that took turns; see `benchmarks.timing`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, append_history, machine, table
from benchmarks.grids import grids
from benchmarks.timing import touch_memory

MODULES = (
    "calls", "observing", "training", "tracing", "storing", "forms", "sealing", "collecting",
    "reading", "ranks", "comparing", "page", "scaling", "twins",
)  # fmt: skip
MEMORY = Path("/dev/shm")
ENOUGH = 8 << 30
PEERS = "peers"
GPU = "gpu"


def main() -> None:
    """Run the benchmarks that the command line names, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*MODULES, PEERS, GPU, []], metavar="NAME")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a line for history")
    parser.add_argument("--peers", action="store_true", help="other tools too (pip install them)")
    parser.add_argument("--store", type=Path, metavar="DIR", help="where files are kept meanwhile")
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="of `observing`: these alone")
    parser.add_argument("--rounds", type=int, metavar="N", help="of `observing`: so many turns")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    told = {name: getattr(options, name) for name in ("rows", "rounds") if getattr(options, name)}
    if told and options.names != ["observing"]:
        parser.error("--rows and --rounds are those of `observing` alone")
    if options.rows and (unknown := set(options.rows) - {*(known := rows_of_observing())}):
        parser.error(f"observing has no row {min(unknown)!r}; it has {', '.join(known)}")
    if options.here:
        alone(options.names[0], told)
        return
    os.environ["TMPDIR"] = str(kept_in(options.store))
    names = options.names or [*MODULES, *([PEERS] if options.peers else [])]
    found: list[Figure] = []
    for name in names:
        found += measured(name, told)
    print(f"\n{machine()}\n\n{document(found)}")
    if options.json:
        append_history(options.json, found)


def rows_of_observing() -> list[str]:
    """The names that `--rows` accepts."""
    parts: Mapping[str, object] = importlib.import_module("benchmarks.observing").PARTS
    return list(parts)


def kept_in(store: Path | None) -> Path:
    """Where files are kept: unless told, in memory if it has room, where no disk takes part."""
    if store is not None:
        store.mkdir(parents=True, exist_ok=True)
        return store.resolve()
    roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ENOUGH
    return MEMORY if roomy and "TMPDIR" not in os.environ else Path(tempfile.gettempdir())


def document(found: list[Figure]) -> str:
    """All figures as Markdown tables."""
    lines = [one for one in found if not one.heading]
    cells = [one for one in found if one.heading]
    return "\n\n".join([*([table(lines)] if lines else []), *([grids(cells)] if cells else [])])


def measured(name: str, told: Mapping[str, Any]) -> list[Figure]:
    """The figures of one module, measured by a fresh process and printed as they come."""
    command = [sys.executable, "-m", "benchmarks", name, "--here"]
    for option, values in told.items():
        command += [f"--{option}", *map(str, values if isinstance(values, list) else [values])]
    found: list[Figure] = []
    with (
        tempfile.TemporaryDirectory() as folder,  # whatever is left in it goes as well
        subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": folder}
        ) as process,
    ):
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


def alone(name: str, told: Mapping[str, Any]) -> None:
    """Measure one module in this process, and print each figure as a JSON line."""
    touch_memory()
    for one in importlib.import_module(f"benchmarks.{name}").figures(**told):
        print(json.dumps(asdict(one)), flush=True)


if __name__ == "__main__":
    main()
