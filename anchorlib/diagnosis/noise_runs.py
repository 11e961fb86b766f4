"""Whether the runs that are given as noise runs can be noise runs of A."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anchorlib.diagnosis.pairing import Alignment, Table
from anchorlib.errors import OptionError
from anchorlib.names import escape

__all__ = ["check_noise"]

LEAST = 0.5
"""The share of A's tensors that a rerun of A has at least; another program has hardly any."""


def check_noise(alignment: Alignment, runs: Sequence[Table]) -> None:
    """Raise OptionError if a noise run is A or B itself, or lacks most tensors of A.

    Such a run says nothing of how far rounding carries A: it would excuse any difference, or none.
    runs: the tables of the noise runs.
    """
    a, b = alignment.a, alignment.b
    own = {(one.name, one.kind) for one in a.tensors}
    for run in runs:
        name = escape(run.run)
        advice = f"`anchor noise {escape(a.run)}` makes noise runs of it"
        for side, table in (("A", a), ("B", b)):
            if run.run == table.run and np.array_equal(run.digest, table.digest):
                raise OptionError(f"{name} is {side} itself, and no noise run of A; {advice}")
        lacking = len(own - {(one.name, one.kind) for one in run.tensors})
        if lacking > (1 - LEAST) * len(own):
            raise OptionError(
                f"{name} is no noise run of {escape(a.run)}: it lacks {lacking:,} of its "
                f"{len(own):,} tensors; {advice}"
            )
