"""Rows of an input that the runs take from different passes of an earlier step.

    x = buffer[chosen]                                    samples of the step before among them
    for _ in range(20): x += step * gradient(model(x))
    buffer[chosen] = x                                    which one run leaves out

A sampler that goes on from earlier samples gives its model rows that the model was given before. If
A's rows are what an earlier step made in the end, and B's what it began with, at the same places,
then the program keeps other samples. Such rows are no data from outside.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import EQUAL, Frontier
from anchorlib.diagnosis.judgement.series import values
from anchorlib.diagnosis.pairing import Table, row_digests
from anchorlib.errors import StoreError
from anchorlib.names import escape

__all__ = ["taken_from_other_passes"]

Array = np.ndarray[Any, Any]
MOST = 64  # earlier records that are read
MOST_ELEMENTS = 1 << 20
ALIKE = 0.5
"""The least cosine of rows that a sampler has moved. Rows of other samples have one near zero."""
LEAST = 2  # rows that have to differ: one alone may be another sample by chance


def taken_from_other_passes(frontier: Frontier, row: int) -> str:
    """Say from which pass of an earlier step each run takes the rows in which an input differs.

    "" unless each of these rows, LEAST at least, is in both runs a row of a value of an earlier
    step, of one step and at one place but in two records; these records are equal in both runs, and
    what they hold at that place is related, as a sample is that a sampler has moved.
    row: A's row of the input.
    """
    alignment = frontier.alignment
    a, partner = alignment.a, int(alignment.b_row[np.searchsorted(alignment.a_row, row)])
    shape = a.shapes[a.shape[row]]
    of_samples = len(shape) > 1 and a.figures["numel"][row] <= MOST_ELEMENTS
    if not of_samples or alignment.b.shapes[alignment.b.shape[partner]] != shape:
        return ""
    try:
        sides = row_digests(a, row, 0), row_digests(alignment.b, partner, 0)
        apart = [both for both in zip(*sides, strict=True) if both[0] != both[1]]
        if len({one for one, _ in apart}) < LEAST:
            return ""
        return _clause(a, _places(frontier, row), apart)
    except StoreError:
        return ""


def _places(frontier: Frontier, row: int) -> dict[bytes, list[tuple[int, int]]]:
    """Return where values of earlier steps hold a row: its digest -> (record, place) of each.

    Only values are read that are equal in both runs and have rows as the input's. A record is given
    by its row in A's table.
    """
    a = frontier.alignment.a
    width = a.shapes[a.shape[row]][1:]
    alike = np.array([len(shape) > 1 and shape[1:] == width for shape in a.shapes], bool)
    which = alike[a.shape] & (a.dtype == a.dtype[row]) & a.of_kind("value") & (a.kept > 0)
    which &= (a.rank == a.rank[row]) & (a.attempt == a.attempt[row]) & (a.step < a.step[row])
    which &= (frontier.status == EQUAL) & (a.figures["numel"] <= MOST_ELEMENTS)
    earlier = np.flatnonzero(which)
    places: defaultdict[bytes, list[tuple[int, int]]] = defaultdict(list)
    for other in earlier[np.argsort(a.order[earlier])][-MOST:].tolist():
        for place, digest in enumerate(row_digests(a, other, 0)):
            places[digest].append((other, place))
    return places


def _clause(
    a: Table, places: dict[bytes, list[tuple[int, int]]], apart: list[tuple[bytes, bytes]]
) -> str:
    """Return the clause for the rows that differ, given by their digests in A and in B; or ""."""
    taken: list[tuple[int, int, int]] = []
    for mine, other in apart:
        both = [
            (one, two, place)
            for one, place in places.get(mine, ())
            for two, place_b in places.get(other, ())
            if place == place_b and one != two and a.step[one] == a.step[two]
        ]
        if not both:
            return ""
        taken.append(both[-1])
    if not _related(a, taken):
        return ""
    sources = [
        " and ".join(dict.fromkeys(_source(a, both[side]) for both in taken)) for side in (0, 1)
    ]
    return f"{len(apart)} of its rows are those of {sources[0]} in A, of {sources[1]} in B"


def _source(a: Table, row: int) -> str:
    """Return the name, step and pass of a value."""
    name = escape(a.tensors[a.tensor[row]].name)
    return f"{name} at step {int(a.step[row])}, pass {int(a.pass_index[row])}"


def _related(a: Table, taken: list[tuple[int, int, int]]) -> bool:
    """Return whether two records hold related rows at their places, by the cosine of all rows.

    What the rows have in common, as the background of images, is taken off first.
    taken: for each row, two records of A and the place in them.
    """
    held = {record: _rows_of(a, record) for both in taken for record in both[:2]}
    known = {record: rows for record, rows in held.items() if rows is not None}
    if len(known) < len(held):
        return False
    left, right = (np.array([known[both[side]][both[2]] for both in taken]) for side in (0, 1))
    left, right = left - left.mean(axis=0), right - right.mean(axis=0)
    size = float(np.linalg.norm(left) * np.linalg.norm(right))
    return size > 0 and float((left * right).sum()) >= ALIKE * size


def _rows_of(a: Table, record: int) -> Array | None:
    """Return a record's rows, each flat; None where its values are not known."""
    held = values(a, record)
    return None if held is None else held.reshape(a.shapes[a.shape[record]][0], -1)
