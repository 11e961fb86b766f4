"""Indices and targets among the arguments of operations, in words.

    IndexAddBackward0 index dst | src               records of the step with the same elements
    … index (160 from 0 to 47, 1f0c9a2b), as in B's Gather | (160 from 0 to 47, 72ab90c1)
    the loss's target differs: 32 of mean 0.343, std 1.1 | 32 of mean 0.672, std 1.2

A statement (`anchorlib.record.Edges`) describes an index by its number of elements, its bounds and
the first digits of its digest. By these, a record with equal elements is found, and an operation
that reads by this index.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from anchorlib.diagnosis.judgement.changes.operations import Operation, plainly
from anchorlib.diagnosis.pairing import Table
from anchorlib.names import escape

__all__ = [
    "LOSS",
    "exchanged",
    "other_targets",
    "reads_another_index",
    "said_by_names",
    "without_data",
    "without_order",
    "without_targets",
]

INDEX = re.compile(r"\((\d+) from -?\d+ to -?\d+, ([0-9a-f]{8})\)")
ORDERED = re.compile(r", first [^,()]+(?=\))|(?<=\d), [0-9a-f]{8}(?=\))")
TARGET = re.compile(r"(?:, )?\btarget=(\([^()]*\)|tensor\([^()]*\)|[^,()]+)")
DATA = re.compile(
    r"(?:, )?\b\w+=(?:\(+\d+ (?:from|of) [^)]*\)+|\d+ of \d+[^()]*\([^)]*\)|tensor\([^)]*\))"
)
"""Arguments that come with the data: indices, masks, factors, numbers in tensors."""
LOSS = re.compile(r"Loss\w*Backward|^BinaryCrossEntropy")

RowOperations = tuple[Table, int, Sequence[Operation]]
"""A run, a row of it, and the operations that made the row."""


def said_by_names(clause: str, sides: tuple[RowOperations, RowOperations]) -> str:
    """Return the clause "A's argument | B's argument" with names in place of described indices.

    A described index, "(160 from 0 to 47, 1f0c9a2b)", becomes the name of a record that holds it.
    The clause stays as it is where it has no two sides, or both would become alike.
    sides: for A and for B, the table, the row, and the operations that made the row.
    """
    texts = clause.split(" | ")
    if len(texts) != 2:
        return clause
    text_a = INDEX.sub(lambda match: _named(match, *sides, "B"), texts[0])
    text_b = INDEX.sub(lambda match: _named(match, *sides[::-1], "A"), texts[1])
    named = [text_a, text_b]
    return " | ".join(named if named[0].split()[-1:] != named[1].split()[-1:] else texts)


def _named(match: re.Match[str], own: RowOperations, other: RowOperations, run: str) -> str:
    """Return words for an index that an argument describes.

    They are the name of a record that holds the index, or else the description with the operation
    of the other run that reads the index, or else the description alone.
    match: the description. own, other: the run that states the index, and the other run. run: the
    other run's letter.
    """
    if name := _record(match, *own[:2]):
        return name
    reads = next((op.name for op in other[2] if match[0] in op.arguments), "")
    return f"{match[0]}, as in {run}'s {plainly(reads)}" if reads else match[0]


def _record(match: re.Match[str], table: Table, row: int) -> str:
    """Return the name of a record of the row's step that holds an index; "" where none does."""
    before = (table.step == table.step[row]) & (table.order <= table.order[row])
    rows = np.flatnonzero(before & (table.rank == table.tensors[table.tensor[row]].rank))
    first = table.digest[rows, 0].astype(np.uint64) >> np.uint64(32)
    of_index = (first == int(match[2], 16)) & (table.figures["numel"][rows] == int(match[1]))
    names = [table.tensors[number].name for number in table.tensor[rows[of_index]].tolist()]
    return escape(names[0]) if names else ""


def exchanged(a: Sequence[Operation], b: Sequence[Operation]) -> bool:
    """Return whether two operations have exchanged index tensors, as far as the runs state them.

    That is so where both runs have the same operations, and the indices that one run uses are all
    used by the other run too, but not by the same operations. Only code makes such a difference,
    never data. a, b: the operations that made a record in A, and in B.
    """
    sides = [[INDEX.findall(op.arguments) for op in ops] for ops in (a, b)]
    if [op.name for op in a] != [op.name for op in b] or sides[0] == sides[1]:
        return False
    indices_a, indices_b = ({index for indices in side for index in indices} for side in sides)
    return indices_a <= indices_b or indices_b <= indices_a


def reads_another_index(a: Sequence[Operation], b: Sequence[Operation]) -> bool:
    """Return whether the operations of two runs are equal but for the contents of index tensors.

    Index tensors that differ must have equally many elements. False also where operations have
    exchanged their index tensors (`exchanged`), which only code does.
    a, b: the operations that made a record in A, and in B.
    """
    plain = [[(op.name, INDEX.sub("", op.arguments)) for op in ops] for ops in (a, b)]
    counts = [[one[0] for op in ops for one in INDEX.findall(op.arguments)] for ops in (a, b)]
    digests = [[one[1] for op in ops for one in INDEX.findall(op.arguments)] for ops in (a, b)]
    alike = plain[0] == plain[1] and counts[0] == counts[1]
    return alike and digests[0] != digests[1] and not exchanged(a, b)


def other_targets(a: Sequence[Operation], b: Sequence[Operation]) -> Iterator[str]:
    """Yield a clause for each loss whose target, as both runs' arguments state it, differs.

    Nothing is yielded where one run has more losses: they may be parts of the other run's losses.
    """
    losses = _losses(a), _losses(b)
    if len(losses[0]) != len(losses[1]):
        return
    for loss_a, loss_b in zip(*losses, strict=True):
        targets = [TARGET.search(op.arguments) for op in (loss_a, loss_b)]
        if (
            loss_a.name == loss_b.name
            and targets[0]
            and targets[1]
            and targets[0][1] != targets[1][1]
        ):
            sides = " | ".join(
                text[1].removeprefix("(").removesuffix(")") for text in targets if text
            )
            yield f"the loss's target differs: {sides}"


def without_targets(ops: Sequence[Operation]) -> tuple[Operation, ...]:
    """Return all operations; from the arguments of each loss, the target is removed."""
    return tuple(
        op._replace(arguments=TARGET.sub("", op.arguments).removeprefix(", "))
        if LOSS.search(op.name)
        else op
        for op in ops
    )


def without_order(ops: Sequence[Operation]) -> tuple[Operation, ...]:
    """Return all operations; their arguments do not say what depends on the order of elements.

    This is the digest of integers, and the first element of other tensors. Number, bounds, mean and
    spread stay.
    """
    return tuple(op._replace(arguments=ORDERED.sub("", op.arguments)) for op in ops)


def without_data(ops: Sequence[Operation]) -> tuple[Operation, ...]:
    """Return all operations, without the arguments that come with data: indices, masks, tensors."""
    return tuple(op._replace(arguments=DATA.sub("", op.arguments).removeprefix(", ")) for op in ops)


def _losses(ops: Sequence[Operation]) -> list[Operation]:
    return [op for op in ops if LOSS.search(op.name)]
