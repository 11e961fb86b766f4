"""What the page shows of one run, as frozen values: lines (rows) × columns (steps).

A line is one (name, kind, mode, phase); the figures of its ranks, passes and calls at a step are
added up. A column is a step. Where the run has too many steps a column is a window of adjacent
steps: its figures are added up over the window, never sampled, and the page says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from anchorlib.names import escape, join

__all__ = [
    "Bins",
    "Finding",
    "Line",
    "Nonfinite",
    "PageBudget",
    "RunView",
    "Section",
]

Array = np.ndarray[Any, Any]
Section = Literal["forward", "backward", "update"]


@dataclass(frozen=True, slots=True)
class PageBudget:
    """Limits on how much data goes into one page.

    A line of the page is a name, kind, mode and phase; a window is some adjacent steps.
    cells: lines × columns of figures; where a run has more, adjacent steps share a column.

    bin_cells: lines × windows of histograms; where a run has more, a window has more steps. A
        histogram takes about twenty times as much room as a cell of figures.
    neighbourhoods: for how many cells of a comparison the values around the worst element are
        shown.

    read_bytes: how many bytes of stored values may be read for the neighbourhoods.

    footprints: for how many cells (of the first divergence and of the origins, where differences
        begin) a comparison shows where in the tensor the runs differ.

    footprint_elements: how many elements may be compared for the footprints.
    """

    cells: int = 1_000_000
    bin_cells: int = 100_000
    neighbourhoods: int = 200
    read_bytes: int = 1 << 28
    footprints: int = 20
    footprint_elements: int = 1 << 24


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the page: what was recorded under a name, kind, mode and phase.

    shape, dtype: as text. In the shape an axis whose size varies is "?", and "mixed" stands for
        several numbers of axes; several dtypes are joined by "|".

    ranks: those with records of this line. records: how many there are.
    bytes, gaps: those of the name, kind and mode in all phases.

    first_order: the first record's `order`, its place in the order of execution, by which lines are
        sorted.

    parameter: whether the name is known to be a parameter's.
    """

    name: str
    kind: str
    mode: str
    phase: str
    dtype: str
    shape: str
    ranks: tuple[int, ...]
    records: int
    first_step: int
    last_step: int
    bytes: int
    gaps: int
    first_order: int
    parameter: bool

    @property
    def title(self) -> str:
        """The text by which commands select the records, such as "fc1@grad", escaped.

        The phase and mode follow in parentheses where they are not "train" and "all".
        """
        extra = [one for one in (self.phase, self.mode) if one not in ("train", "all")]
        text = escape(join(self.name, self.kind))
        return f"{text} ({', '.join(escape(one) for one in extra)})" if extra else text

    @property
    def section(self) -> Section:
        """The part of a training step that makes the records: forward, backward or update."""
        return section_of(self.kind)


def section_of(kind: str) -> Section:
    """Return the part of a training step that makes records of this kind.

    "forward" makes values, "backward" gradients, "update" everything of the optimizer's step.
    """
    if kind == "value":
        return "forward"
    return "backward" if kind in ("grad", "pass_grad") else "update"


@dataclass(frozen=True, slots=True)
class Bins:
    """Log2 histograms of all (line, window) cells of a page, one after the other.

    A line is the records of one name, kind, mode and phase; a window is some adjacent steps.
    width: how many steps one window takes together.
    windows: how many windows a line has.

    starts: for each cell = line * windows + window, where its bins begin in `exponents` and
        `counts`; they end where the next cell's begin, so a last entry follows the last cell.

    exponents, counts: the bins; that of exponent e counts the elements with 2^e <= |x| < 2^(e+1).
    infinite: for each cell the number of infinities, which are in no bin.
    """

    width: int
    windows: int
    starts: Array
    exponents: Array
    counts: Array
    infinite: Array


@dataclass(frozen=True, slots=True)
class Unclipped:
    """The norm of the gradients of all parameters together, before clipping.

    tensors: how many parameters have recorded gradients. norms: the norm for each column of the
    page, NaN where it is not known. bad: for each column whether a gradient held a NaN or an
    infinity, in which case the norm is NaN as well.
    """

    tensors: int
    norms: Array
    bad: Array


@dataclass(frozen=True, slots=True)
class Nonfinite:
    """The first record of a run with a NaN or an infinity: by step, execution order, then rank.

    line: the index of the record's line (name, kind, mode, phase) in `RunView.lines`.
    nan, inf: how many of the record's `numel` elements are NaN, and how many are infinite.
    skipped: whether the optimizer skipped that step.
    before: how many records of the same rank came before this one, of those in the page's lines.
    """

    line: int
    step: int
    pass_index: int
    call: int
    rank: int
    nan: int
    inf: int
    numel: int
    skipped: bool
    before: int


@dataclass(frozen=True, slots=True)
class Finding:
    """A sentence about something in a run that deserves attention.

    level: how bad it is: "bad", "warn", or "info" for a mere fact.

    line, column: the indices of the page's line (name, kind, mode, phase) and column (steps) that a
        click on the sentence leads to; -1 for none.
    """

    level: Literal["bad", "warn", "info"]
    text: str
    line: int = -1
    column: int = -1


@dataclass(frozen=True, slots=True)
class RunView:
    """All that the page shows of one run.

    state: "open" or "closed", as `Run.state`.
    live: whether the process that writes the run is alive; None where that is not known.
    steps: how many steps were recorded. columns: the first step of each column.
    width: how many steps share a column. lines: the rows, one for each name, kind, mode and phase.

    figures: by name, each (lines, columns) float64, NaN where a cell has no record: records, numel,
        zero, nan, inf, subnormal (sums), min, max (extremes), sum, l2 (root of the sum of squares).

    header: what the run says about itself, as escaped texts.
    gaps: (reason, number of observations that were not recorded for this reason) pairs.
    nonfinite: the first record with a NaN or an infinity; None if there is none.
    nonfinite_lines: how many lines have such a record.
    unclipped: the norms of all gradients together before clipping; None where they are not known.
    apart: a sentence for each rank that differs from its peers, but only the first three.

    is_pooled: whether the figures come from an archive's counts and not from the ranks themselves;
        then no rank was compared with its peers.
    """

    name: str
    state: str
    live: bool | None
    started_ns: int
    ranks: tuple[int, ...]
    bytes: int
    steps: int
    columns: Array
    width: int
    lines: Sequence[Line]
    figures: Mapping[str, Array]
    bins: Bins
    header: Mapping[str, str]
    gaps: Sequence[tuple[str, int]]
    nonfinite: Nonfinite | None = None
    nonfinite_lines: int = 0
    unclipped: Unclipped | None = None
    apart: tuple[str, ...] = ()
    is_pooled: bool = False
