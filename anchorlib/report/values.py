"""What the page shows of one run, as frozen values: lines (rows) × columns (steps).

A line is one (name, kind, mode, phase); its ranks, passes and calls at a step are taken together.
A column is a step, or a window of adjacent steps where there would be too many: then figures are
added up over the window, never sampled, and the page says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from anchorlib.names import escape, join

__all__ = [
    "Bins",
    "Budget",
    "Finding",
    "Line",
    "Nonfinite",
    "RunView",
    "Section",
    "section_of",
]

Array = np.ndarray[Any, Any]
Section = Literal["forward", "backward", "update"]


@dataclass(frozen=True, slots=True)
class Budget:
    """How much goes into one page.

    cells: lines × columns of figures; beyond it adjacent steps share a column.
    bin_cells: the same for histograms, which weigh about twenty times as much.
    neighbourhoods: cells of a comparison whose values around the worst element are shown.
    read_bytes: what may be read of stored values for those.
    footprints: of how many origins a comparison says where in the tensor they differ.
    footprint_elements: how many elements may be compared for those.
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

    shape, dtype: as text; "mixed" where records differ.
    first_order: the smallest place of its records in a rank's run: sorting by it is replaying.
    parameter: whether it is known to be one's: its kinds say so, or what was computed from it.
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
        """Its selector as it may be shown, with phase and mode where they are unusual."""
        extra = [one for one in (self.phase, self.mode) if one not in ("train", "all")]
        text = escape(join(self.name, self.kind))
        return f"{text} ({', '.join(escape(one) for one in extra)})" if extra else text

    @property
    def section(self) -> Section:
        """The part of a step it belongs to."""
        return section_of(self.kind)


def section_of(kind: str) -> Section:
    """forward for values, backward for gradients, update for what the optimizer's step makes."""
    if kind == "value":
        return "forward"
    return "backward" if kind in ("grad", "pass_grad") else "update"


@dataclass(frozen=True, slots=True)
class Bins:
    """Log2 histograms of (line, window) cells, one after the other.

    width: columns that one window takes together.
    windows: how many there are.
    starts: cells + 1 offsets into the two others, cell = line * windows + window.
    exponents, counts: bin e holds count elements with 2^e <= |x| < 2^(e+1).
    infinite: infinities of each cell, which are in no bin.
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

    tensors: how many parameters. norms: one a column, NaN where it is not known.
    bad: columns in which a gradient held a NaN or an infinity.
    """

    tensors: int
    norms: Array
    bad: Array


@dataclass(frozen=True, slots=True)
class Nonfinite:
    """The first record that holds a NaN or an infinity.

    line: its row. skipped: whether the optimizer skipped that step.
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
    """One thing that deserves attention.

    level: "bad", "warn" or "info".
    line, column: where the page goes to when it is clicked; -1 nowhere.
    """

    level: Literal["bad", "warn", "info"]
    text: str
    line: int = -1
    column: int = -1


@dataclass(frozen=True, slots=True)
class RunView:
    """All that the page shows of one run.

    columns: the first step of each column; width: steps that share one (1: each has its own).
    figures: by name, each (lines, columns) float64, NaN where there is no record: records, numel,
        zero, nan, inf, subnormal (sums), min, max (extremes), sum, l2 (root of the sum of squares).
    header: flat, escaped texts.
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
