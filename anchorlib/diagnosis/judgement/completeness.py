"""Whether each of two runs has all the records that an answer about them relies on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anchorlib.diagnosis.pairing import Alignment, Table

__all__ = ["COMPLETE", "Completeness", "completeness"]

_STAGES = {"value": "forward", "grad": "backward", "pass_grad": "backward"}


@dataclass(frozen=True, slots=True)
class Completeness:
    """Whether A and B reached the same last step, lost no record, and did not die.

    A run that is still written is complete as long as it is not behind the other run. As a bool,
    this is True where both runs are complete.

    a, b: whether A, and B, is complete. why: for people, one clause for each thing that is missing;
    "" where nothing is missing.
    """

    a: bool = True
    b: bool = True
    why: str = ""

    def __bool__(self) -> bool:
        return self.a and self.b


COMPLETE = Completeness()
"""Nothing is missing."""


def completeness(alignment: Alignment) -> Completeness:
    """Return whether each of the two runs is complete, and what each one lacks."""
    a, b = alignment.a, alignment.b
    last_a, last_b = _last_step(a), _last_step(b)
    common = len(alignment) > 0
    shift = alignment.step_offset
    told_a = _lacks("a", a, "b", last_b if common and last_a < last_b - shift else None)
    told_b = _lacks("b", b, "a", last_a if common and last_b - shift < last_a else None)
    return Completeness(not told_a, not told_b, "; ".join([*told_a, *told_b]))


def _lacks(name: str, table: Table, other: str, further: int | None) -> list[str]:
    """Return what the run of `table` lacks, a clause for each thing; [] where it lacks nothing.

    name, other: what the clauses call this run and the other run. further: the last step of the
    other run, where that step comes later; else None.
    """
    clauses = []
    longer = "" if further is None else f", {other} goes on to step {further}"
    if table.state == "died":
        clauses.append(f"{name} {_ending(table)}and never closed{longer}")
    elif further is not None:
        ends = "ends at" if table.state == "closed" else "is still at"
        clauses.append(f"{name} {ends} step {_last_step(table)}{longer}")
    if table.gaps:
        count = sum(table.gaps.values())
        clauses.append(f"{name} lacks {count} record{'s' * (count != 1)}")
    return clauses


def _ending(table: Table) -> str:
    """Return a phrase on how far a run came, as "ended in the update of step 3", and a blank."""
    if not len(table):
        return "has no record "
    last = int(np.lexsort((table.order, table.step))[-1])
    stage = _STAGES.get(table.tensors[int(table.tensor[last])].kind, "update")
    return f"ended in the {stage} of step {int(table.step[last])} "


def _last_step(table: Table) -> int:
    return int(table.step.max()) if len(table) else -1
