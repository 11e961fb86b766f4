"""Whether the runs that are given as noise runs can be noise runs of A."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anchorlib.diagnosis.pairing import Alignment, Table
from anchorlib.errors import OptionError
from anchorlib.names import escape

__all__ = ["check_noise"]

LEAST = 0.5
"""The share of its tensors that a rerun of A has in common with A at least. It may record fewer
tensors than A; another program has hardly any in common."""


def check_noise(alignment: Alignment, runs: Sequence[Table], pairs_of: Sequence[Alignment]) -> None:
    """Raise OptionError if a noise run is A or B itself, or has little in common with A.

    Such a run says nothing of how far rounding carries A: it would excuse any difference, or none.
    runs: the tables of the noise runs. pairs_of: the alignment of A with each of them.
    """
    a, b = alignment.a, alignment.b
    for run, pairs in zip(runs, pairs_of, strict=True):
        name = escape(run.run)
        advice = f"`anchor noise {escape(a.run)}` makes noise runs of it"
        for side, table in (("A", a), ("B", b)):
            if run.run == table.run and np.array_equal(run.digest, table.digest):
                raise OptionError(f"{name} is {side} itself, and no noise run of A; {advice}")
        count = len(np.unique(run.tensor))
        common = len(np.unique(run.tensor[pairs.b_row]))
        if common < LEAST * count:
            raise OptionError(
                f"{name} is no noise run of {escape(a.run)}, which has {common:,} of its "
                f"{count:,} tensors; {advice}"
            )
