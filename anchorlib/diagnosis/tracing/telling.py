"""Says in words which operations differ, and by how much the values differ that they made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from anchorlib.amounts import figure
from anchorlib.diagnosis.counting import listed
from anchorlib.diagnosis.judgement import Origin
from anchorlib.names import escape, join
from anchorlib.operations import OpAlignment, OpDifference

__all__ = ["ShownDifference", "clause", "headline", "shown_differences"]

MODULES = 3  # how many modules are named
OUTSIDE = "outside modules"


class ShownDifference(NamedTuple):
    """One difference of operations as it is shown to people; all texts are escaped.

    stage, module: where the operations ran. a, b: the operations of run A and of run B; "-" where
    a run has none.
    text: everything else about the difference.
    """

    stage: str
    module: str
    a: str
    b: str
    text: str


def shown_differences(operations: OpAlignment, origins: Sequence[Origin]) -> list[ShownDifference]:
    """Return the differences of operations in words, those that explain most first.

    A difference that several modules have is listed once. Those of the operations that made an
    origin (a record where the runs part) come first, then those that turn equal bits into different
    bits; differences with equal results come last.
    """

    def rank(difference: OpDifference) -> tuple[bool, bool, bool]:
        parting = difference.inputs_equal is True and difference.outputs_equal is False
        return not _hanging(difference, origins), not parting, difference.outputs_equal is True

    return [
        _shown_difference(difference, origins)
        for difference in sorted(operations.differences, key=rank)
    ]


def headline(operations: OpAlignment) -> str:
    """Return how many operations both runs ran, and how many only one of them ran, in words."""
    if not operations.every:
        return f"no operation differs; {operations.matched:,} ran in both"
    alone = f"{operations.only_a:,} in A alone, {operations.only_b:,} in B alone"
    text = f"{operations.matched:,} ran in both, {alone}"
    otherwise = sum(bool(difference.arguments) for difference in operations.every)
    return text + f"; {otherwise:,} with other arguments" * bool(otherwise)


def clause(difference: OpDifference) -> str:
    """Return a difference of operations as a clause: "A ran tanh_backward, B mul sub mul".

    Where one run alone ran operations, the clause is "only A ran …"; where arguments differ, it
    names the operation and the arguments.
    """
    a, b = listed(difference.only_a, " "), listed(difference.only_b, " ")
    if difference.arguments:
        return f"{a} {escape(difference.arguments)}"
    if not a or not b:
        return f"only {'A' if a else 'B'} ran {a or b}"
    return f"A ran {a}, B {b}"


def _shown_difference(difference: OpDifference, origins: Sequence[Origin]) -> ShownDifference:
    parts = [
        escape(difference.arguments),
        *_values(difference, origins),
        _bits(difference),
        _made_of(difference),
    ]
    parts += [_alike(difference), _lines(difference)]
    return ShownDifference(
        stage=escape(difference.stage),
        module=escape(difference.module) or OUTSIDE,
        a=listed(difference.only_a, " ") or "-",
        b=listed(difference.only_b, " ") or "-",
        text="; ".join(filter(None, parts)),
    )


def _hanging(difference: OpDifference, origins: Sequence[Origin]) -> list[Origin]:
    """Return the origins (records where the runs part) that have this difference of operations.

    An origin has it if one of `Origin.differences` has the same stage, the same arguments, and the
    same names of operations in A and in B; the module may be another.
    """
    return [
        origin for origin in origins if any(_alike_to(difference, d) for d in origin.differences)
    ]


def _alike_to(left: OpDifference, right: OpDifference) -> bool:
    return (left.stage, left.arguments, left.only_a, left.only_b) == (
        *(right.stage, right.arguments, right.only_a, right.only_b),
    )


def _values(difference: OpDifference, origins: Sequence[Origin]) -> list[str]:
    """Return, in a list, a clause on how far the values of an origin with this difference differ.

    An origin is a record where the runs part. `_hanging` says which origins have the difference;
    the first of them is taken. [] if no origin has it.
    """
    for origin in _hanging(difference, origins):
        name, error = escape(join(origin.place.name, origin.place.kind)), origin.measure.error_eps
        size = f" by {figure(error)} eps" if math.isfinite(error) else ""
        return [f"{name} differs{size}"]
    return []


def _bits(difference: OpDifference) -> str:
    if difference.outputs_equal is None:
        return ""
    if difference.outputs_equal:
        return "the same bits come out"
    given = {True: "equal bits go in, ", False: "other bits go in already, ", None: ""}
    return f"{given[difference.inputs_equal]}other bits come out"


def _made_of(difference: OpDifference) -> str:
    return (
        f"decomposed from {escape(difference.decomposed_from)}"
        if difference.decomposed_from
        else ""
    )


def _lines(one: OpDifference) -> str:
    return " | ".join(dict.fromkeys(escape(line) for line in one.where if line))


def _alike(difference: OpDifference) -> str:
    if not difference.like_it:
        return ""
    names = ", ".join(escape(name) or OUTSIDE for name in difference.like_it[:MODULES])
    return (
        f"+{len(difference.like_it):,} like it: {names}"
        f"{', ...' * (len(difference.like_it) > MODULES)}"
    )
