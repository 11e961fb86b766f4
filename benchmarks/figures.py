"""A figure with its target: the result of a benchmark, in a table and as JSON lines for history."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from benchmarks.timing import Ratio

__all__ = ["Figure", "append_history", "figure", "machine", "number", "table"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table.

    what: what is measured, against what.
    unit: "x" for a ratio, else the unit of all figures.
    at_most, at_least: the target; neither: for information.
    why: what stands in the way, should the target be missed.
    heading, column: where it stands in a table of rows (`what`) and columns (`benchmarks.grids`);
        low is the smallest then, high the largest.
    """

    what: str
    unit: str
    value: float
    low: float
    high: float
    at_most: float | None = None
    at_least: float | None = None
    why: str = ""
    heading: str = ""
    column: str = ""

    @property
    def title(self) -> str:
        """The figure's name outside a table of rows and columns."""
        return f"{self.heading}, {self.what}, {self.column}" if self.heading else self.what

    @property
    def met(self) -> bool | None:
        """Whether the median meets the target; None without one."""
        if self.at_most is not None:
            return self.value <= self.at_most
        return None if self.at_least is None else self.value >= self.at_least

    @property
    def target(self) -> str:
        """The target in words."""
        if self.at_most is not None:
            return f"<= {number(self.at_most)} {self.unit}"
        return "" if self.at_least is None else f">= {number(self.at_least)} {self.unit}"


def figure(
    what: str,
    ratio: Ratio,
    unit: str = "x",
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    why: str = "",
) -> Figure:
    """The figure of a measured ratio, with its target."""
    return Figure(what, unit, ratio.median, ratio.low, ratio.high, at_most, at_least, why)


def number(value: float) -> str:
    """Three significant digits; thousands with a comma."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def table(figures: Iterable[Figure]) -> str:
    """A Markdown table: what, target, figure, quartiles, whether the target is met or why not."""
    lines = ["| what | target | figure | quartiles | |", "|---|---|---|---|---|"]
    for one in figures:
        missed = f"**missed**: {one.why}" if one.why else "**missed**"
        met = {True: "met", False: missed, None: ""}[one.met]
        lines.append(
            f"| {one.title} | {one.target} | {number(one.value)} {one.unit} "
            f"| {number(one.low)} to {number(one.high)} | {met} |"
        )
    return "\n".join(lines)


def machine() -> str:
    """One line about the machine of the figures and about the other load on it."""
    model = None
    with suppress(OSError):
        model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    parts = [
        f"{os.cpu_count()} cores{f' ({model[1]})' if model else ''}",
        f"load {os.getloadavg()[0]:.1f}",
        f"Python {platform.python_version()}",
        *(f"{name} {version(name)}" for name in ("torch", "numpy")),
        f"numba {version('numba')}" if find_spec("numba") else "no numba",
        f"temporary files on {file_system(Path(tempfile.gettempdir()))}",
    ]
    return ", ".join(parts)


def file_system(path: Path) -> str:
    """The kind of file system that `path` is on, as Linux names it."""
    found = {}
    with suppress(OSError):
        for line in Path("/proc/mounts").read_text().splitlines():
            _, where, kind, *_ = line.split()
            if path.resolve().is_relative_to(where):
                found[where] = kind
    return found[max(found, key=len)] if found else "a file system not known"


def append_history(path: Path, figures: Iterable[Figure]) -> None:
    """One JSON line for this run: when, on what, and every figure."""
    entry = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "machine": machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "command": sys.argv[1:],
        "figures": [asdict(one) | {"met": one.met} for one in figures],
    }
    with path.open("a") as file:
        file.write(json.dumps(entry) + "\n")
