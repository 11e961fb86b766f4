"""A page of a thousand tensors by a thousand steps, made of values that no run had to record."""

from __future__ import annotations

import numpy as np

from anchorlib.report.comparison_view import MEASURES, ComparisonView
from anchorlib.report.document import document_text
from anchorlib.report.rendering import assembled
from anchorlib.report.run_view import Bins, Line, RunView


def large_page(lines: int = 1000, steps: int = 1000, runs: int = 2) -> str:
    """Its HTML: `lines` × `steps` cells a run, those from step 37 on differ."""
    random = np.random.default_rng(0)
    views = [_view(f"run{number}", lines, steps, random) for number in range(runs)]
    contrasts = [_contrast(number, lines, steps, random) for number in range(1, runs)]
    return assembled([view.name for view in views], document_text(views, contrasts))


def _view(name: str, lines: int, steps: int, random: np.random.Generator) -> RunView:
    cells = (lines, steps)
    spread = random.random(cells)
    windows = min(steps, max(1, 100_000 // lines))
    exponents = np.tile(np.arange(-20, 0), lines * windows)
    return RunView(
        name=name,
        state="closed",
        live=False,
        started_ns=1_700_000_000_000_000_000,
        ranks=(0,),
        bytes=lines * steps * 4096,
        steps=steps,
        columns=np.arange(steps),
        width=1,
        lines=[_line(number, lines, steps) for number in range(lines)],
        figures={
            **{n: np.zeros(cells) for n in ("zero", "nan", "inf", "subnormal")},
            "records": np.ones(cells),
            "numel": np.full(cells, 1024.0),
            "min": -spread,
            "max": spread,
            "sum": spread,
            "l2": 32 * spread,
        },
        bins=Bins(
            width=steps // windows,
            windows=windows,
            starts=np.arange(lines * windows + 1) * 20,
            exponents=exponents,
            counts=random.integers(1, 1000, len(exponents)),
            infinite=np.zeros(lines * windows, np.int64),
        ),
        header={"torch": "2.13.0", "seed": name},
        gaps=[],
    )


def _line(number: int, lines: int, steps: int) -> Line:
    kind = "value" if number < lines // 2 else "grad"
    return Line(
        name=f"encoder.{number % (lines // 2)}.tanh",
        kind=kind,
        mode="all",
        phase="train",
        dtype="float32",
        shape="32×32",
        ranks=(0,),
        records=steps,
        first_step=0,
        last_step=steps - 1,
        bytes=steps * 4096,
        gaps=0,
        first_order=number,
        parameter=False,
    )


def _contrast(number: int, lines: int, steps: int, random: np.random.Generator) -> ComparisonView:
    grid = np.full((lines, steps), -1.0)
    grid[:, 37:] = 10.0 ** random.uniform(-1, 4, (lines, steps - 37))
    cell = np.flatnonzero(grid.reshape(-1) >= 0)
    details = {name: random.random(len(cell)) for name in MEASURES}
    whole = ("pass_index", "call", "rank", "step", "pairs", "differing")
    first = {
        "line": lines - 30, "column": 37, "step": 37, "title": "encoder.470.tanh@grad",
        "pass_index": 0, "call": 0, "rank": 0, "phase": "train", "identical_before": 37,
    }  # fmt: skip
    plain = {
        "run": number, "a": "run0", "b": f"run{number}", "verdict": "suspect",
        "sections": [
            {
                "key": "verdict", "title": "SUSPECT", "all": 1,
                "head": "run0 and run1 differ first at step 37.",
                "entries": [{"text": f"{grid.size:,} matched"}],
            },
            {
                "key": "first", "title": "FIRST DIVERGENCE", "head": "", "all": 1,
                "entries": [{"where": "step 37 pass 0", "name": first["title"]}],
            },
        ],
        "first": first, "origins": [], "config": [], "growth": [], "loss": None,
        "renamed": [], "offset": 0, "incomplete": False, "noise": [], "horizon": None,
        "partners": list(range(lines)), "structure": {"nodes": [], "more": 0},
    }  # fmt: skip
    return ComparisonView(
        plain,
        grid,
        {"cell": cell, **{name: np.ones(len(cell), np.int64) for name in whole}, **details},
        [],
    )
