"""The origin: a difference that no recorded parent explains, with all that is known of it.

The parents of a record are the recorded tensors from which it was computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.judgement.clauses import name_a_change
from anchorlib.diagnosis.judgement.origins.nearness import Nearness
from anchorlib.diagnosis.pairing import RecordPlace
from anchorlib.diagnosis.sizes import Measure
from anchorlib.operations import Op, OpDifference
from anchorlib.reading import Run

__all__ = ["Origin", "Replay", "TracedPath"]


@dataclass(frozen=True, slots=True)
class TracedPath:
    """The traced operations that computed an origin from its nearest recorded parents.

    a, b: the operations of A and of B, in their order. steps: all operations of the step in A, and
    in B. runs: A and B, which may have kept values of these operations.
    """

    a: tuple[Op, ...]
    b: tuple[Op, ...]
    steps: tuple[Sequence[Op], Sequence[Op]]
    runs: tuple[Run, Run]


@dataclass(frozen=True, slots=True)
class Replay:
    """Which formula each run used at an origin, found by computing it again from stored inputs.

    a, b: the names of the formulas that reproduce every element of A's record, and of B's.
    error_a, error_b: ‖record − truth‖₂ / (‖truth‖₂ · eps) of A's and of B's record, the truth being
        the operation's mathematics on that run's own inputs in the widest arithmetic there is; nan
        where unknown.
    nearer: "a" or "b", whichever is nearer to the truth; None where both are as near, or where the
        two compute different mathematics.
    why: these findings in one line, with what could not be decided.
    """

    a: tuple[str, ...]
    b: tuple[str, ...]
    error_a: float
    error_b: float
    nearer: str | None
    why: str


@dataclass(frozen=True, slots=True)
class Origin:
    """A difference that no recorded parent explains.

    The classes (`cls`) are "rounding" (rounding explains it), "not_rounding" (more than rounding,
    or the runs state different computations), "nonfinite" (NaN or infinity in one run alone),
    "nondeterministic" (noise runs differ there too), "starts_unequal" (it came from outside) and
    "window_start" (what led to it was not recorded).

    ops: names of the autograd nodes between the record and its parents.
    parents: the selectors of the parents.
    why: one line for people; "" where there is nothing to add to the class.
    max_ulp: the largest difference in units in the last place of the coarser dtype; None if
        unknown.
    amongst: how many records the origin stands for, itself included: records with equal operations
        and parents, and their tensors in other steps, passes and ranks.
    orphaned: whether one run alone recorded some of the parents.
    where: which elements of the record differ, such as "rows 12–15 of 16" or "all"; "" where that
        is not known.
    leap: the record's error over the largest error before it in its step, for an origin whose
        parents differ already, but by much less; else 0.
    replay: which formula each run used, where a replay was asked for and was possible.
    nearness: how far A and B are from a reference run in this record, where one was given.
    evidence: the frontier, and the row in A's table, from which `anchorlib.replay` starts.
    changed: clauses on how B's computation of this record differs from A's, such as
        "GeluBackward0 approximate 'none' | 'tanh'"; `why` has them too.
    ops_a, ops_b: the operations between the parents and the record in A and in B, without those
        that only move bits: ATen's where both runs traced the step, else autograd's nodes.
    differences: where both runs traced the step, the operations among these that one run alone ran,
        or that both ran with different arguments.
    path: where both runs traced the step, all operations between the parents and the record.
    """

    place: RecordPlace
    cls: str
    ops: tuple[str, ...]
    parents: tuple[str, ...]
    measure: Measure
    max_ulp: int | None = None
    why: str = ""
    amongst: int = 1
    orphaned: bool = False
    where: str = ""
    leap: float = 0.0
    replay: Replay | None = None
    nearness: Nearness | None = None
    evidence: tuple[Frontier, int] | None = field(default=None, repr=False, compare=False)
    changed: tuple[str, ...] = ()
    ops_a: tuple[str, ...] = ()
    ops_b: tuple[str, ...] = ()
    differences: tuple[OpDifference, ...] = field(default=(), repr=False, compare=False)
    path: TracedPath | None = field(default=None, repr=False, compare=False)

    @property
    def names_change(self) -> bool:
        """Whether `changed` states a difference in the computation, and not only in the values."""
        return name_a_change(self.changed)
