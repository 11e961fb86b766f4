"""Counts what was recorded in each step of a rank, for the HTML page of a run.

These figures (counts, extremes, sums, histograms) are counted from rows that fit their checksums.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, Final

import numpy as np

from anchorlib.names import is_operand_kind
from anchorlib.record import Flag
from anchorlib.store.seal.step_figures import (
    COUNTS,
    OFFSET,
    SPAN,
    FirstNonfinite,
    LineKey,
    StepFigures,
    StepLine,
    fitting,
)
from anchorlib.store.stored import RankRecords, visible_rows
from anchorlib.summary import ExactSums, added_up

__all__ = ["step_figures_of"]

Array = np.ndarray[Any, Any]
_AT_ONCE: Final = 1 << 14  # rows whose histograms are read at a time


def step_figures_of(reader: RankRecords) -> StepFigures | None:
    """Count what was recorded in each step of a rank: counts, extremes, sums and histograms.

    Only visible records count, and operands of traced operations do not. Return None where there
    are more lines (one for each name, kind, mode and phase) than readers accept. Raises
    DamagedError where rows are damaged.
    """
    rows = visible_rows(reader)
    keys, owner = _lines_of(reader, rows)
    rows, owner = rows[owner >= 0], owner[owner >= 0]
    table = {name: reader.column(name)[rows] for name in ("step", "order", "min", "max")}
    step = table["step"].astype(np.int64)
    steps = np.unique(step)
    width, stretches = fitting(len(keys), 1, steps)
    if width is None:
        return None
    at = np.searchsorted(stretches, step // width)
    cell, cells = owner * len(stretches) + at, len(keys) * len(stretches)
    counts = {name: np.zeros(cells, np.int64) for name in COUNTS}
    shapes, codes = reader.shape_codes(rows)
    numel = np.array([prod(shape) for shape in shapes], np.int64)[codes]
    added = {name: reader.column(name)[rows].astype(np.int64) for name in COUNTS[2:]}
    for name, values in {"records": np.ones(len(rows), np.int64), "numel": numel, **added}.items():
        np.add.at(counts[name], cell, values)
    finite = numel > added["nan"] + added["inf"]
    low, high = np.full(cells, np.nan), np.full(cells, np.nan)
    np.fmin.at(low, cell[finite], table["min"][finite])
    np.fmax.at(high, cell[finite], table["max"][finite])
    own = {name: reader.column(name)[rows][finite] for name in ("sum", "l2")}
    bad = added["nan"] + added["inf"] > 0
    return StepFigures(
        (reader.rank,),
        steps,
        width,
        stretches,
        _lines(keys, owner, table, reader.rank),
        counts,
        low,
        high,
        ExactSums.of(cell[finite], own["sum"]),
        ExactSums.of_squares(cell[finite], own["l2"]),
        *_bins(reader, rows, cell),
        _first(reader, rows, [keys[one] for one in owner[bad].tolist()], bad, numel),
    )


def _lines_of(reader: RankRecords, rows: Array) -> tuple[list[LineKey], Array]:
    """Return the keys of all lines, ascending, and for each of `rows` the index of its line.

    A line is a name, kind, mode and phase; rows that hold operands of traced operations get -1.
    """
    catalogue = reader.catalogue
    phases = catalogue.phases
    codes = reader.series_ids[rows].astype(np.int64) * max(len(phases), 1)
    codes += reader.column("phase")[rows].astype(np.int64)
    different, places = np.unique(codes, return_inverse=True)
    keys: list[LineKey | None] = []
    for code in different.tolist():
        entry = catalogue.series[code // len(phases)]
        key = (entry.name, entry.kind, entry.mode, phases[code % len(phases)])
        keys.append(None if is_operand_kind(entry.kind) else key)
    known = sorted({key for key in keys if key is not None})
    numbers = {key: number for number, key in enumerate(known)}
    own = np.array([-1 if key is None else numbers[key] for key in keys], np.int64)
    return known, own[places]


def _lines(
    keys: list[LineKey], owner: Array, table: Mapping[str, Array], rank: int
) -> tuple[StepLine, ...]:
    order = np.argsort(owner, kind="stable")
    starts = np.searchsorted(owner[order], np.arange(len(keys)))
    if not keys:
        return ()
    figures = zip(
        np.minimum.reduceat(table["order"][order], starts).tolist(),
        np.minimum.reduceat(table["step"][order], starts).tolist(),
        np.maximum.reduceat(table["step"][order], starts).tolist(),
        strict=True,
    )
    return tuple(StepLine(key, *own, (rank,)) for key, own in zip(keys, figures, strict=True))


def _bins(reader: RankRecords, rows: Array, cell: Array) -> tuple[Array, Array]:
    keys, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for start in range(0, len(rows), _AT_ONCE):
        place, exponent, count = reader.bins(rows[start : start + _AT_ONCE])
        own = cell[start : start + _AT_ONCE][place] * SPAN + exponent + OFFSET
        keys, counts = added_up(np.concatenate([keys, own]), np.concatenate([counts, count]))
    return keys, counts


def _first(
    reader: RankRecords, rows: Array, keys: list[LineKey], bad: Array, numel: Array
) -> FirstNonfinite | None:
    if not keys:
        return None
    step, order = reader.column("step")[rows], reader.column("order")[rows]
    one = int(np.lexsort((order[bad], step[bad]))[0])
    at = int(np.flatnonzero(bad)[one])
    earlier = (step < step[at]) | ((step == step[at]) & (order < order[at]))
    flags = reader.column("flags")[rows][step == step[at]]
    cell = {name: int(reader.column(name)[rows[at]]) for name in _CELLS}
    return FirstNonfinite(
        int(step[at]),
        int(order[at]),
        reader.rank,
        keys[one],
        **cell,
        numel=int(numel[at]),
        before=int(np.count_nonzero(earlier)),
        skipped=bool((flags & int(Flag.STEP_SKIPPED)).any()),
    )


_CELLS: Final = ("pass_index", "call", "nan", "inf")
