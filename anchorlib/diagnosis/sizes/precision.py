"""The dtype of the tensors that were observed, where records hold sums of them.

`Sum` adds half and 8-bit floats up in float32, float32 and float64 in float64, and complex numbers
in complex128. The tensors were rounded to their own dtype, not to the wider dtype of their sum, so
that errors are counted in eps of the tensors' dtype. A record of a sum does not store that dtype.
It is taken from other records of the run, else the most usual dtype is assumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.pairing import Table
from anchorlib.dtypes import DType

__all__ = ["observed", "observed_eps"]

Array = np.ndarray[Any, Any]

SUMMED = {
    "float32": ("bfloat16", "float16", *(name for name in dtypes.DTYPES if "float8" in name)),
    "float64": ("float32", "float64"),
    "complex128": ("complex64", "complex128", "complex32"),
}
"""The element types whose sums have this type; the first is assumed where no record states it."""


def observed(table: Table, row: int) -> DType:
    """Return the dtype of the tensors that one record observed.

    For a sum, that is the dtype of its terms; the record itself has a wider one.
    """
    tensor, dtype = int(table.tensor[row]), int(table.dtype[row])
    return dtypes.dtype(_name(table, tensor, table.dtypes[dtype], _plain(table)))


def observed_eps(table: Table, rows: Array) -> Array:
    """Return the eps of the tensors that these records observed; nan for integers and bool."""
    own = [dtypes.dtype(name).eps for name in table.dtypes]
    eps = np.array([np.nan if one is None else one for one in own] or [np.nan])
    observed_types: Array = eps[table.dtype[rows]]
    sums = np.array([_is_sum(one.mode) for one in table.tensors] or [False])
    if not sums.any():
        return observed_types
    which = np.flatnonzero(sums[table.tensor[rows]])
    plain = _plain(table)
    pairs = table.tensor[rows[which]].astype(np.int64) * len(eps) + table.dtype[rows[which]]
    for pair in np.unique(pairs).tolist():
        tensor, dtype = divmod(pair, len(eps))
        kind = dtypes.dtype(_name(table, tensor, table.dtypes[dtype], plain))
        observed_types[which[pairs == pair]] = np.nan if kind.eps is None else kind.eps
    return observed_types


def _is_sum(mode: str) -> bool:
    return mode.partition(":")[0] == "sum"


def _plain(table: Table) -> dict[tuple[str, str], set[str]]:
    """Return the dtypes of each (name, kind), from records that are no sums."""
    dtypes_of_names: dict[tuple[str, str], set[str]] = {}
    for pair in np.unique(table.tensor.astype(np.int64) * len(table.dtypes) + table.dtype).tolist():
        number, dtype = divmod(pair, len(table.dtypes))
        tensor = table.tensors[number]
        if not _is_sum(tensor.mode):
            dtypes_of_names.setdefault((tensor.name, tensor.kind), set()).add(table.dtypes[dtype])
    return dtypes_of_names


def _name(table: Table, tensor: int, own: str, plain: dict[tuple[str, str], set[str]]) -> str:
    identity = table.tensors[tensor]
    if not _is_sum(identity.mode) or own not in SUMMED:
        return own
    possible = SUMMED[own]
    for candidates in _surest_first(table, identity.name, identity.kind, identity.rank, plain):
        fitting = [name for name in candidates if name in possible]
        if fitting:
            return fitting[0]
    return possible[0]


def _surest_first(
    table: Table, name: str, kind: str, rank: int, plain: dict[tuple[str, str], set[str]]
) -> Iterator[list[str]]:
    """Yield lists of names of dtypes that the terms of a sum may have, the surest list first.

    The lists are: the dtypes of records of this name and kind, of this name, of all records of the
    run (the most frequent first), and the dtypes that the header of `rank` states.
    plain: the dtypes of each (name, kind), from records that are no sums.
    """
    yield sorted(plain.get((name, kind), ()))
    yield sorted({dtype for (other, _), some in plain.items() if other == name for dtype in some})
    yield [dtype for dtype, _ in Counter(d for some in plain.values() for d in some).most_common()]
    header = table.header.get(rank, {})
    yield [str(header.get(key)) for key in ("amp.autocast", "torch.default_dtype")]
