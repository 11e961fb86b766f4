"""Figures of each step of a rank, or of several ranks together: what the HTML page of a run draws.

    line       what was recorded under a name, kind, mode and phase
    stretch    steps that are counted together: one step, or `width` of them in a long run
    cell       the records of a line in a stretch: how many, their counts, extremes, sums, histogram

Ranks are counted when they are sealed, and figures of ranks are added up to those of their run. The
sums are exact, so that nothing depends on which ranks were added first. A stretch begins at a
multiple of its width, a power of two, so that stretches of different ranks fit each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from anchorlib.summary import ExactSums, added_up

__all__ = [
    "COUNTS",
    "MOST_CELLS",
    "MOST_WIDTH",
    "OFFSET",
    "SPAN",
    "FirstNonfinite",
    "LineKey",
    "StepFigures",
    "StepLine",
    "StepPool",
    "fitting",
]

Array = np.ndarray[Any, Any]
LineKey = tuple[str, str, str, str]
COUNTS: Final = ("records", "numel", "zero", "nan", "inf", "subnormal")
OFFSET, SPAN = 2048, 4096  # hold every exponent of a float64: -1074 … 1023
MOST_CELLS: Final = 1 << 15
MOST_WIDTH: Final = 1 << 60
_PENDING: Final = 1 << 23  # numbers of several ranks that wait to be added up


@dataclass(frozen=True, slots=True)
class StepLine:
    """A line, that is, all that was recorded under one name, kind, mode and phase (`key`).

    first_order, first_step, last_step: the smallest execution order, and the first and last step,
        of its records on all `ranks`.
    """

    key: LineKey
    first_order: int
    first_step: int
    last_step: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, order=True)
class FirstNonfinite:
    """The first record with a NaN or an infinity, by step and execution order, then by rank.

    key: the record's name, kind, mode and phase. nan, inf: how many of the record's `numel`
        elements are NaN, and how many infinite. skipped: whether GradScaler skipped the step.
        before: how many counted records of the rank come earlier by step and execution order.
    """

    step: int
    order: int
    rank: int
    key: LineKey
    pass_index: int
    call: int
    nan: int
    inf: int
    numel: int
    before: int
    skipped: bool


@dataclass(frozen=True, slots=True, eq=False)
class StepFigures:
    """Figures for each line (name, kind, mode, phase) and stretch (range of steps), a cell each.

    The cell of a line and a stretch has the number: line index * number of stretches + stretch
    index.

    ranks: the ranks whose records are counted, ascending. steps: steps with records, ascending.
    width: how many steps a stretch has. stretches: for each stretch with records, its first step
        divided by the width, ascending. lines: ascending by their keys.
    counts: for each name in COUNTS an array with a whole number per cell. low, high: the smallest
        and the largest finite element of each cell, NaN where there are none. sums: the sum of the
        finite elements of each cell. squares: the sum of the squared L2 norms of each cell's
        records.
    bins: for each histogram bin that has elements the number cell * SPAN + exponent + OFFSET,
        ascending. bin_counts: how many elements each of these bins has.
    first: the first record that is not finite; None where all elements are finite.
    """

    ranks: tuple[int, ...]
    steps: Array
    width: int
    stretches: Array
    lines: tuple[StepLine, ...]
    counts: Mapping[str, Array]
    low: Array
    high: Array
    sums: ExactSums
    squares: ExactSums
    bins: Array
    bin_counts: Array
    first: FirstNonfinite | None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StepFigures) and self._values() == other._values()

    __hash__ = None  # type: ignore[assignment]  # arrays have none

    def arrays(self) -> dict[str, Array]:
        """Return all arrays by name, except `steps` and `stretches`.

        `sums` and `squares` are two arrays each: keys ("sums", "squares") and counts ("sum_counts",
        "square_counts"), see `ExactSums`.
        """
        return {
            **self.counts,
            "low": self.low,
            "high": self.high,
            "sums": self.sums.keys,
            "sum_counts": self.sums.counts,
            "squares": self.squares.keys,
            "square_counts": self.squares.counts,
            "bins": self.bins,
            "bin_counts": self.bin_counts,
        }

    def _values(self) -> tuple[Any, ...]:
        arrays = {"steps": self.steps, "stretches": self.stretches, **self.arrays()}
        of_arrays = {name: values.tobytes() for name, values in arrays.items()}
        return (self.ranks, self.width, self.lines, self.first, of_arrays)


class StepPool:
    """Adds up the step figures of several ranks, which are given one after the other by `add`.

    The order of the ranks does not matter. The caller must add each rank only once.
    """

    def __init__(self) -> None:
        self._waiting: list[StepFigures] = []
        self._numbers = 0  # how many numbers the waiting figures have
        self._is_lacking = False

    def add(self, part: StepFigures | None) -> None:
        """Add the counts, extremes and histograms of a rank's steps, or of several ranks together.

        part: these figures; None for a rank that has no figures. After None, `total` returns None,
        whatever else is added.
        """
        if part is None or self._is_lacking:
            self._is_lacking, self._waiting = True, []
            return
        self._waiting.append(part)
        self._numbers += sum(map(len, part.arrays().values()))
        if self._numbers > _PENDING:
            self._add_up()

    def total(self) -> StepFigures | None:
        """Return counts, extremes, sums and histograms of each step over all ranks added so far.

        None where no rank was added, a rank had none, or there are more lines (one for each name,
        kind, mode and phase) than readers accept.
        """
        self._add_up()
        return self._waiting[0] if self._waiting else None

    def _add_up(self) -> None:
        if len(self._waiting) > 1:
            total = _added(self._waiting)
            self._waiting = [] if total is None else [total]
            self._is_lacking = total is None
        self._numbers = 0


def fitting(lines: int, width: int, steps: Array) -> tuple[int | None, Array]:
    """Return how wide stretches have to be so that there are at most MOST_CELLS cells.

    A cell is a line (name, kind, mode, phase) in a stretch (range of steps). Stretches begin with
    `width` steps, and the width is doubled until there are few enough cells.
    lines: how many lines there are. steps: the steps with records.
    Return (width, an array with the number of each stretch that has records, its first step divided
    by the width). The width is None where there are too many lines for any width.
    """
    stretches = np.unique(steps // width)
    while lines * len(stretches) > MOST_CELLS:
        if len(stretches) == 1 or width >= MOST_WIDTH:
            return None, stretches
        width *= 2
        stretches = np.unique(stretches // 2)
    return width, stretches


def _added(parts: Sequence[StepFigures]) -> StepFigures | None:
    steps = np.unique(np.concatenate([one.steps for one in parts]))
    known: dict[LineKey, StepLine] = {}
    own: dict[LineKey, list[StepLine]] = {}
    for line in (line for one in parts for line in one.lines):
        own.setdefault(line.key, []).append(line)
    for key in sorted(own):
        known[key] = _all_of(own[key])
    width, stretches = fitting(len(known), max(one.width for one in parts), steps)
    if width is None:
        return None
    places = {key: place for place, key in enumerate(known)}
    cells = len(known) * len(stretches)
    counts = {name: np.zeros(cells, np.int64) for name in COUNTS}
    low, high = np.full(cells, np.nan), np.full(cells, np.nan)
    moved: list[Array] = []
    for one in parts:
        row = np.array([places[line.key] for line in one.lines], np.int64)
        at = np.searchsorted(stretches, one.stretches // (width // one.width))
        cell = (row[:, None] * len(stretches) + at).reshape(-1)
        for name in COUNTS:
            np.add.at(counts[name], cell, one.counts[name])
        np.fmin.at(low, cell, one.low)
        np.fmax.at(high, cell, one.high)
        moved.append(cell)
    each = list(zip(parts, moved, strict=True))
    bins = [cell[one.bins // SPAN] * SPAN + one.bins % SPAN for one, cell in each]
    return StepFigures(
        tuple(sorted({rank for one in parts for rank in one.ranks})),
        steps,
        width,
        stretches,
        tuple(known.values()),
        counts,
        low,
        high,
        ExactSums.pooled([one.sums.moved(cell) for one, cell in each]),
        ExactSums.pooled([one.squares.moved(cell) for one, cell in each]),
        *added_up(np.concatenate(bins), np.concatenate([one.bin_counts for one in parts])),
        min((one.first for one in parts if one.first is not None), default=None),
    )


def _all_of(lines: Sequence[StepLine]) -> StepLine:
    """Return one line in place of the lines of several ranks that have equal keys.

    A line is what was recorded under one name, kind, mode and phase. lines: at least one.
    """
    first = lines[0]
    return StepLine(
        first.key,
        min(one.first_order for one in lines),
        min(one.first_step for one in lines),
        max(one.last_step for one in lines),
        tuple(sorted({rank for one in lines for rank in one.ranks})),
    )
