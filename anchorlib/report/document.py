"""The data of a page: what the browser gets of a `RunView` and `ComparisonView`, in which form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from anchorlib.names import escape
from anchorlib.report.comparison_view import ComparisonView
from anchorlib.report.footprint import Footprint
from anchorlib.report.formats import format_limits
from anchorlib.report.noteworthy import attention
from anchorlib.report.packing import ArrayPacker
from anchorlib.report.run_view import Bins, Line, RunView, Unclipped

__all__ = ["document_text"]

Array = np.ndarray[Any, Any]
COUNTS = ("records", "numel", "zero", "nan", "inf", "subnormal")
FLOATS = ("min", "max", "sum", "l2")
EXACT_CELLS = 200_000  # documents of at most this many cells have float64 figures
WHOLE = ("pass_index", "call", "rank", "step", "pairs", "differing")
EXACT_ONLY = ("error_eps", "step", "worst", "value_a", "value_b")  # left out of larger documents


def document_text(
    views: Sequence[RunView],
    contrasts: Sequence[ComparisonView],
    *,
    source: str = "",
    tag: str = "",
    trouble: str = "",
) -> str:
    """Return the text that the page's script reads: JSON, then its arrays as base64 (`packing`).

    views: what the page shows of each run. contrasts: the comparisons of the first run with others.
    source: the address where a served page asks for newer data; "" for a page in a file.
    tag: names this state of the data, so that the page can ask for anything newer.
    trouble: a sentence about what could not be made, shown on top of the page; "" for none.
    """
    packer = ArrayPacker()
    return packer.text(
        {
            "version": 1,
            "source": source,
            "tag": tag,
            "trouble": escape(trouble),
            "formats": [asdict(one) for one in format_limits()],
            "runs": [_run(view, packer) for view in views],
            "comparisons": [_contrast(one, packer) for one in contrasts],
        }
    )


def _run(view: RunView, packer: ArrayPacker) -> dict[str, Any]:
    exact = "f8" if len(view.lines) * len(view.columns) <= EXACT_CELLS else "f4"
    return {
        "name": view.name,
        "state": view.state,
        "live": view.live,
        "started": view.started_ns / 1e9,
        "ranks": list(view.ranks),
        "bytes": view.bytes,
        "steps": view.steps,
        "columns": packer.array(view.columns, "f8"),
        "width": view.width,
        "lines": [_line(line) for line in view.lines],
        "figures": {
            # A cell without records has NaN, which whole numbers cannot say: its `records` is 0.
            **{name: packer.whole(np.nan_to_num(view.figures[name])) for name in COUNTS},
            **{name: packer.array(view.figures[name], exact) for name in FLOATS},
        },
        "bins": _bins(view.bins, packer),
        "unclipped": _unclipped(view.unclipped, packer),
        "header": dict(view.header),
        "findings": [asdict(one) for one in attention(view)],
    }


def _line(line: Line) -> dict[str, Any]:
    return {
        "title": line.title,
        "key": [line.name, line.kind, line.mode, line.phase],
        "kind": line.kind,
        "section": line.section,
        "parameter": line.parameter,
        "dtype": line.dtype,
        "shape": line.shape,
        "ranks": len(line.ranks),
        "records": line.records,
        "first": line.first_step,
        "last": line.last_step,
        "bytes": line.bytes,
        "gaps": line.gaps,
    }


def _bins(bins: Bins, packer: ArrayPacker) -> dict[str, Any]:
    return {
        "width": bins.width,
        "windows": bins.windows,
        "starts": packer.whole(bins.starts),
        "exponents": packer.array(bins.exponents, "i2"),
        "counts": packer.whole(bins.counts),
        "infinite": packer.whole(bins.infinite),
    }


def _unclipped(unclipped: Unclipped | None, packer: ArrayPacker) -> dict[str, Any] | None:
    if unclipped is None:
        return None
    norms, bad = packer.array(unclipped.norms, "f8"), packer.array(unclipped.bad, "u1")
    return {"tensors": unclipped.tensors, "norms": norms, "bad": bad}


def _contrast(one: ComparisonView, packer: ArrayPacker) -> dict[str, Any]:
    cells: Mapping[str, Array] = one.cells
    exact = len(cells["cell"]) <= EXACT_CELLS
    return {
        **one.plain,
        "grid": packer.array(one.grid, "f4") if exact else packer.rough(one.grid),
        "cell": packer.whole(cells["cell"]),
        "details": {
            name: _detail(name, values, packer, exact=exact)
            for name, values in cells.items()
            if name != "cell" and (exact or name not in EXACT_ONLY)
        },
        "nearby": list(one.nearby),
        "footprints": [_footprint(part, packer) for part in one.footprints],
        "vicinities": list(one.vicinities),
    }


def _footprint(one: Footprint, packer: ArrayPacker) -> dict[str, Any]:
    rows, columns = one.picture.shape
    return {
        "cell": one.cell,
        "axes": list(one.axes),
        "shape": list(one.shape),
        "rows": rows,
        "columns": columns,
        "picture": packer.rough(one.picture),
    }


def _detail(name: str, values: Array, packer: ArrayPacker, *, exact: bool) -> dict[str, list[Any]]:
    if name in WHOLE:
        return packer.whole(values)
    return packer.array(values, "f8") if exact else packer.rough(values)
