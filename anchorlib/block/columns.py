"""The columns of a block of records, and the tables that the indices in some columns refer to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np

from anchorlib import dtypes
from anchorlib.errors import StoreError

__all__ = [
    "COLUMNS",
    "Array",
    "Buffer",
    "DtypeAndShape",
    "Misfit",
    "Series",
    "Tables",
    "layout_bytes",
]

Array: TypeAlias = np.ndarray[Any, Any]
Buffer: TypeAlias = bytes | memoryview
Series: TypeAlias = tuple[str, str, str]
DtypeAndShape: TypeAlias = tuple[str, tuple[int, ...]]

_I8: Final = np.dtype(np.int64)
_U8: Final = np.dtype(np.uint64)
_F8: Final = np.dtype(np.float64)

COLUMNS: Final[dict[str, np.dtype[Any]]] = {
    "series": _I8,
    "layout": _I8,
    "phase": _I8,
    "step": _I8,
    "pass_index": _I8,
    "call": _I8,
    "order": _I8,
    "time_ns": _I8,
    "count": _U8,
    "flags": np.dtype(np.uint32),
    "scale": _F8,
    "zero": _U8,
    "nan": _U8,
    "inf": _U8,
    "subnormal": _U8,
    "min": _F8,
    "max": _F8,
    "sum": _F8,
    "l2": _F8,
    "bins": _I8,
}
"""The columns of a block, each with the dtype that its array should have."""

MAX_DIMS: Final = 64  # numpy's own limit
MAX_ELEMENTS: Final = 1 << 60


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables that the indices in a block's columns `series`, `layout` and `phase` refer to.

    The lists may grow, but an entry that is in a list never changes.

    series: each a (name, kind, text of the mode), such as ("fc2.bias", "grad", "all"). layouts:
        each a (torch's name of the dtype, shape). sizes: the bytes of one record of each layout.
        phases: the names of phases, such as "train".
    """

    series: Sequence[Series]
    layouts: Sequence[DtypeAndShape]
    sizes: Sequence[int]
    phases: Sequence[str]


@dataclass(frozen=True, slots=True)
class Misfit:
    """A record that cannot be stored, and the reason; a gap is stored in its place.

    For instance, a record's step is beyond 64 bits, or its values do not have the shape that it
    states. A gap counts observations of a tensor that were not recorded, and says why.

    name, kind, mode: the record's series. step: the record's step, limited to 64 bits.
    """

    name: str
    kind: str
    mode: str
    step: int
    reason: str


def layout_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Return how many bytes a tensor of this dtype (torch's name) and shape takes in storage.

    Raises UnknownDTypeError for a dtype that cannot be stored, StoreError for a shape that no
    tensor can have.
    """
    kind = dtypes.dtype(dtype)
    if len(shape) > MAX_DIMS or any(size < 0 for size in shape):
        raise StoreError(f"no tensor has the shape {shape}")
    if prod(max(size, 1) for size in shape) >= MAX_ELEMENTS:
        raise StoreError(f"a shape of {shape} is too large to be a tensor's")
    return kind.storage.itemsize * prod(shape)
