"""How far pairs of tensors of one size are apart, added up from parts of their elements.

Rows are pairs and columns elements: a large pair comes alone, 64 Ki elements at a time, and small
ones come together. Complex elements count as two numbers, except in the share that differs and in
`worst` (the element that differs most).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.dtypes import DType

__all__ = ["Differences"]

Array = np.ndarray[Any, Any]
FILLED = -1e9
"""From this number down, an element that is equal in both runs is what a mask put there, as −inf
is: programs fill logits with −1e9, −1e30 or the least number of a dtype. Beside such elements no
error of the others would show."""


class Differences:
    """The sums and extremes of the differences of some pairs, of the elements added so far.

    shift: for each pair the exponent of the power of two by which its float64 values are scaled, so
        that their squares neither vanish nor become infinite; mostly 0.
    eps: for each pair the unit in which errors are counted.
    scale: for each pair the factor that brings B's values to A's loss scale first; mostly 1.
    """

    def __init__(
        self, kind_a: DType, kind_b: DType, shift: Array, eps: Array, scale: Array
    ) -> None:
        pairs = len(shift)
        self._eps = eps
        self._scale = scale
        self._scaled = bool((scale != 1.0).any())
        self._kinds = (kind_a, kind_b)
        self._parts = 2 if "complex" in (kind_a.family, kind_b.family) else 1
        self._shift = shift
        self._shifted = bool(shift.any())
        self._seen = 0
        self._sums = dict.fromkeys(
            ("aa", "bb", "dd", "ab", "ad", "d", "abs", "lost"), np.zeros(pairs)
        )
        self._counts = dict.fromkeys(
            ("bits", "nonfinite", "zeros", "skipped"), np.zeros(pairs, np.int64)
        )
        self._largest_a = np.zeros(pairs)
        self._largest = np.zeros(pairs)
        self._worst = np.full(pairs, -1)
        self._values = np.full((2, pairs), np.nan)
        self._broken = np.full(pairs, -1)
        self._broken_values = np.full((2, pairs), np.nan)

    def add(self, raw_a: Array, raw_b: Array) -> None:
        """Add the next elements of every pair: raw storage, both (pairs, elements)."""
        wide_a, wide_b = (
            self._wide(raw, kind) for raw, kind in zip((raw_a, raw_b), self._kinds, strict=True)
        )
        if self._scaled:
            wide_b *= self._scale[:, None]
        self._count("bits", self._unequal(raw_a, raw_b, wide_a, wide_b))
        self._count("zeros", (wide_a == 0) != (wide_b == 0))
        least = wide_a <= FILLED
        masked = least & (wide_a == wide_b) if least.any() else None
        if self._shifted:
            np.ldexp(wide_a, self._shift[:, None], out=wide_a)
            np.ldexp(wide_b, self._shift[:, None], out=wide_b)
        apart = wide_b - wide_a
        total = apart.sum(axis=1)
        if masked is not None or not np.isfinite(total).all():
            self._leave_out(wide_a, wide_b, masked)
            np.subtract(wide_b, wide_a, out=apart)
            total = apart.sum(axis=1)
        self._add("d", total)
        self._fold(wide_a, wide_b, apart)
        self._seen += raw_a.shape[1]

    def _fold(self, wide_a: Array, wide_b: Array, apart: Array) -> None:
        sides = {"a": wide_a, "b": wide_b, "d": apart}
        for name in ("aa", "bb", "dd", "ab", "ad"):
            left, right = sides[name[0]], sides[name[1]]
            # Not np.dot: it starts threads, and the sum would depend on their number.
            self._add(name, np.einsum("ij,ij->i", left, right))
        np.abs(apart, out=apart)
        self._add("abs", apart.sum(axis=1))
        place = apart.argmax(axis=1)
        rows = np.arange(len(apart))
        larger = np.flatnonzero(apart[rows, place] > self._largest)
        self._largest[larger] = apart[rows, place][larger]
        self._worst[larger] = place[larger] // self._parts + self._seen
        self._values[0, larger] = wide_a[larger, place[larger]]
        self._values[1, larger] = wide_b[larger, place[larger]]
        np.abs(wide_a, out=wide_a)
        np.maximum(self._largest_a, wide_a.max(axis=1), out=self._largest_a)

    def _leave_out(self, wide_a: Array, wide_b: Array, masked: Array | None) -> None:
        """Count the elements that are not finite in one or both runs; set them to zero in both.

        wide_a, wide_b: the values of A and B in float64, (pairs, numbers), changed in place.
        masked: which elements a mask filled, in both runs alike; they are set to zero, too.
        """
        finite = np.isfinite(wide_a), np.isfinite(wide_b)
        out = ~(finite[0] & finite[1])
        # inf equals inf, and a NaN any NaN.
        broken = out & ~((wide_a == wide_b) | (np.isnan(wide_a) & np.isnan(wide_b)))
        self._count("nonfinite", broken)
        self._count("skipped", out if masked is None else out | masked)
        first = broken.argmax(axis=1)
        new = np.flatnonzero(broken.any(axis=1) & (self._broken < 0))
        self._broken[new] = first[new] // self._parts + self._seen
        self._broken_values[0, new] = wide_a[new, first[new]]
        self._broken_values[1, new] = wide_b[new, first[new]]
        self._add("lost", (np.where(out & finite[0], wide_a, 0.0) ** 2).sum(axis=1))
        if masked is not None:
            out |= masked
        wide_a[out] = 0.0
        wide_b[out] = 0.0

    def _wide(self, raw: Array, kind: DType) -> Array:
        values = dtypes.decode(raw, kind.name)
        if kind.family == "complex":
            return values.view(values.real.dtype).astype(np.float64)
        wide = values.astype(np.float64)
        if self._parts == 2:
            wide = wide.astype(np.complex128).view(np.float64)
        return wide

    def _unequal(self, raw_a: Array, raw_b: Array, wide_a: Array, wide_b: Array) -> Array:
        """Return a mask of the elements that differ: in bits; in values if dtypes or scales differ.

        It has the shape (pairs, elements).
        """
        if self._kinds[0] == self._kinds[1] and not self._scaled:
            width = min(raw_a.itemsize, 8)
            left, right = (np.ascontiguousarray(raw).view(f"u{width}") for raw in (raw_a, raw_b))
            unequal_parts = left != right
            parts = raw_a.itemsize // width
        else:
            left, right = _in_coarser(wide_a, wide_b, self._kinds)
            unequal_parts = (left != right) & ~(np.isnan(wide_a) & np.isnan(wide_b))
            parts = self._parts
        if parts > 1:
            unequal_parts = unequal_parts.reshape(len(unequal_parts), -1, parts).any(axis=2)
        differs: Array = unequal_parts
        return differs

    def _count(self, name: str, where: Array) -> None:
        # For one row, counting without an axis is far faster.
        count = np.count_nonzero(where) if len(where) == 1 else np.count_nonzero(where, axis=1)
        self._counts[name] = self._counts[name] + count

    def _add(self, name: str, value: Array) -> None:
        self._sums[name] = self._sums[name] + value

    def columns(self) -> dict[str, Array]:
        """Return the fields of Measure that come from the values, an array for each field."""
        sums, counts = self._sums, self._counts
        norm_a, norm_b, apart = (np.sqrt(sums[name]) for name in ("aa", "bb", "dd"))
        size = np.full(len(norm_a), self._seen)
        figures = {
            "error_eps": _ratio(apart, norm_a) / self._eps,
            "max_eps": _ratio(self._largest, self._largest_a) / self._eps,
            "max_abs": np.ldexp(self._largest, -self._shift),
            "bias": _ratio(np.abs(sums["d"]), sums["abs"]),
            "cosine_distance": _cosine_distance(norm_a, norm_b, sums),
        }
        nothing = counts["skipped"] == self._seen * self._parts
        for values in figures.values():
            values[nothing] = np.nan
        norm = np.ldexp(np.sqrt(sums["aa"] + sums["lost"]), -self._shift)
        shares = {"share_differing": _ratio(counts["bits"], size), "norm": norm}
        return {
            **figures,
            **shares,
            **self._where(),
            **{n: counts[n] for n in ("nonfinite", "zeros")},
        }

    def _where(self) -> dict[str, Array]:
        """Return the fields `worst`, `value_a` and `value_b` of each pair.

        They are those of the element with the largest difference. Where all finite elements are
        equal, they are those of the first element that `nonfinite` counts.
        """
        none = self._worst < 0
        values = np.where(none, self._broken_values, self._values)
        value_a, value_b = np.ldexp(values, -self._shift)
        return {
            "worst": np.where(none, self._broken, self._worst),
            "value_a": value_a,
            "value_b": value_b,
        }


def _in_coarser(wide_a: Array, wide_b: Array, kinds: tuple[DType, DType]) -> tuple[Array, Array]:
    """Return both runs' values, with those of the finer dtype rounded to the other's precision."""
    finer = [kind.eps or 0.0 for kind in kinds]
    if finer[0] == finer[1] or not all(finer):
        return wide_a, wide_b
    if finer[0] < finer[1]:
        return _rounded(wide_a, kinds[1]), wide_b
    return wide_a, _rounded(wide_b, kinds[0])


def _rounded(values: Array, kind: DType) -> Array:
    """Return the nearest values of dtype `kind`, ties to even, without a limit to the range."""
    assert kind.eps is not None
    assert kind.smallest_normal_exponent is not None
    exponent = np.maximum(np.frexp(values)[1] - 1, kind.smallest_normal_exponent)
    unit = exponent + int(np.log2(kind.eps))
    nearest: Array = np.ldexp(np.rint(np.ldexp(values, -unit)), unit)
    return nearest


def _ratio(over: Array, under: Array) -> Array:
    """Return over / under, elementwise; 0 where both are 0."""
    ratio: Array = np.divide(over, under, out=np.zeros(len(over)), where=over != 0)
    return ratio


def _cosine_distance(norm_a: Array, norm_b: Array, sums: dict[str, Array]) -> Array:
    """Return ½‖a/‖a‖ − b/‖b‖‖², which is 1 − a·b / (‖a‖‖b‖); nan if only one vector is zero.

    For vectors that are close to each other, 1 − a·b / (‖a‖‖b‖) would lose its digits. There the
    distance is computed as (‖b − a‖² − (‖b‖ − ‖a‖)²) / (2‖a‖‖b‖). The difference ‖b‖ − ‖a‖ would
    lose its digits too, and is computed from 2a·(b − a) + ‖b − a‖².
    sums: for each pair a·a, a·b, a·(b − a) and ‖b − a‖², named "aa", "ab", "ad" and "dd".
    """
    longer = _ratio(2 * sums["ad"] + sums["dd"], norm_a + norm_b)
    near = np.maximum(sums["dd"] - longer**2, 0) / norm_a / norm_b / 2
    far = 1 - sums["ab"] / norm_a / norm_b
    distance = np.where(sums["dd"] < sums["aa"] / 100, near, far)
    zeros = (norm_a == 0).astype(int) + (norm_b == 0)
    return np.where(zeros == 2, 0.0, np.where(zeros == 1, np.nan, distance))
