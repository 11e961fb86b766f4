"""Two runs that both split their work, each merged until both are split alike.

Two passes on each of two ranks do the same work as four ranks of one pass, and neither run holds
records of the whole. Each run is merged to a split that both can be brought to; the shape of a
merged record follows from the parts of both runs. Shapes alone do not prove that both runs had the
same samples: the rows of the parts have to be equal too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from anchorlib.diagnosis.pairing.splits.groups import Key, members, parameters_of
from anchorlib.diagnosis.pairing.splits.merging import Merged, merged
from anchorlib.diagnosis.pairing.splits.splits import Split, all_passes, meetings
from anchorlib.diagnosis.pairing.tables import Table, row_digests
from anchorlib.errors import StoreError

__all__ = ["met", "redealt"]

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
LOOKED_AT = 4  # records of which one has to have equal rows in both runs
FEW = 2  # samples: so few any two runs may have in common


class Meeting(NamedTuple):
    """Two tables that are split alike, and what was merged in each run to make them so."""

    a: Table
    b: Table
    merged: tuple[Merged, Merged]


class _Whole(NamedTuple):
    """One merged record of the split to which both runs are brought.

    rows: the rows of its parts in A, and in B. shape: the merged record's shape.
    axis: the axis along which the parts are concatenated; None where they are not.
    """

    rows: tuple[Sequence[int], Sequence[int]]
    shape: Shape
    axis: int | None


def met(
    a: Table, b: Table, to_b: Mapping[str, str], offset: int, without: Collection[str] = ()
) -> Meeting | None:
    """Return both runs merged to a common split; None if no split shows that samples are equal.

    to_b: A's names -> B's, where they differ. offset: what to add to A's steps to get B's.
    without: phases whose passes are not counted.
    """
    for both in meetings(a, b, without):
        if meeting := _brought_together((a, b), both, to_b, offset):
            return meeting
    return None


def redealt(
    a: Table, b: Table, pairs: tuple[Array, Array, Array], to_b: Mapping[str, str], offset: int
) -> Meeting | None:
    """Return both runs with the passes of each step merged into one, if B deals samples otherwise.

    B deals them otherwise where both runs split a step into as many passes, and the step has the
    same samples in both runs, but some pass has other samples in B than in A: as where a batch is
    turned round before it is cut into micro-batches. Else None is returned. Only the passes of the
    phase where this shows, and of phases with as many passes, are merged.
    pairs: for each pair of records: the row in A, the row in B, and whether the two are equal.
    to_b: A's names -> B's, where they differ. offset: what to add to A's steps to get B's.
    """
    phase = _phase_dealt_otherwise(a, b, *pairs)
    both = None if phase is None else all_passes(a, b, phase)
    meeting = None if both is None else _brought_together((a, b), both, to_b, offset)
    if meeting is None:
        return None
    first, second = (replace(one, redealt=True) for one in meeting.merged)
    return meeting._replace(merged=(first, second))


def _brought_together(
    tables: tuple[Table, Table], both: tuple[Split, Split], to_b: Mapping[str, str], offset: int
) -> Meeting | None:
    """Return A and B, each merged by its split; None unless merged records show equal samples.

    both: the split of A and the split of B.
    """
    a, b = tables
    split_a, split_b = both
    wholes = _wholes(tables, both, to_b, offset)
    if not _same_samples(a, b, wholes):
        return None
    first = merged(a, _outline(a, split_a, wholes), split_a, {}, 0, (1 / split_a.together,))
    if first is None:
        return None
    # Relative to the mean over A's ranks: B's own means, over A's sums or means of parts.
    factors = sorted({x / (y * split_a.together) for x in split_b.factors for y in split_a.factors})
    to_a = {name_b: name_a for name_a, name_b in to_b.items()}
    second = merged(b, first[0], split_b, to_a, -offset, factors)
    return None if second is None else Meeting(first[0], second[0], (first[1], second[1]))


def _phase_dealt_otherwise(
    a: Table, b: Table, rows_a: Array, rows_b: Array, equal: Array
) -> str | None:
    """Return the phase of a value whose samples are in other passes in B; None without any.

    The first LOOKED_AT values that differ are read, of the first step that differs. The passes of
    such a value hold the same samples (slices along the first axis) in both runs, taken together;
    but at least one pass holds other samples in B than in A.
    rows_a, rows_b, equal: for each pair its rows, and whether these are equal.
    """
    if not a.pass_index.any():
        return None  # one pass a step holds all samples
    parameters = parameters_of(a)
    values = a.where(lambda one: one.kind == "value" and one.name not in parameters)[rows_a]
    values &= a.figures["min"][rows_a] < a.figures["max"][rows_a]
    values &= (a.kept[rows_a] > 0) & (b.kept[rows_b] > 0)
    differing = np.flatnonzero(values & ~equal)
    if not len(differing):
        return None
    step = a.step[rows_a[differing]].min()
    here = np.flatnonzero(values & (a.step[rows_a] == step))
    own_rows = rows_a[here]
    coordinates = np.stack([a.tensor[own_rows], a.call[own_rows], a.phase[own_rows]], axis=1)
    _, which, count = np.unique(coordinates, axis=0, return_inverse=True, return_counts=True)
    which = which.reshape(-1)
    split = np.flatnonzero((count[which] > 1) & ~equal[here])
    split = split[np.argsort(a.order[own_rows[split]], kind="stable")]
    _, firsts = np.unique(which[split], return_index=True)
    for at in split[np.sort(firsts)][:LOOKED_AT].tolist():
        own = here[which == which[at]].tolist()
        parts = [
            [sorted(_rows(table, [int(rows[one])], 0)) for one in own]
            for table, rows in ((a, rows_a), (b, rows_b))
        ]
        wholes = [sorted(row for part in side for row in part) for side in parts]
        if wholes[0] == wholes[1] and parts[0] != parts[1] and len(set(wholes[0])) > FEW:
            return a.phases[int(a.phase[own_rows[at]])]
    return None


def _wholes(
    tables: tuple[Table, Table], splits: tuple[Split, Split], to_b: Mapping[str, str], offset: int
) -> list[_Whole]:
    """Return the merged records of which both runs have parts whose shapes fit.

    to_b: A's names -> B's, where they differ. offset: what to add to A's steps to get B's.
    """
    a, b = tables
    parameters = parameters_of(a)
    others: dict[Key, list[int]] = {
        key[:-1]: rows for key, rows in members(b, splits[1], {}, 0).items()
    }
    wholes = []
    for key, rows in members(a, splits[0], to_b, offset).items():
        partners = others.get(key[:-1])
        if partners is None:
            continue
        tensor = a.tensors[a.tensor[rows[0]]]
        alike = tensor.kind == "pass_grad" or tensor.name in parameters
        whole = _whole(tables, (rows, partners), alike=alike)
        if whole is not None:
            wholes.append(whole)
    return wholes


def _whole(
    tables: tuple[Table, Table], rows: tuple[list[int], list[int]], *, alike: bool
) -> _Whole | None:
    """Return the merged record of which these rows are parts; None where shapes do not fit.

    rows: the rows of its parts in A, and in B.
    alike: whether parts that all have one shape make up a record of that shape, as the parts of a
    parameter do; else they may also be concatenated.
    """
    shapes = [
        [table.shapes[code] for code in table.shape[own].tolist()]
        for table, own in zip(tables, rows, strict=True)
    ]
    first = shapes[0][0]
    if any(len(shape) != len(first) for side in shapes for shape in side):
        return None
    sizes = [np.array(side, np.int64).reshape(len(side), len(first)) for side in shapes]
    every = np.concatenate(sizes)
    axes = np.flatnonzero((every != every[0]).any(axis=0)).tolist()
    if not axes:
        axes = [] if alike or _same_parts(tables[0], rows, first) else [0]
    if not axes:
        return _Whole(rows, first, None)
    totals = [side[:, axes[0]].sum() for side in sizes]
    if len(axes) > 1 or totals[0] != totals[1]:
        return None
    shape = (*first[: axes[0]], int(totals[0]), *first[axes[0] + 1 :])
    return _Whole(rows, shape, axes[0])


def _same_parts(a: Table, rows: tuple[list[int], list[int]], shape: Shape) -> bool:
    """Return whether parts of equal shapes may make up a whole record that has this shape too.

    The parts may be summands where A has another number of parts than B, and where the record is a
    single number. They may be replicas where all of A's parts have equal bits.
    rows: the rows of the parts in A, and in B. shape: the shape of each part.
    """
    if len(rows[0]) != len(rows[1]) or int(np.prod(shape)) == 1:
        return True
    return bool((a.digest[rows[0]] == a.digest[rows[0][0]]).all())


def _outline(a: Table, split: Split, wholes: Iterable[_Whole]) -> Table:
    """Return a table of the merged records of A: shapes, coordinates and sums, without values."""
    records = list(wholes)
    first = np.array([record.rows[0][0] for record in records], np.int64)
    shapes = {shape: number for number, shape in enumerate(dict.fromkeys(w.shape for w in records))}
    tensors = [tensor._replace(rank=split.ranks[tensor.rank]) for tensor in a.tensors]
    known = {one: number for number, one in enumerate(dict.fromkeys(tensors))}
    figures = {name: column[first] for name, column in a.figures.items()}
    figures["sum"] = np.array(
        [a.figures["sum"][list(record.rows[0])].sum() / split.together for record in records]
    )
    columns = ("step", "call", "attempt", "order", "count", "scale", "dtype", "phase")
    passes = [split.pass_of(a.phases[a.phase[row]], int(a.pass_index[row])) for row in first]
    # A record of the outline has its first part's digest, by which parts are known for replicas.
    # Gradients of one number are summands even where all are equal: each part has its own loss.
    values = a.where(lambda one: one.kind == "value")[first]
    digests = np.where(values[:, None], a.digest[first], np.zeros_like(a.digest[first]))
    return replace(
        a,
        tensors=list(known),
        shapes=list(shapes),
        tensor=np.array([known[tensors[code]] for code in a.tensor[first].tolist()], np.int64),
        shape=np.array([shapes[record.shape] for record in records], np.int64),
        pass_index=np.array(passes, np.int64),
        kept=np.zeros(len(first), a.kept.dtype),
        figures=figures,
        digest=digests,
        flags=None,
        **{name: getattr(a, name)[first] for name in columns},
    )


def _same_samples(a: Table, b: Table, wholes: Iterable[_Whole]) -> bool:
    """Return whether one of the first concatenated values has equal samples in both runs.

    Samples are slices along the axis of concatenation, compared by digests, in any order. At most
    LOOKED_AT values are read.
    """
    some = [
        record for record in wholes if record.axis is not None and _is_distinctive(a, b, record)
    ]
    for record in sorted(some, key=lambda record: int(a.order[record.rows[0][0]]))[:LOOKED_AT]:
        rows = [
            sorted(_rows(table, own, record.axis or 0))
            for table, own in zip((a, b), record.rows, strict=True)
        ]
        if rows[0] == rows[1] and len(set(rows[0])) > FEW:
            return True
    return False


def _is_distinctive(a: Table, b: Table, whole: _Whole) -> bool:
    """Return whether a merged record can show that samples are equal.

    It can if it is a value that is no constant, and the values of all its parts are stored.
    """
    row = whole.rows[0][0]
    kept = all(
        bool(table.kept[list(own)].all()) for table, own in zip((a, b), whole.rows, strict=True)
    )
    constant = a.figures["min"][row] == a.figures["max"][row]
    return kept and not constant and a.tensors[a.tensor[row]].kind == "value"


def _rows(table: Table, own: Sequence[int], axis: int) -> Iterator[bytes]:
    for row in own:
        try:
            yield from row_digests(table, row, axis)
        except StoreError:
            return
