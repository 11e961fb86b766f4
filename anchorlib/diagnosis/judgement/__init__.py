"""What each difference is, and whether it matters: rounding, noise, or something else.

A and B are the two runs that are compared. The functions of this package are given a record as
`row`, its index in A's table (`pairing.Table`); `row_b` is the index of its partner in B's table,
and `pair` is the index of both in the alignment (`pairing.Alignment`). Where `measures` are given
too, `at`, `here` and `place` are indices into these measured pairs (`sizes.Measures`), unless a
docstring says otherwise. A clause is a part of a sentence for people; an empty clause says nothing.

origins            differences that no recorded parent explains
rounding           how large one operation's own error may be
noise              how far apart runs are that should be equal
changes            how B's computation of an origin differs from A's
origin_classifier  the class of each origin (rounding, not_rounding, nonfinite, nondeterministic,
                   starts_unequal or window_start), and why; the order of the questions
external_causes    the answer for what came from outside: data, parameters, buffers
missing_records    the answer for what may have begun in records that are missing
computed_rows      the answer for all other records, by the size of the error
made_by_code       what the program made of equal data without a graph
earlier_passes     rows of an input that the runs take from different passes of an earlier step
surroundings       what came before a record in its pass, and whether the seeds differ
reasons            what is said about an origin besides its class
judge              calls all of these, and makes the list of origins
verdict            from the classes and the noise runs to one word for the two runs: identical,
                   expected, suspect, unexpected or incomparable
losses             from which step on the losses of the two runs differ
clauses            clauses that name a change, and clauses that only describe values
series             all records of one tensor in order, and the values of a record in float64
sparse_sums        what a sparse gradient means: the sum of its values at each index
completeness       whether each run was closed, lost no record, and is as long as the other
"""

from anchorlib.diagnosis.judgement.changes import computing
from anchorlib.diagnosis.judgement.completeness import COMPLETE, Completeness, completeness
from anchorlib.diagnosis.judgement.judge import Judge
from anchorlib.diagnosis.judgement.losses import Losses, losses
from anchorlib.diagnosis.judgement.noise import (
    Envelope,
    Growth,
    Leaving,
    envelope,
    growth,
    leaves_noise,
    perturbation,
    turns,
)
from anchorlib.diagnosis.judgement.origin_classifier import BAD
from anchorlib.diagnosis.judgement.origins import (
    Cuts,
    Nearness,
    Origin,
    Partials,
    Replay,
    TracedPath,
    cuts,
    measured_from,
    partials,
    preceding,
)
from anchorlib.diagnosis.judgement.rounding import Benign, benign, only_dead_ends
from anchorlib.diagnosis.judgement.verdict import Drift, drift, times_of_origins, verdict

__all__ = [
    "BAD",
    "COMPLETE",
    "Benign",
    "Completeness",
    "Cuts",
    "Drift",
    "Envelope",
    "Growth",
    "Judge",
    "Leaving",
    "Losses",
    "Nearness",
    "Origin",
    "Partials",
    "Replay",
    "TracedPath",
    "benign",
    "completeness",
    "computing",
    "cuts",
    "drift",
    "envelope",
    "growth",
    "leaves_noise",
    "losses",
    "measured_from",
    "only_dead_ends",
    "partials",
    "perturbation",
    "preceding",
    "times_of_origins",
    "turns",
    "verdict",
]
