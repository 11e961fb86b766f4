"""A difference that no recorded parent explains, as it is told."""

from __future__ import annotations

from dataclasses import dataclass

from anchorlib.diagnosis.pairing import Place
from anchorlib.diagnosis.sizes import Measure

__all__ = ["Origin"]


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
    changed: what B does otherwise there, a clause each, as "GeluBackward0 approximate 'none' |
        'tanh'"; `why` has them too.
    ops_a, ops_b: the operations between it and what it was computed from in either run, without
        those that only move bits.
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
    changed: tuple[str, ...] = ()
    ops_a: tuple[str, ...] = ()
    ops_b: tuple[str, ...] = ()
