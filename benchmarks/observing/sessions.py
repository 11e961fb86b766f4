"""The cost of a run that does not depend on its length: its start, its end, its files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anchorlib
from benchmarks.figures import Figure
from benchmarks.observing.models import unet
from benchmarks.observing.records import inodes_below
from benchmarks.observing.targets import INODES, SESSIONS, cell
from benchmarks.observing.turns import told

__all__ = ["sessions", "unet_files"]

SCRIPT = Path(__file__).with_name("opening.py")


def sessions(folder: Path, rounds: int) -> Iterator[Figure]:
    """`start` and `close`, in so many processes of their own."""
    taken: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds):
        command = [sys.executable, "-P", str(SCRIPT), str(folder / f"opened{number}")]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for which, costs in json.loads(printed).items():
            for column, seconds in costs.items():
                taken.setdefault((which, column), []).append(1e3 * seconds)
    for (which, column), each in taken.items():
        yield cell(SESSIONS, f"{which} of a process", column, told(each), "ms")


def unet_files(folder: Path, _rounds: int) -> Iterator[Figure]:
    """The files and bytes that 5 steps of the U-Net leave."""
    training = unet()
    with anchorlib.start("unet", store=folder / "unet") as session:
        session.watch(training.model, optimizer=training.optimizer)
        for _ in range(5):
            training.step()
    found = told([inodes_below(folder / "unet")])
    yield cell(INODES, "unet, default selection, 5 steps", "inodes", found, "")
