"""The identity of a record, by which it finds its partner in the other run: a key for each row."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from anchorlib.diagnosis.pairing.identity.eval_mode import modes
from anchorlib.diagnosis.pairing.identity.keys import occurrences, packed
from anchorlib.diagnosis.pairing.tables import Table

__all__ = ["Identities", "repeats", "same_bits", "series_codes", "shared_codes"]

Array = np.ndarray[Any, Any]
PLACE = ("step", "pass_index", "call")


class Identities:
    """The keys of the rows of two tables; within a table each key occurs once.

    row_a, row_b: the rows that have a key, ascending. Where a run holds one observation in two
        modes, only one of the two records has a key: a record with values, if there is one.
    key_a, key_b: the keys of these rows.
    eval_since: for A and for B, the step, in that run's own count, from which the run was in eval
        mode while the other run trained; None where it never was.
    """

    def __init__(self, a: Table, b: Table, to_b: Mapping[str, str], offset: int) -> None:
        series_a, series_b = series_codes(a, b, to_b)
        phase_a, phase_b = shared_codes(a.phases, b.phases)
        paired_modes = modes((a, b), (series_a, series_b), (phase_a, phase_b), offset)
        self.eval_since = paired_modes.since
        rows_a, rows_b = paired_modes.phases
        pass_a, pass_b = paired_modes.passes
        call_a, call_b = paired_modes.calls
        columns_a = [series_a[a.tensor], rows_a, a.step + offset, pass_a, call_a]
        columns_b = [series_b[b.tensor], rows_b, b.step, pass_b, call_b]
        again = [repeats(table) for table in (a, b)]
        both = zip((*columns_a, again[0]), (*columns_b, again[1]), strict=True)
        keys = packed([np.concatenate(columns) for columns in both])
        self.row_a, self.key_a = _chosen(a, keys[: len(a)])
        self.row_b, self.key_b = _chosen(b, keys[len(a) :])


def series_codes(a: Table, b: Table, to_b: Mapping[str, str]) -> tuple[Array, Array]:
    """Return a number for each tensor of A, and of B; tensors with equal numbers can be paired.

    Such tensors have equal ranks, kinds and `mode_class`, and their names are matched.
    to_b: the matches, A's name -> B's.
    """
    known: dict[Hashable, int] = {}
    codes: tuple[list[int], list[int]] = ([], [])
    for tensor in a.tensors:
        # A name of A without a match is not the name of B that is spelt alike.
        name = to_b.get(tensor.name)
        key = (
            tensor.rank,
            tensor.kind,
            mode_class(tensor.mode),
            name,
            tensor.name if name is None else "",
        )
        codes[0].append(known.setdefault(key, len(known)))
    for tensor in b.tensors:
        key = (tensor.rank, tensor.kind, mode_class(tensor.mode), tensor.name, "")
        codes[1].append(known.setdefault(key, len(known)))
    return np.array(codes[0], np.int64), np.array(codes[1], np.int64)


def mode_class(mode: str) -> str:
    """Return the part of a mode's text that must be equal for two records to be paired.

    It is "" for modes that record the tensor itself (All, Summary, EveryN, Final), and the whole
    text for any other mode, such as "sum:window=10".
    """
    return "" if mode.split(":")[0] in ("all", "summary", "every_n", "final") else mode


def shared_codes(a: Any, b: Any) -> tuple[Array, Array]:
    """Return a number for each value of `a`, and of `b`; equal values, and no others, share one."""
    known: dict[Hashable, int] = {}
    codes_a, codes_b = (
        [known.setdefault(value, len(known)) for value in values] for values in (a, b)
    )
    return np.array(codes_a, np.int64), np.array(codes_b, np.int64)


def same_bits(a: Table, b: Table, a_row: Array, b_row: Array) -> Array:
    """Return a mask of the pairs of rows whose dtype, shape and digest are equal.

    a_row, b_row: the rows of each pair in A and in B.
    """
    dtype_a, dtype_b = shared_codes(a.dtypes, b.dtypes)
    shape_a, shape_b = shared_codes(a.shapes, b.shapes)
    equal: Array = (a.digest[a_row] == b.digest[b_row]).all(axis=1)
    equal &= dtype_a[a.dtype[a_row]] == dtype_b[b.dtype[b_row]]
    equal &= shape_a[a.shape[a_row]] == shape_b[b.shape[b_row]]
    return equal


def repeats(table: Table) -> Array:
    """Return for each row how many rows before it have its tensor, phase, step, pass and call.

    Such rows are repeated observations at one place; their number tells them apart.
    """
    places = (getattr(table, name) for name in PLACE)
    return occurrences(packed([table.tensor, table.phase, *places]))


def _chosen(table: Table, keys: Array) -> tuple[Array, Array]:
    """Return one row for each key, and the keys of these rows; the rows are ascending.

    keys: the key of each row of the table. Of rows with one key, those with stored values are
    preferred, then the mode that comes first by name.
    """
    # Where two modes both kept the values, or neither did, the mode that comes first by name is
    # taken: the order of arrival must not decide.
    modes = sorted({tensor.mode for tensor in table.tensors})
    preferred = np.array([modes.index(tensor.mode) for tensor in table.tensors], np.int64)
    order = np.lexsort((preferred[table.tensor], ~table.kept.astype(bool), keys))
    first = np.ones(len(keys), bool)
    first[1:] = keys[order][1:] != keys[order][:-1]
    rows = np.sort(order[first])
    return rows, keys[rows]
