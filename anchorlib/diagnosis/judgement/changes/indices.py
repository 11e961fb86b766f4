"""Indices and targets among the arguments of operations, in words.

    IndexAddBackward0 index dst | src               records of the step with the same elements
    … index (160 from 0 to 47, 1f0c9a2b), as in B's Gather | (160 from 0 to 47, 72ab90c1)
    the loss's target differs: 32 of mean 0.343, std 1.1 | 32 of mean 0.672, std 1.2

A statement holds an index as its number of elements, its bounds and the first digits of its digest,
by which a record of the same elements is found, and an operation that reads by the same index.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from anchorlib.diagnosis.judgement.changes.operations import Operation, plainly
from anchorlib.diagnosis.pairing import Table
from anchorlib.names import escape

__all__ = ["exchanged", "other_targets", "said_by_names", "without_data", "without_targets"]

INDEX = re.compile(r"\((\d+) from -?\d+ to -?\d+, ([0-9a-f]{8})\)")
TARGET = re.compile(r"(?:, )?\btarget=(\([^()]*\)|tensor\([^()]*\)|[^,()]+)")
DATA = re.compile(
    r"(?:, )?\b\w+=(?:\(+\d+ (?:from|of) [^)]*\)+|\d+ of \d+[^()]*\([^)]*\)|tensor\([^)]*\))"
)
"""Arguments that come with the data: indices, masks, factors, numbers in tensors."""
LOSS = re.compile(r"Loss\w*Backward|^BinaryCrossEntropy")

Side = tuple[Table, int, Sequence[Operation]]
"""A run, a row of it, and the operations that made the row."""


def said_by_names(clause: str, sides: tuple[Side, Side]) -> str:
    """A clause about arguments, "of A | of B", in which indices are called by names."""
    texts = clause.split(" | ")
    if len(texts) != 2:
        return clause
    one = INDEX.sub(lambda found: _named(found, *sides, "B"), texts[0])
    two = INDEX.sub(lambda found: _named(found, *sides[::-1], "A"), texts[1])
    named = [one, two]
    return " | ".join(named if named[0].split()[-1:] != named[1].split()[-1:] else texts)


def _named(found: re.Match[str], own: Side, other: Side, run: str) -> str:
    """An index by the record that holds it, or with the operation that reads by it elsewhere.

    run: the letter of the other run.
    """
    if name := _record(found, *own[:2]):
        return name
    reads = next((op.name for op in other[2] if found[0] in op.arguments), "")
    return f"{found[0]}, as in {run}'s {plainly(reads)}" if reads else found[0]


def _record(found: re.Match[str], table: Table, row: int) -> str:
    """The name of a record of the row's step that holds an index; "" where none does."""
    rows = np.flatnonzero((table.step == table.step[row]) & (table.order <= table.order[row]))
    first = table.digest[rows, 0].astype(np.uint64) >> np.uint64(32)
    same = (first == int(found[2], 16)) & (table.figures["numel"][rows] == int(found[1]))
    names = [table.tensors[one].name for one in table.tensor[rows[same]].tolist()]
    return escape(names[0]) if names else ""


def exchanged(a: Sequence[Operation], b: Sequence[Operation]) -> bool:
    """Whether one run reads or adds at an index at which the other reads or adds elsewhere.

    Both have the same indices, and some operation takes another of them: code does that, no data.
    """
    sides = [[INDEX.findall(op.arguments) for op in ops] for ops in (a, b)]
    if [op.name for op in a] != [op.name for op in b] or sides[0] == sides[1]:
        return False
    one, two = ({index for indices in side for index in indices} for side in sides)
    return one <= two or two <= one


def other_targets(a: Sequence[Operation], b: Sequence[Operation]) -> Iterator[str]:
    """How the targets of losses differ that both runs state, a clause each."""
    for one, two in zip(_losses(a), _losses(b), strict=False):
        told = [TARGET.search(op.arguments) for op in (one, two)]
        if one.name == two.name and told[0] and told[1] and told[0][1] != told[1][1]:
            sides = " | ".join(text[1].removeprefix("(").removesuffix(")") for text in told if text)
            yield f"the loss's target differs: {sides}"


def without_targets(ops: Sequence[Operation]) -> tuple[Operation, ...]:
    """The operations without the targets of losses among their arguments."""
    return tuple(
        op._replace(arguments=TARGET.sub("", op.arguments).removeprefix(", "))
        if LOSS.search(op.name)
        else op
        for op in ops
    )


def without_data(ops: Sequence[Operation]) -> tuple[Operation, ...]:
    """The operations without the arguments that may come with the data."""
    return tuple(op._replace(arguments=DATA.sub("", op.arguments).removeprefix(", ")) for op in ops)


def _losses(ops: Sequence[Operation]) -> list[Operation]:
    return [op for op in ops if LOSS.search(op.name)]
