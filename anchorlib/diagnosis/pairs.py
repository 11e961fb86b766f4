"""The pairs of matched records of two runs, as tuples or as columns, for tables and pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from anchorlib.diagnosis.pairing import Alignment, RecordPlace, Table
from anchorlib.diagnosis.sizes import Measure, Measures

__all__ = ["Pair", "columns_of", "pairs_of"]

Array = np.ndarray[Any, Any]
CHUNK = 4096
"""Pairs whose columns are turned into Python's numbers at a time."""


class Pair(NamedTuple):
    """One pair of matched records of two runs.

    place: the name, kind and coordinates of the record in A.
    order, order_b: the places of A's record and of B's in the orders of execution of their ranks.
    equal: whether dtype, shape and bits are equal. digest_a, digest_b: the digests as hex.
    measure: how far apart the two are; None where they are equal.
    role: "" for an equal pair; "receiver" where a record differs because an earlier one does. A
        pair that no earlier difference explains is an origin: it has the origin's class (`cls`) if
        the answer lists it, else "origin".
    score: the pair's error over the error of the noise runs; None where there is no score.
    """

    place: RecordPlace
    order: int
    order_b: int
    equal: bool
    digest_a: str
    digest_b: str
    measure: Measure | None
    role: str
    score: float | None


def pairs_of(
    alignment: Alignment, measures: Measures, *, scores: Array | None, roles: Array | None
) -> Iterator[Pair]:
    """Yield every pair of matched records, in A's order of execution.

    measures: how far the pairs that differ are apart.
    scores: for each entry of `measures`, the pair's error over that of the noise runs, nan where
    there is none; None without noise runs.
    roles: `Pair.role` of each pair of the alignment; None: "" for all.
    """
    for part in columns_of(alignment, measures, scores=scores, roles=roles):
        places = map(RecordPlace, *(part[name] for name in RecordPlace._fields))
        kept = map(_measure, zip(*(part[name] for name in Measure._fields), strict=True))
        rest = (part[name] for name in ("order", "order_b", "equal", "digest_a", "digest_b"))
        yield from map(Pair, places, *rest, kept, part["role"], part["score"])


def columns_of(
    alignment: Alignment, measures: Measures, *, scores: Array | None, roles: Array | None
) -> Iterator[dict[str, list[Any]]]:
    """Yield the pairs as columns (name -> list), CHUNK pairs at a time.

    The columns are the fields of `RecordPlace`, `Pair` (without `place` and `measure`) and
    `Measure`. An equal pair has None for its measures and its score; a pair that differs has None
    for a score of nan.
    measures: how far the pairs that differ are apart.
    scores: for each entry of `measures`, the pair's error over that of the noise runs, nan where
    there is none; None without noise runs.
    roles: `Pair.role` of each pair of the alignment; None: "" for all.
    """
    for start in range(0, len(alignment), CHUNK):
        part = slice(start, start + CHUNK)
        rows_a, rows_b = alignment.a_row[part], alignment.b_row[part]
        pairs = np.arange(start, start + len(rows_a))
        first, last = np.searchsorted(measures.pair, [start, start + len(rows_a)])
        at = measures.pair[first:last] - start
        scores_of_part = np.full(last - first, np.nan) if scores is None else scores[first:last]
        judged = np.flatnonzero(~np.isnan(scores_of_part))
        yield {
            **_places(alignment.a, rows_a),
            "order": alignment.a.order[rows_a].tolist(),
            "order_b": alignment.b.order[rows_b].tolist(),
            "equal": alignment.equal[part].tolist(),
            "digest_a": _digests(alignment.a, rows_a),
            "digest_b": _digests(alignment.b, rows_b),
            "role": [""] * len(rows_a) if roles is None else roles[pairs].tolist(),
            "score": _spread(len(rows_a), at[judged], scores_of_part[judged]),
            **{n: _spread(len(rows_a), at, measures[n][first:last]) for n in Measure._fields},
        }


def _spread(count: int, places: Array, values: Array) -> list[Any]:
    """Return a list of `count` items: `values[i]` at index `places[i]`, None everywhere else."""
    entries: list[Any] = [None] * count
    for place, value in zip(places.tolist(), values.tolist(), strict=True):
        entries[place] = value
    return entries


def _measure(values: tuple[Any, ...]) -> Measure | None:
    return None if values[0] is None else Measure(*values)


def _places(table: Table, rows: Array) -> dict[str, list[Any]]:
    tensors = [table.tensors[number] for number in table.tensor[rows].tolist()]
    return {
        "step": table.step[rows].tolist(),
        "pass_index": table.pass_index[rows].tolist(),
        "call": table.call[rows].tolist(),
        "rank": [tensor.rank for tensor in tensors],
        "phase": [table.phases[number] for number in table.phase[rows].tolist()],
        "name": [tensor.name for tensor in tensors],
        "kind": [tensor.kind for tensor in tensors],
    }


def _digests(table: Table, rows: Array) -> list[str]:
    text = table.digest[rows].astype(">u8").tobytes().hex()
    return [text[start : start + 32] for start in range(0, len(text), 32)]
