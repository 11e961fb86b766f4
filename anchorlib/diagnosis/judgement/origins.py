"""A difference that no recorded parent explains, as it is told."""

from __future__ import annotations

from dataclasses import dataclass, field

from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.pairing import Place
from anchorlib.diagnosis.sizes import Measure
from anchorlib.operations import OpDifference

__all__ = ["Origin", "Replay"]


@dataclass(frozen=True, slots=True)
class Replay:
    """What an origin's operation computed in each run, computed again from its stored inputs.

    a, b: the formulas that reproduce every element of A's record, and of B's.
    error_a, error_b: ‖record − truth‖₂ / (‖truth‖₂ · eps) of each, the truth being the operation's
        mathematics on that run's own inputs in the widest arithmetic there is; nan where unknown.
    nearer: "a" or "b", whichever is nearer to the truth; None where neither is, or where the two
        compute different mathematics.
    why: the same in one line, with what could not be told.
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

    cls: rounding, not_rounding, starts_unequal, window_start, nonfinite or nondeterministic.
    ops: names of the autograd nodes between it and its parents.
    parents: their selectors.
    why: one line for people, "" where the class says it all.
    max_ulp: the largest difference in units in the last place of the coarser dtype; None if
        unknown.
    amongst: how many records of one segment this origin stands for (the same ops and parents,
        other steps or passes or elements of the segment), itself included.
    orphaned: whether one run alone recorded some of what it was computed from.
    where: which of its elements differ, as "rows 12–15 of 16" or "all"; "" where that is not known.
    leap: where what it was computed from differs already, but by so much less: its error over the
        largest before it in its step; else 0.
    replay: what each run's operation computed, where that was asked for and can be told.
    evidence: where it was found, for `anchorlib.replay`: the frontier, and the row in A's table.
    changed: what B does otherwise there, a clause each, as "GeluBackward0 approximate 'none' |
        'tanh'"; `why` has them too.
    ops_a, ops_b: the operations between it and what it was computed from in either run, without
        those that only move bits: ATen's where both runs traced its step, else autograd's nodes.
    differences: where both did, those of these operations that one run alone ran, or both with
        other arguments.
    """

    place: Place
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
    evidence: tuple[Frontier, int] | None = field(default=None, repr=False, compare=False)
    changed: tuple[str, ...] = ()
    ops_a: tuple[str, ...] = ()
    ops_b: tuple[str, ...] = ()
    differences: tuple[OpDifference, ...] = field(default=(), repr=False, compare=False)
