"""How many units in the last place (ulps) two records differ by, in the coarser of their dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.pairing import Alignment
from anchorlib.diagnosis.sizes.precision import observed
from anchorlib.diagnosis.sizes.values import pieces
from anchorlib.dtypes import DType

__all__ = ["max_ulp"]

Array = np.ndarray[Any, Any]
PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}


def max_ulp(alignment: Alignment, pair: int) -> int | None:
    """Return the largest difference between two paired records, in ulps of the coarser dtype.

    pair: the pair's index in `alignment`. An ulp is the step from one number of a dtype to the
    next. A record of sums is measured in the dtype of its terms. Finer values are rounded to the
    coarser dtype first. +0 and −0 are one number. Elements that are not finite in both records are
    left out. None where nothing can be counted: integers, values that were not kept, shapes that
    differ, no element that is finite in both.
    """
    sides = [(alignment.a, int(alignment.a_row[pair])), (alignment.b, int(alignment.b_row[pair]))]
    if not all(table.kept[row] for table, row in sides):
        return None
    if len({table.shapes[int(table.shape[row])] for table, row in sides}) > 1:
        return None
    type_a, type_b = (dtypes.dtype(table.dtypes[int(table.dtype[row])]) for table, row in sides)
    if type_a.eps is None or type_b.eps is None or (type_a.family != type_b.family):
        return None
    types = [observed(*side) for side in sides]
    coarser = part(max(types, key=lambda kind: kind.eps or 0.0))
    with np.errstate(all="ignore"):  # some processors report a signalling NaN in every cast
        largest = [
            _most(ordinals(raw_a, type_a, coarser), ordinals(raw_b, type_b, coarser))
            for raw_a, raw_b in zip(*(pieces(*side) for side in sides), strict=True)
        ]
    return max((most for most in largest if most is not None), default=None)


def part(kind: DType) -> DType:
    """Return the dtype of the real part of a complex dtype; any other dtype unchanged."""
    return dtypes.dtype(PARTS.get(kind.name, kind.name))


def ordinals(raw: Array, kind: DType, coarser: DType) -> tuple[Array, Array, Array]:
    """Return three arrays: steps from zero, and masks of negative and of finite numbers.

    raw: stored elements of dtype `kind`, which are rounded to `coarser`. A step leads from one
    number of `coarser` to the next. The arrays have an entry for each number; a complex element is
    two numbers.
    """
    raw = np.ascontiguousarray(raw)
    own = part(kind)
    if own is not kind:
        raw = raw.view(own.storage)
    finite = np.isfinite(dtypes.decode(raw, own.name))
    if own is not coarser:
        raw = rounded(dtypes.decode(raw, own.name), coarser)
        finite &= np.isfinite(dtypes.decode(raw, coarser.name))
    bits = raw.view(f"u{raw.itemsize}").astype(np.uint64)
    if coarser.name == "float8_e8m0fnu":  # it has no sign, and no zero
        return bits, np.zeros(len(bits), bool), finite
    sign = np.uint64(1 << (8 * raw.itemsize - 1))
    return bits & ~sign, bits >= sign, finite


def rounded(values: Array, coarser: DType) -> Array:
    """Return the nearest number of `coarser` for each value, as raw storage; ties to even."""
    if coarser.storage == coarser.decoded:
        narrow: Array = values.astype(coarser.storage)
        return narrow
    # numpy has no such dtype, but its numbers are few enough to be listed in ascending order.
    patterns = np.arange(1 << (8 * coarser.storage.itemsize)).astype(coarser.storage)
    listed = dtypes.decode(patterns, coarser.name).astype(np.float64)
    patterns, listed = patterns[np.isfinite(listed)], listed[np.isfinite(listed)]
    order = np.argsort(listed, kind="stable")
    patterns, listed = patterns[order], listed[order]
    wide = values.astype(np.float64)
    above = np.clip(np.searchsorted(listed, wide), 1, len(listed) - 1)
    below = above - 1
    low, high = wide - listed[below], listed[above] - wide
    up = (low > high) | ((low == high) & (patterns[above] % 2 == 0))
    nearest: Array = np.where(up, patterns[above], patterns[below])
    return nearest


def _most(side_a: tuple[Array, Array, Array], side_b: tuple[Array, Array, Array]) -> int | None:
    finite = side_a[2] & side_b[2]
    if not finite.any():
        return None
    (size_a, sign_a), (size_b, sign_b) = (
        (side[0][finite], side[1][finite]) for side in (side_a, side_b)
    )
    of_one_sign = np.where(size_a > size_b, size_a - size_b, size_b - size_a)
    return int(np.where(sign_a == sign_b, of_one_sign, size_a + size_b).max())
