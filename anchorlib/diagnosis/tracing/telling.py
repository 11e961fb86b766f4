"""Differences of operations in words, each with the difference in values that depends on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from anchorlib.amounts import figure
from anchorlib.diagnosis.counting import listed
from anchorlib.diagnosis.judgement import Origin
from anchorlib.names import escape, join
from anchorlib.operations import OpAlignment, OpDifference

__all__ = ["Told", "clause", "headline", "told"]

MODULES = 3  # how many modules are named
OUTSIDE = "outside modules"


class Told(NamedTuple):
    """One difference of operations, as it is shown; all texts are escaped.

    where: stage and module. a, b: the operations, "-" where there is none. text: all else.
    """

    stage: str
    module: str
    a: str
    b: str
    text: str


def told(operations: OpAlignment, origins: Sequence[Origin]) -> list[Told]:
    """Every kind of difference in words: first those on which an origin depends.

    Next come those where equal bits go in and other bits come out; last, those with equal results.
    """

    def rank(one: OpDifference) -> tuple[bool, bool, bool]:
        parting = one.inputs_equal is True and one.outputs_equal is False
        return not _hanging(one, origins), not parting, one.outputs_equal is True

    return [_told(one, origins) for one in sorted(operations.differences, key=rank)]


def headline(operations: OpAlignment) -> str:
    """How many operations both runs ran, and how many one run alone."""
    if not operations.every:
        return f"no operation differs; {operations.matched:,} ran in both"
    alone = f"{operations.only_a:,} in A alone, {operations.only_b:,} in B alone"
    said = f"{operations.matched:,} ran in both, {alone}"
    otherwise = sum(bool(one.arguments) for one in operations.every)
    return said + f"; {otherwise:,} with other arguments" * bool(otherwise)


def clause(one: OpDifference) -> str:
    """What B does otherwise in a clause, as "A ran tanh_backward, B mul sub mul"."""
    a, b = listed(one.only_a, " "), listed(one.only_b, " ")
    if one.arguments:
        return f"{a} {escape(one.arguments)}"
    if not a or not b:
        return f"only {'A' if a else 'B'} ran {a or b}"
    return f"A ran {a}, B {b}"


def _told(one: OpDifference, origins: Sequence[Origin]) -> Told:
    parts = [escape(one.arguments), *_values(one, origins), _bits(one), _made_of(one)]
    parts += [_alike(one), _lines(one)]
    return Told(
        stage=escape(one.stage),
        module=escape(one.module) or OUTSIDE,
        a=listed(one.only_a, " ") or "-",
        b=listed(one.only_b, " ") or "-",
        text="; ".join(filter(None, parts)),
    )


def _hanging(one: OpDifference, origins: Sequence[Origin]) -> list[Origin]:
    """The origins that have such a difference among the operations that made them."""
    return [origin for origin in origins if any(_alike_to(one, d) for d in origin.differences)]


def _alike_to(one: OpDifference, two: OpDifference) -> bool:
    return (one.stage, one.arguments, one.only_a, one.only_b) == (
        *(two.stage, two.arguments, two.only_a, two.only_b),
    )


def _values(one: OpDifference, origins: Sequence[Origin]) -> list[str]:
    """The clause on the first origin that these operations made: how far its records are apart."""
    for origin in _hanging(one, origins):
        name, error = escape(join(origin.place.name, origin.place.kind)), origin.measure.error_eps
        size = f" by {figure(error)} eps" if math.isfinite(error) else ""
        return [f"{name} differs{size}"]
    return []


def _bits(one: OpDifference) -> str:
    if one.outputs_equal is None:
        return ""
    if one.outputs_equal:
        return "the same bits come out"
    given = {True: "equal bits go in, ", False: "other bits go in already, ", None: ""}
    return f"{given[one.inputs_equal]}other bits come out"


def _made_of(one: OpDifference) -> str:
    return f"decomposed from {escape(one.decomposed_from)}" if one.decomposed_from else ""


def _lines(one: OpDifference) -> str:
    return " | ".join(dict.fromkeys(escape(line) for line in one.where if line))


def _alike(one: OpDifference) -> str:
    if not one.like_it:
        return ""
    names = ", ".join(escape(name) or OUTSIDE for name in one.like_it[:MODULES])
    return f"+{len(one.like_it):,} like it: {names}{', ...' * (len(one.like_it) > MODULES)}"
