"""Where two runs part, which operation did it, and whether it matters.

    Run ─▶ Table ┐
                 ├─align─▶ Alignment ─measure─▶ Measures ─frontier, noise, verdict─▶ Comparison
    Run ─▶ Table ┘

Bits decide where, tolerances only how bad: the digests of two records say whether they differ, the
lineage says whether a parent explains it, and only then is anything measured.
"""

from anchorlib.diagnosis.comparing import compare
from anchorlib.diagnosis.comparison import (
    Comparison,
    Counts,
    Divergence,
    Growth,
    Losses,
    Origin,
    Pair,
    Place,
)
from anchorlib.diagnosis.headers import made_otherwise
from anchorlib.diagnosis.rerunning import compare_line, noise, noise_line

__all__ = [
    "Comparison",
    "Counts",
    "Divergence",
    "Growth",
    "Losses",
    "Origin",
    "Pair",
    "Place",
    "compare",
    "compare_line",
    "made_otherwise",
    "noise",
    "noise_line",
]
