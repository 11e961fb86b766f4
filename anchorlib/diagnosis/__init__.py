"""Where two runs part, which operation did it, and whether it matters.

    Run ─▶ Table ┐
                 ├─align─▶ Alignment ─measure─▶ Measures ─frontier, noise, verdict─▶ Comparison
    Run ─▶ Table ┘

A `Table` has the records of one run, an `Alignment` has the records of two tables in pairs, and
`Measures` say how far the two records of a pair are apart. Noise is how far apart runs are that
should be equal, such as a run and its perturbed rerun.

    pairing         which record of one run stands for which record of the other
    sizes           how far the two records of a pair are apart
    causes          from which records each was computed, and where differences begin (origins)
    judgement       what each origin is: rounding or not, noise or not, and whether it matters
    recomputation   which formula each run used at an origin
    tracing         which traced operations the runs do not have in common

Bits decide where the runs part, tolerances only how bad that is: the digests of two records say
whether they differ, the lineage says whether a record that they were computed from explains it, and
only then is anything measured.
"""

from anchorlib.diagnosis.answer import Section, SectionEntry, described, sections, selector, where
from anchorlib.diagnosis.comparison import Comparison, Divergence
from anchorlib.diagnosis.digest_comparison import DigestComparison, compare_digests
from anchorlib.diagnosis.investigation import compare
from anchorlib.diagnosis.judgement import Growth, Losses, Nearness, Origin, Replay
from anchorlib.diagnosis.notebook_page import NotebookPage
from anchorlib.diagnosis.pairing import Counts, RecordPlace
from anchorlib.diagnosis.pairs import Pair
from anchorlib.diagnosis.recomputation import replay

__all__ = [
    "Comparison",
    "Counts",
    "DigestComparison",
    "Divergence",
    "Growth",
    "Losses",
    "Nearness",
    "NotebookPage",
    "Origin",
    "Pair",
    "RecordPlace",
    "Replay",
    "Section",
    "SectionEntry",
    "compare",
    "compare_digests",
    "described",
    "replay",
    "sections",
    "selector",
    "where",
]
