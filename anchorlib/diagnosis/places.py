"""Where records stand, and the pairs of two runs one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlib.diagnosis.alignment import Alignment
from anchorlib.diagnosis.measures import Measure, Measures
from anchorlib.diagnosis.table import Table

__all__ = ["Pair", "Place", "pairs_of", "place_at"]

Array = np.ndarray[Any, Any]
CHUNK = 4096
"""Pairs whose columns are turned into Python's numbers at a time."""


@dataclass(frozen=True, slots=True)
class Place:
    """A record by its coordinates, as A counts them."""

    step: int
    pass_index: int
    call: int
    rank: int
    phase: str
    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class Pair:
    """One matched pair, for tables and pages.

    order_b: where B has it. measure: None where the pair is equal. role: "" for equal pairs,
    "origin", "receiver", or the class of an origin. score: against the noise runs, else None.
    """

    place: Place
    order: int
    order_b: int
    equal: bool
    digest_a: str
    digest_b: str
    measure: Measure | None
    role: str
    score: float | None


def place_at(table: Table, row: int) -> Place:
    """The coordinates of one record of a table."""
    tensor = table.tensors[table.tensor[row]]
    return Place(
        step=int(table.step[row]),
        pass_index=int(table.pass_index[row]),
        call=int(table.call[row]),
        rank=tensor.rank,
        phase=table.phases[table.phase[row]],
        name=tensor.name,
        kind=tensor.kind,
    )


def pairs_of(
    alignment: Alignment, measures: Measures, *, scores: Array | None, roles: Array | None
) -> Iterator[Pair]:
    """Every pair in A's order of execution.

    scores: one for each measure. roles: one for each pair.
    """
    for start in range(0, len(alignment), CHUNK):
        yield from _some(alignment, measures, scores, roles, slice(start, start + CHUNK))


def _some(
    alignment: Alignment,
    measures: Measures,
    scores: Array | None,
    roles: Array | None,
    part: slice,
) -> Iterator[Pair]:
    one, two = alignment.a_row[part], alignment.b_row[part]
    pairs = np.arange(len(alignment))[part]
    first, last = np.searchsorted(measures.pair, [pairs[0], pairs[-1] + 1])
    columns = zip(*(measures[name][first:last].tolist() for name in Measure._fields), strict=True)
    measured = dict(
        zip(measures.pair[first:last].tolist(), (Measure(*row) for row in columns), strict=True)
    )
    told = [None] * (last - first) if scores is None else scores[first:last].tolist()
    scored = dict(zip(measured, told, strict=True))
    rows = zip(
        pairs.tolist(),
        _places(alignment.a, one),
        alignment.a.order[one].tolist(),
        alignment.b.order[two].tolist(),
        alignment.equal[part].tolist(),
        _digests(alignment.a, one),
        _digests(alignment.b, two),
        [""] * len(pairs) if roles is None else roles[part].tolist(),
        strict=True,
    )
    for number, place, order, order_b, equal, digest_a, digest_b, role in rows:
        score = scored.get(number)
        yield Pair(
            place=place,
            order=order,
            order_b=order_b,
            equal=equal,
            digest_a=digest_a,
            digest_b=digest_b,
            measure=measured.get(number),
            role=role,
            score=None if score is None or score != score else score,
        )


def _places(table: Table, rows: Array) -> Iterator[Place]:
    columns = (table.step, table.pass_index, table.call, table.phase, table.tensor)
    for step, pass_index, call, phase, tensor in zip(
        *(column[rows].tolist() for column in columns), strict=True
    ):
        own = table.tensors[tensor]
        yield Place(step, pass_index, call, own.rank, table.phases[phase], own.name, own.kind)


def _digests(table: Table, rows: Array) -> Iterator[str]:
    for high, low in table.digest[rows].tolist():
        yield f"{high:016x}{low:016x}"
