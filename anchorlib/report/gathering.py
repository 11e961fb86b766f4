"""Reads a run into a RunView: the figures of all records, added up by line and column of the page.

A line of the page is a name, kind, mode and phase; a column is a step, or some adjacent steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from anchorlib.errors import DamagedError
from anchorlib.names import is_operand_kind
from anchorlib.peers import outlier_text, outliers
from anchorlib.reading import Run, Series
from anchorlib.record import TensorInfo
from anchorlib.report.binning import BinCache, binned
from anchorlib.report.line_records import LineRecords
from anchorlib.report.pooled import pooled_view
from anchorlib.report.run_lines import gaps_of, header_of, line_of, parameters_of
from anchorlib.report.run_view import Line, Nonfinite, PageBudget, RunView
from anchorlib.report.unclipped import unclipped_norm
from anchorlib.summary import ExactSums

__all__ = ["gather"]

Array = np.ndarray[Any, Any]
APART = 3  # outliers that the page names; `anchor ranks` lists all
AT_ONCE = 1 << 20  # values that are added at a time
ADDED = ("zero", "nan", "inf", "subnormal")


def gather(
    run: Run,
    *,
    budget: PageBudget | None = None,
    cache: BinCache | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RunView:
    """Return everything the page shows of a run.

    budget: limits on the amount of data; None for the usual limits.
    cache: the histograms counted so far, for a page that is made again while the run grows.
    progress: called with (number of series read, number of all series) while exponents are counted,
    which may have to read all values. Not called where an archive has the counts of each step.
    """
    budget = budget or PageBudget()
    if (view := pooled_view(run, budget)) is not None:
        return view
    parts, parameters = list(_parts(run)), parameters_of(run)
    lines, places = _lines(parts, parameters)
    steps = np.unique(np.concatenate([np.empty(0, np.int64), *(p.columns["step"] for p in parts)]))
    width = _width(len(lines) * len(steps), budget.cells)
    figures = _figures(parts, places, steps, width, len(lines))
    bad, bad_lines = _nonfinite(parts, places)
    return RunView(
        name=run.name,
        state=run.state,
        live=run.live,
        started_ns=run.started_ns,
        ranks=tuple(run.ranks),
        bytes=run.bytes,
        steps=len(steps),
        columns=steps[::width],
        width=width,
        lines=lines,
        figures=figures,
        bins=binned(
            [
                (part.key, part.rank, part.series, place)
                for part, place in zip(parts, places, strict=True)
            ],
            steps,
            _width(len(lines) * len(steps), budget.bin_cells),
            len(lines),
            cache=cache,
            progress=progress,
        ),
        header=header_of(run),
        gaps=gaps_of(run),
        nonfinite=bad,
        nonfinite_lines=bad_lines,
        unclipped=unclipped_norm(parts, parameters, steps, width),
        apart=_apart(run),
    )


def _apart(run: Run) -> tuple[str, ...]:
    """Return a sentence for each rank that differs from its peers, but at most APART sentences.

    Returns () if no rank differs, for a run of one rank, and where its data is damaged.
    """
    if len(run.ranks) < 2:
        return ()
    try:
        return tuple(outlier_text(one) for one in outliers(run).outliers[:APART])
    except DamagedError:
        return ()


def _width(cells: int, budget: int) -> int:
    """Return how many steps must share a column of the page, to keep within a budget of cells.

    cells: lines × steps, the cells of a page with a column for each step.
    """
    return max(1, -(-cells // budget))


def _parts(run: Run) -> Iterator[LineRecords]:
    infos = run.tensors()
    # One look for all: to ask the run for each series would look at every rank each time.
    every = {(one.name, one.kind, one.mode, one.rank): one for one in run.each_series()}
    for info in infos:
        if is_operand_kind(info.kind):
            continue  # the page draws operations as a graph; their values are read by `pull`
        for rank in info.ranks:
            series = every.get((info.name, info.kind, info.mode, rank))
            if series is None:  # the run is being recorded anew
                continue
            phases = list(dict.fromkeys(series.columns["phase"].tolist()))
            for phase in phases:
                chosen = series if len(phases) == 1 else series.where(phase=phase)
                yield _part(info, str(phase), rank, chosen)


def _part(info: TensorInfo, phase: str, rank: int, series: Series) -> LineRecords:
    names = ("step", "order", "min", "max", "sum", "l2", "flags", *ADDED)
    numel = np.array([math.prod(shape) for shape in series.shapes], np.int64)
    return LineRecords(info, phase, rank, series, {n: series.columns[n] for n in names}, numel)


def _lines(parts: list[LineRecords], parameters: set[str]) -> tuple[list[Line], list[int]]:
    """Return the lines (rows) of the page in order of execution, and the index of each part's line.

    A line is the records of one name, kind, mode and phase, of all ranks.
    parts: each the records of one rank that go into one line. parameters: the names of parameters.
    """
    members: dict[tuple[str, str, str, str], list[LineRecords]] = {}
    for part in parts:
        members.setdefault(part.key, []).append(part)
    made = sorted(
        (_line(key, own, key[0] in parameters) for key, own in members.items()),
        key=lambda one: (one.first_order, one.name, one.kind, one.mode, one.phase),
    )
    rows = {(line.name, line.kind, line.mode, line.phase): row for row, line in enumerate(made)}
    return made, [rows[part.key] for part in parts]


def _line(key: tuple[str, str, str, str], parts: list[LineRecords], parameter: bool) -> Line:  # noqa: FBT001 - a fact
    steps = np.concatenate([part.columns["step"] for part in parts])
    return line_of(
        key,
        parts[0].info,
        ranks=tuple(part.rank for part in parts),
        records=len(steps),
        first_step=int(steps.min()),
        last_step=int(steps.max()),
        first_order=min(int(part.columns["order"][0]) for part in parts),
        parameter=parameter,
    )


def _figures(
    parts: list[LineRecords], places: list[int], steps: Array, width: int, lines: int
) -> dict[str, Array]:
    columns = -(-len(steps) // width) if len(steps) else 0
    size = lines * columns
    added = {name: np.zeros(size) for name in (*ADDED, "records", "numel", "sum", "l2")}
    low, high = np.full(size, np.nan), np.full(size, np.nan)
    cells = [
        line * columns + np.searchsorted(steps, part.columns["step"]) // width
        for part, line in zip(parts, places, strict=True)
    ]
    for cell in cells:
        np.add.at(added["records"], cell, 1)
    none = np.empty(0)
    several: list[tuple[Array, Array, Array]] = [(none.astype(np.int64), none, none)]
    for part, cell in zip(parts, cells, strict=True):
        own = part.columns
        finite = part.numel > own["nan"] + own["inf"]
        for name in ADDED:
            np.add.at(added[name], cell, own[name])
        np.add.at(added["numel"], cell, part.numel)
        # A record without a finite element has no norm and adds none to those of its cell.
        alone = finite & (added["records"][cell] == 1)
        for name in ("sum", "l2"):
            np.add.at(added[name], cell[alone], own[name][alone])
        shared = finite & ~alone
        several.append((cell[shared], own["sum"][shared], own["l2"][shared]))
        np.fmin.at(low, cell[finite], own["min"][finite])
        np.fmax.at(high, cell[finite], own["max"][finite])
    empty = added["records"] == 0
    shared_cells, sums, norms = (np.concatenate([one[at] for one in several]) for at in range(3))
    added["sum"] += _exact(ExactSums.of, shared_cells, sums).rounded(size)
    added["l2"] += _exact(ExactSums.of_squares, shared_cells, norms).roots(size)
    for name in ("sum", "l2"):
        added[name][np.isnan(low)] = np.nan
    for values in added.values():
        values[empty] = np.nan
    return {
        name: values.reshape(lines, columns)
        for name, values in {**added, "min": low, "max": high}.items()
    }


def _exact(make: Callable[[Array, Array], ExactSums], cells: Array, values: Array) -> ExactSums:
    """Return the exact sums by cell that `make` computes, taken piece by piece to bound memory.

    make: called with at most AT_ONCE entries of `cells` and `values`; returns exact sums by cell,
    of the values or of their squares. cells: for each of `values`, the number of its cell.
    """
    pieces = (slice(start, start + AT_ONCE) for start in range(0, len(cells), AT_ONCE))
    return ExactSums.pooled([make(cells[piece], values[piece]) for piece in pieces])


def _nonfinite(parts: list[LineRecords], places: list[int]) -> tuple[Nonfinite | None, int]:
    """Return the first record with a NaN or an infinity, and how many lines have any.

    The first record is the earliest by step, then by its place in the order of execution, then by
    rank; None where all records are finite. A line is the records of one name, kind, mode and
    phase.

    places: for each of `parts` (the records of one rank in one line) the index of its line.
    """
    firsts: list[tuple[tuple[int, int], LineRecords, int, int]] = []
    for part, line in zip(parts, places, strict=True):
        bad = np.flatnonzero(part.columns["nan"] + part.columns["inf"])
        if len(bad):
            step, order = part.columns["step"][bad], part.columns["order"][bad]
            at = int(bad[np.lexsort((order, step))[0]])
            where = (int(part.columns["step"][at]), int(part.columns["order"][at]))
            firsts.append((where, part, line, at))
    if not firsts:
        return None, 0
    where, part, line, at = min(firsts, key=lambda one: (one[0], one[1].rank))
    earlier = sum(
        int(np.count_nonzero(_before(other.columns, where)))
        for other in parts
        if other.rank == part.rank
    )
    extra = {name: int(part.series.columns[name][at]) for name in ("pass_index", "call")}
    first = Nonfinite(
        line=line,
        step=where[0],
        rank=part.rank,
        **extra,
        nan=int(part.columns["nan"][at]),
        inf=int(part.columns["inf"][at]),
        numel=int(part.numel[at]),
        skipped=_was_skipped(parts, part.rank, where[0]),
        before=earlier,
    )
    return first, len({line for _, _, line, _ in firsts})


def _was_skipped(parts: list[LineRecords], rank: int, step: int) -> bool:
    """Return whether the optimizer skipped step `step` of rank `rank`.

    This is so if any record of that rank and step has the flag "skipped", which only gradients that
    the optimizer takes can carry. parts: all records of the page.
    """
    return any(
        "skipped" in str(flags)
        for part in parts
        if part.rank == rank
        for flags in np.unique(part.columns["flags"][part.columns["step"] == step]).tolist()
    )


def _before(columns: dict[str, Array], where: tuple[int, int]) -> Array:
    step, order = where
    earlier: Array = (columns["step"] < step) | (
        (columns["step"] == step) & (columns["order"] < order)
    )
    return earlier
