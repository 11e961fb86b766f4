"""A comparison as the page draws it: the worst pair of records in each cell of a grid.

The grid is that of the page's first run: its lines (name, kind, mode, phase) × columns (steps).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from anchorlib.diagnosis import Comparison, Section, SectionEntry, sections
from anchorlib.diagnosis.causes import MODULE
from anchorlib.diagnosis.pairing import Alignment, RecordPlace
from anchorlib.diagnosis.sizes import Measures
from anchorlib.names import escape, join
from anchorlib.report.footprint import Footprint, footprints
from anchorlib.report.nearby import nearby_values
from anchorlib.report.run_view import Line, PageBudget, RunView
from anchorlib.report.structure import structure
from anchorlib.report.vicinity import vicinities

__all__ = ["EQUAL", "NONFINITE", "UNMEASURED", "ComparisonView", "view_of_comparison"]

Array = np.ndarray[Any, Any]
EQUAL, UNMEASURED, NONFINITE = -1.0, -2.0, -3.0
"""What a cell of the grid holds where its worst pair has no error in eps."""

_NONFINITE, _INFINITE, _UNMEASURED = 1e300, 1e299, -0.5
"""Severities of pairs without a finite error; errors in eps lie between the last two.

The worst pair of a cell is that of the largest severity, so these keep the order: equal (EQUAL),
unmeasured, any finite error, infinite error, a value that only one run has finite."""

READ = ("verdict", "first", "origins", "reference", "ops", "note")
"""The sections that the page shows as text; the other sections it draws."""

ENTRIES = 50

MEASURES = (
    "error_eps", "share_differing", "max_abs", "worst", "value_a", "value_b", "nonfinite", "zeros",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ComparisonView:
    """A comparison of the page's first run with another one, as the page draws it.

    A line of the page is a name, kind, mode and phase; a column is a step, or some adjacent steps;
    a cell is a line in a column; a pair is a record of the first run and its partner in the other.

    plain: by name, what goes into the page's data unchanged: the verdict, the names of both runs,
        the first divergence, the origins, and the other sections of the comparison's answer.

    grid: (lines, columns) float64, the error of each cell's worst pair in eps (the spacing of the
        dtype's numbers just above 1), or a constant: EQUAL, UNMEASURED (no error is known),
        NONFINITE (a value is finite in one run alone); NaN where the cell has no pair.

    cells: arrays by name, with an entry for each cell that differs, ascending by `cell` = line *
        columns + column. `pairs` and `differing` count the pairs of the cell, all and those that
        differ; pass_index, call, rank, step and the measures are those of its worst pair.

    nearby: values around the worst element of a cell's worst pair, one dict for each cell: cell,
        start (the index of the first value shown), worst (the index of the worst element; both
        count elements in C order), shape, a and b (the values in both runs, as texts), difference
        (b - a, or its size if complex; None where the two texts are equal).

    footprints: where in their tensors the first divergence and the origins (where differences
        begin) differ.

    vicinities: drawings of the operations around the first origins, as `vicinity.vicinities`
        returns them; empty unless both runs were traced.
    """

    plain: Mapping[str, Any]
    grid: Array
    cells: Mapping[str, Array]
    nearby: Sequence[Mapping[str, Any]]
    footprints: Sequence[Footprint] = ()
    vicinities: Sequence[Mapping[str, Any]] = ()


def view_of_comparison(
    comparison: Comparison, a: RunView, b: RunView, number: int, *, budget: PageBudget | None = None
) -> ComparisonView:
    """Return the comparison of run 0 with run `number` of the page, as the page draws it.

    a, b: what the page shows of these two runs. budget: limits on the amount of data.
    """
    budget = budget or PageBudget()
    grid = np.full((len(a.lines), len(a.columns)), np.nan)
    cells: dict[str, Array] = _no_cells()
    nearby: list[dict[str, Any]] = []
    prints: list[Footprint] = []
    alignment, measures = comparison.alignment, comparison.measures
    wanted = _wanted(comparison, a)
    if alignment is not None and len(alignment):
        severity = _severity(alignment, measures)
        cell = _cells(alignment, a)
        grid = _grid(severity, cell, grid.shape)
        cells, pairs = _worst(alignment, measures, severity, cell)
        nearby = nearby_values(alignment, cells, pairs, wanted, budget)
        prints = footprints(alignment, cells, pairs, wanted, budget)
    drawn = vicinities(comparison)
    return ComparisonView(_plain(comparison, a, b, number), grid, cells, nearby, prints, drawn)


def _no_cells() -> dict[str, Array]:
    names = ("cell", "pass_index", "call", "rank", "step", "pairs", "differing", *MEASURES)
    return {name: np.empty(0) for name in names}


def _severity(alignment: Alignment, measures: Measures | None) -> Array:
    """Return how bad each pair is, as numbers that order the pairs from equal to worst.

    This is the pair's error in eps, at most _INFINITE; or EQUAL, _UNMEASURED where no error is
    known, or _NONFINITE where a value is finite in one run alone.
    """
    severity = np.where(alignment.equal, EQUAL, _UNMEASURED)
    if measures is not None and len(measures):
        error = np.asarray(measures["error_eps"], np.float64)
        own = np.where(np.isnan(error), _UNMEASURED, np.minimum(error, _INFINITE))
        severity[measures.pair] = np.where(np.asarray(measures["nonfinite"]) > 0, _NONFINITE, own)
    return severity


def _cells(alignment: Alignment, a: RunView) -> Array:
    """Return the cell of each pair, line * columns + column; -1 where the page has no such cell.

    A line is a name, kind, mode and phase, a column some steps. The run may have grown after `a`
    was made: then the page has no cell for the newest pairs.
    """
    table = alignment.a
    rows = {(o.name, o.kind, o.mode, o.phase): row for row, o in enumerate(a.lines)}
    # Pairs are many, combinations of tensor and phase few: each combination is looked up once.
    combined = table.tensor[alignment.a_row].astype(np.int64) * len(table.phases)
    combined += table.phase[alignment.a_row]
    kinds, places = np.unique(combined, return_inverse=True)
    line_of = []
    for kind in kinds.tolist():
        tensor, phase = table.tensors[kind // len(table.phases)], kind % len(table.phases)
        key = (tensor.name, tensor.kind, tensor.mode, table.phases[phase])
        line_of.append(rows.get(key, -1))
    line = np.array(line_of, np.int64)[places]
    step = table.step[alignment.a_row]
    column = np.searchsorted(a.columns, step, side="right") - 1
    # searchsorted puts later steps into the last column, which ends with the page's last step.
    known = (line >= 0) & (column >= 0) & (step <= max((o.last_step for o in a.lines), default=-1))
    cell: Array = np.where(known, line * len(a.columns) + column, -1)
    return cell


def _grid(severity: Array, cell: Array, shape: tuple[int, int]) -> Array:
    grid = np.full(shape[0] * shape[1], -np.inf)
    seen = cell >= 0
    np.maximum.at(grid, cell[seen], severity[seen])
    shown = np.select(
        [grid == -np.inf, grid == _NONFINITE, grid == _INFINITE, grid == _UNMEASURED],
        [np.nan, NONFINITE, np.inf, UNMEASURED],
        grid,
    )
    return shown.reshape(shape)


def _worst(
    alignment: Alignment, measures: Measures | None, severity: Array, cell: Array
) -> tuple[dict[str, Array], Array]:
    """Return `ComparisonView.cells`, and the index of the worst pair of each of these cells.

    severity, cell: how bad each pair is, and its cell (line * columns + column), -1 for no cell.
    """
    differing = alignment.differing
    differing = differing[cell[differing] >= 0]
    order = differing[np.lexsort((-differing, severity[differing], cell[differing]))]
    last = np.append(cell[order][1:] != cell[order][:-1], True)[: len(order)]
    pairs = order[last]
    table, rows = alignment.a, alignment.a_row[pairs]
    cells: dict[str, Array] = {"cell": cell[pairs]}
    for name in ("pass_index", "call", "step"):
        cells[name] = getattr(table, name)[rows].astype(np.int64)
    ranks = np.array([tensor.rank for tensor in table.tensors], np.int64)
    cells["rank"] = ranks[table.tensor[rows]]
    for name, chosen in (("pairs", cell), ("differing", cell[differing])):
        seen, counts = np.unique(chosen, return_counts=True)
        cells[name] = counts[np.searchsorted(seen, cells["cell"])]
    return cells | _measured(measures, pairs), pairs


def _measured(measures: Measures | None, pairs: Array) -> dict[str, Array]:
    """Return {name of a measure: its value for each of `pairs`}; NaN for a pair not measured."""
    columns = {name: np.full(len(pairs), np.nan) for name in MEASURES}
    if measures is not None and len(measures):
        place = np.minimum(np.searchsorted(measures.pair, pairs), len(measures) - 1)
        known = measures.pair[place] == pairs
        for name in MEASURES:
            columns[name][known] = np.asarray(measures[name], np.float64)[place[known]]
    return columns


def _wanted(comparison: Comparison, a: RunView) -> list[int]:
    """Return the cells of the first divergence and of the origins (where differences begin).

    A cell is given as line * columns + column. Records whose line the page does not have are left
    out.
    """
    places = [] if comparison.first is None else [comparison.first.place]
    places += [origin.place for origin in comparison.origins]
    spots = [_spot(place, a) for place in places]
    return [row * len(a.columns) + column for row, column in spots if row >= 0]


def _spot(place: RecordPlace, a: RunView) -> tuple[int, int]:
    """Return (line, column) of the page's cell that a record belongs to.

    line: the index of the first line of `a` with the record's name, kind and phase, in any mode;
        -1 where `a` has no such line.
    """
    row = next((row for row, line in enumerate(a.lines) if _is_of(place, line)), -1)
    return row, int(np.searchsorted(a.columns, place.step, side="right")) - 1


def _is_of(place: RecordPlace, line: Line) -> bool:
    return (line.name, line.kind, line.phase) == (place.name, place.kind, place.phase)


def _plain(comparison: Comparison, a: RunView, b: RunView, number: int) -> dict[str, Any]:
    first = comparison.first
    losses = comparison.losses
    every = sections(comparison)
    return {
        "run": number,
        "a": escape(comparison.a),
        "b": escape(comparison.b),
        "verdict": comparison.verdict,
        "sections": [_section(one, a) for one in every if one.key in READ],
        "first": None
        if first is None
        else {**_place_fields(first.place, a), "identical_before": first.identical_before},
        "origins": [
            {
                **_place_fields(origin.place, a),
                "class": origin.cls,
                "ops": [escape(op) for op in origin.ops],
                "parents": [escape(parent) for parent in origin.parents],
                "why": escape(origin.why),
                "amongst": origin.amongst,
                "error_eps": origin.measure.error_eps,
                "share_differing": origin.measure.share_differing,
                "max_abs": origin.measure.max_abs,
                "max_ulp": origin.max_ulp,
            }
            for origin in comparison.origins
        ],
        "config": [
            [entry.name, *(entry.sides or ())]
            for one in every
            if one.key == "config"
            for entry in one.entries
            if not entry.name.startswith(MODULE)  # modules are shown in the structure
        ],
        "structure": structure(comparison, a, b),
        "growth": [asdict(one) for one in comparison.growth],
        "loss": None
        if losses is None
        else {"name": losses.name, "first": losses.first_bit, "far": losses.above_1e3},
        "renamed": [[escape(one.a), escape(one.b), one.how] for one in comparison.renamed],
        "offset": comparison.step_offset,
        "incomplete": comparison.incomplete,
        "noise": [escape(name) for name in comparison.noise],
        "horizon": comparison.horizon,
        "partners": _partners(comparison, a, b),
    }


def _section(section: Section, a: RunView) -> dict[str, Any]:
    """Return a section of a comparison's answer (a headline with entries or a table) for the page.

    The result has at most ENTRIES entries and ENTRIES table rows; its "all" says how many entries
    there are without this limit. "line" and "column" of an entry name the cell of the page that
    the entry is about; both are -1 where it is about no record.
    """
    return {
        "key": section.key,
        "title": section.title,
        "head": section.subject + section.head,
        "entries": [_entry(one, a) for one in section.entries[:ENTRIES]],
        "all": len(section.entries),
        "heads": list(section.heads),
        "rows": [list(row) for row in section.rows[:ENTRIES]],
    }


def _entry(entry: SectionEntry, a: RunView) -> dict[str, Any]:
    line, column = (-1, -1) if entry.place is None else _spot(entry.place, a)
    said = {name: getattr(entry, name) for name in ("text", "where", "name", "kind", "made", "far")}
    return {**said, "sides": list(entry.sides or ()), "line": line, "column": column}


def _place_fields(place: RecordPlace, a: RunView) -> dict[str, Any]:
    row, column = _spot(place, a)
    return {
        "line": row,
        "column": column,
        "title": escape(join(place.name, place.kind)),
        "step": place.step,
        "pass_index": place.pass_index,
        "call": place.call,
        "rank": place.rank,
        "phase": escape(place.phase),
    }


def _partners(comparison: Comparison, a: RunView, b: RunView) -> list[int]:
    """Return for each line of run A the index of its partner among run B's lines; -1 without one.

    A line is the records of one name, kind, mode and phase. Its partner has the same name (or the
    name that it was renamed to), kind and phase, and the same mode if there is such a line.
    """
    names = {one.a: one.b for one in comparison.renamed}
    full = {(o.name, o.kind, o.mode, o.phase): row for row, o in reversed([*enumerate(b.lines)])}
    loose = {(o.name, o.kind, o.phase): row for row, o in reversed([*enumerate(b.lines)])}
    partners = []
    for line in a.lines:
        name = names.get(line.name, line.name)
        other = loose.get((name, line.kind, line.phase), -1)
        partners.append(full.get((name, line.kind, line.mode, line.phase), other))
    return partners
