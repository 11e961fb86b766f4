"""Marks the nodes where two runs differ with a text about what the other run does there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from anchorlib.operations import OpAlignment, OpDifference, OpKey, op_key

__all__ = ["Marks", "marks_of"]

Marks: TypeAlias = Mapping[OpKey, str]


def marks_of(alignment: OpAlignment, a: str, b: str) -> tuple[Marks, Marks]:
    """Return, for run A and for run B, a text about each operation that differs between the runs.

    Each of the two dicts has the texts by (rank, step, index) of the run's own operation. A text
    says what the other run does at this place.

    alignment: the operations of the two runs side by side.
    a, b: the names of the runs, which the texts mention.
    """
    marks: tuple[dict[OpKey, str], dict[OpKey, str]] = ({}, {})
    for one in alignment.every:
        for own_marks, own, others, other in (
            (marks[0], one.a, one.only_b, b),
            (marks[1], one.b, one.only_a, a),
        ):
            said = _said(one, others, other)
            own_marks.update((op_key(op), said) for op in own)
    return marks


def _said(one: OpDifference, others: tuple[str, ...], other: str) -> str:
    if one.arguments:
        said = f"other arguments in {other}: {one.arguments}"
    else:
        said = f"{other} runs {' '.join(others) or 'nothing'} here"
    if one.outputs_equal is None:
        return said
    if one.outputs_equal:
        return f"{said}; equal bits come out"
    goes = "equal bits go in, " if one.inputs_equal else ""
    return f"{said}; {goes}other bits come out"
