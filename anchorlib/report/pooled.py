"""A RunView of many archived ranks, from figures that the archive keeps for each step.

The figures lie beside the run's index, the file of totals that archiving writes. However many ranks
there are, only one of them is opened, for its header and its lineage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from anchorlib.reading import Run
from anchorlib.record import TensorInfo
from anchorlib.report.run_lines import gaps_of, header_of, line_of, parameters_of
from anchorlib.report.run_view import Bins, Line, Nonfinite, PageBudget, RunView
from anchorlib.store import OFFSET, SPAN, StepFigures

__all__ = ["OPENED", "pooled_view"]

Array = np.ndarray[Any, Any]
OPENED: Final = 64
"""Of so many ranks all are opened: then the page also says which of them leave their peers."""


def pooled_view(run: Run, budget: PageBudget) -> RunView | None:
    """Return what the page shows of an archived run of more than OPENED ranks, or None.

    The result is made from what the archive counted of each step. It is None for a run of at most
    OPENED ranks, where there is no archive with such counts, and where they exceed the budget.
    After None the caller has to read the ranks themselves.
    """
    by_step = run.by_step() if len(run.ranks) > OPENED else None
    if by_step is None or len(by_step.lines) * len(by_step.stretches) > min(
        budget.cells, budget.bin_cells
    ):
        return None
    infos = {(one.name, one.kind, one.mode): one for one in run.tensors()}
    if any(line.key[:3] not in infos for line in by_step.lines):
        return None
    order = sorted(
        range(len(by_step.lines)),
        key=lambda at: (by_step.lines[at].first_order, by_step.lines[at].key),
    )
    figures = _figures(by_step, order)
    lines = _lines(by_step, order, infos, parameters_of(run), figures["records"])
    bad = figures["nan"] + figures["inf"] > 0
    return RunView(
        name=run.name,
        state=run.state,
        live=run.live,
        started_ns=run.started_ns,
        ranks=tuple(run.ranks),
        bytes=run.bytes,
        steps=len(by_step.steps),
        columns=by_step.steps[np.searchsorted(by_step.steps, by_step.stretches * by_step.width)],
        width=by_step.width,
        lines=lines,
        figures=figures,
        bins=_bins(by_step, order),
        header=header_of(run),
        gaps=gaps_of(run),
        nonfinite=_nonfinite(by_step, order),
        nonfinite_lines=int(np.count_nonzero(bad.any(axis=1))),
        unclipped=None,
        apart=(),
        is_pooled=True,
    )


def _figures(by_step: StepFigures, order: list[int]) -> dict[str, Array]:
    shape = (len(by_step.lines), len(by_step.stretches))
    size = shape[0] * shape[1]
    values = {name: one.astype(np.float64) for name, one in by_step.counts.items()}
    values |= {"sum": by_step.sums.rounded(size), "l2": by_step.squares.roots(size)}
    for name in ("sum", "l2"):
        values[name][np.isnan(by_step.low)] = np.nan
    empty = by_step.counts["records"] == 0
    for one in values.values():
        one[empty] = np.nan
    values |= {"min": by_step.low, "max": by_step.high}
    return {name: one.reshape(shape)[order] for name, one in values.items()}


def _lines(
    by_step: StepFigures,
    order: list[int],
    infos: Mapping[tuple[str, str, str], TensorInfo],
    parameters: set[str],
    records: Array,
) -> list[Line]:
    lines = []
    for place, at in enumerate(order):
        one = by_step.lines[at]
        lines.append(
            line_of(
                one.key,
                infos[one.key[:3]],
                ranks=one.ranks,
                records=int(np.nansum(records[place])),
                first_step=one.first_step,
                last_step=one.last_step,
                first_order=one.first_order,
                parameter=one.key[0] in parameters,
            )
        )
    return lines


def _bins(by_step: StepFigures, order: list[int]) -> Bins:
    windows = len(by_step.stretches)
    cells = len(order) * windows
    bounds = np.searchsorted(by_step.bins // SPAN, np.arange(cells + 1))
    moved = (np.array(order, np.int64)[:, None] * windows + np.arange(windows)).reshape(-1)
    lengths = np.diff(bounds)[moved]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    every = np.repeat(bounds[:-1][moved] - starts[:-1], lengths) + np.arange(starts[-1])
    exponents, counts = by_step.bins[every] % SPAN - OFFSET, by_step.bin_counts[every]
    return Bins(by_step.width, windows, starts, exponents, counts, by_step.counts["inf"][moved])


def _nonfinite(by_step: StepFigures, order: list[int]) -> Nonfinite | None:
    first = by_step.first
    if first is None:
        return None
    keys = [by_step.lines[at].key for at in order]
    fields = ("step", "rank", "pass_index", "call", "nan", "inf", "numel", "skipped", "before")
    return Nonfinite(line=keys.index(first.key), **{name: getattr(first, name) for name in fields})
