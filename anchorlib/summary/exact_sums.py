"""Sums of floats without rounding, so that it does not matter in which order numbers are added.

A float is a whole number times a power of two. Cut into limbs (digits) of 32 bits, floats are added
as whole numbers are: however the numbers are divided among machines, the sum of all parts is the
same. A sum is rounded once, when it is asked for. Many sums are held together; each is a cell.

    key = cell * LIMBS + limb      counts: whole numbers, each times 2^(32 * limb - _SHIFT)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

__all__ = ["LIMBS", "ExactSums", "added_up"]

Array = np.ndarray[Any, Any]
LIMBS: Final = 256
"""How many limbs a sum has: more than the square of any float64 needs.

The last three count infinities of both signs, and NaN.
"""
_SHIFT: Final = 2304  # the square of the smallest float64, with its 106 bits, is a whole number
_BITS: Final = 32
_LOW: Final = np.uint64((1 << _BITS) - 1)
_MANTISSA: Final = 53  # bits of a float64
_HALF: Final = 27
_POSITIVE, _NEGATIVE, _NAN = LIMBS - 3, LIMBS - 2, LIMBS - 1


@dataclass(frozen=True, slots=True)
class ExactSums:
    """Several exact sums of floats; a cell is the number of one of the sums.

    keys: cell * LIMBS + limb, ascending. counts: for each key the whole number in that limb (a
    digit of 32 bits, before carries), never zero. The last three limbs of a cell hold no digits:
    they count the infinities, negative infinities and NaNs that were added.
    """

    keys: Array
    counts: Array

    @classmethod
    def of(cls, cells: Array, values: Array) -> ExactSums:
        """Return the sums of `values`; `cells` has the number of the sum to add each value to."""
        finite = np.isfinite(values)
        cell, mantissa, exponent, sign = _taken_apart(cells[finite], values[finite])
        parts = [_limbs(cell, mantissa, exponent, sign), _not_finite(cells, values, finite)]
        return cls._added(parts)

    @classmethod
    def of_squares(cls, cells: Array, values: Array) -> ExactSums:
        """Return the sums of squares of `values`; `cells` has the number of each value's sum."""
        finite = np.isfinite(values)
        cell, mantissa, exponent, _ = _taken_apart(cells[finite], values[finite])
        one = np.ones(len(cell), np.int64)
        high, low = mantissa >> np.uint64(_HALF), mantissa & np.uint64((1 << _HALF) - 1)
        parts = [
            _limbs(cell, high * high, 2 * exponent + 2 * _HALF, one),
            _limbs(cell, high * low, 2 * exponent + _HALF + 1, one),
            _limbs(cell, low * low, 2 * exponent, one),
            _not_finite(cells, np.abs(values), finite),
        ]
        return cls._added(parts)

    @classmethod
    def _added(cls, parts: list[tuple[Array, Array]]) -> ExactSums:
        keys, counts = (np.concatenate([part[at] for part in parts]) for at in (0, 1))
        keys, counts = added_up(keys, counts)
        return cls(keys[counts != 0], counts[counts != 0])

    def moved(self, cells: Array) -> ExactSums:
        """Return the sums renumbered: sum number k is added to the sum with number `cells[k]`."""
        keys = cells[self.keys // LIMBS] * LIMBS + self.keys % LIMBS
        return self._added([(keys, self.counts)])

    @classmethod
    def pooled(cls, parts: list[ExactSums]) -> ExactSums:
        """Return several `ExactSums` added up: sums with equal numbers are added to each other."""
        none = np.empty(0, np.int64)
        return cls._added([(none, none), *((one.keys, one.counts) for one in parts)])

    def rounded(self, cells: int) -> Array:
        """Return the first `cells` sums as float64, each rounded once; 0 for an empty sum."""
        sums = np.zeros(cells)
        for cell, number in self._numbers(sums):
            sums[cell] = _float(number, -_SHIFT)
        return sums

    def roots(self, cells: int) -> Array:
        """Return the square roots of the first `cells` sums as float64, each rounded once."""
        roots = np.zeros(cells)
        for cell, number in self._numbers(roots):
            roots[cell] = _root(number)
        return roots

    def _numbers(self, not_finite: Array) -> list[tuple[int, int]]:
        """Return (number of the sum, its value times 2^_SHIFT) for each finite sum.

        A sum that is infinite or NaN is written into the array `not_finite` instead, at the index
        that is the number of the sum.
        """
        numbers: dict[int, int] = {}
        odd: dict[int, set[int]] = {}
        for key, count in zip(self.keys.tolist(), self.counts.tolist(), strict=True):
            cell, limb = divmod(key, LIMBS)
            if limb >= _POSITIVE:
                odd.setdefault(cell, set()).add(limb)
            else:
                numbers[cell] = numbers.get(cell, 0) + (count << (_BITS * limb))
        for cell, limbs in odd.items():
            numbers.pop(cell, None)
            not_finite[cell] = math.inf if limbs == {_POSITIVE} else -math.inf
            if limbs not in ({_POSITIVE}, {_NEGATIVE}):
                not_finite[cell] = math.nan
        return list(numbers.items())


def added_up(keys: Array, counts: Array) -> tuple[Array, Array]:
    """Return (the distinct keys, ascending; the sum of the counts of each)."""
    order = np.argsort(keys, kind="stable")
    keys, counts = keys[order], counts[order]
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])[: len(keys)])
    totals = np.add.reduceat(counts, first) if len(first) else counts
    return keys[first], totals


def _taken_apart(cells: Array, values: Array) -> tuple[Array, Array, Array, Array]:
    """Return (cells, mantissa, exponent, sign) with value = sign * mantissa * 2^exponent.

    values: finite floats. cells: the number of the sum that each belongs to; returned as it is.
    """
    fraction, exponent = np.frexp(np.abs(values).astype(np.float64))
    mantissa = np.ldexp(fraction, _MANTISSA).astype(np.uint64)
    sign = np.where(values < 0, -1, 1)
    return cells, mantissa, exponent.astype(np.int64) - _MANTISSA, sign


def _limbs(cells: Array, numbers: Array, exponents: Array, signs: Array) -> tuple[Array, Array]:
    """Cut sign * number * 2^exponent into limbs (digits of 32 bits); return their keys and counts.

    cells: the number of the sum that each number belongs to. A number has at most 63 bits. Keys and
        counts are those of `ExactSums`, except that a key may occur several times.
    """
    limb, shift = np.divmod(exponents + _SHIFT, _BITS)
    shift = shift.astype(np.uint64)
    bits = np.uint64(_BITS)
    low, high = (numbers & _LOW) << shift, (numbers >> bits) << shift
    pieces = (low & _LOW, (low >> bits) + (high & _LOW), high >> bits)
    keys = np.concatenate([cells * LIMBS + limb + place for place in range(len(pieces))])
    counts = np.concatenate([piece.astype(np.int64) * signs for piece in pieces])
    return keys[counts != 0], counts[counts != 0]


def _not_finite(cells: Array, values: Array, finite: Array) -> tuple[Array, Array]:
    cells, values = cells[~finite], values[~finite]
    limb = np.where(np.isnan(values), _NAN, np.where(values > 0, _POSITIVE, _NEGATIVE))
    return cells * LIMBS + limb, np.ones(len(cells), np.int64)


def _float(number: int, exponent: int) -> float:
    """Return number * 2^exponent, rounded to nearest; infinite beyond float64's range."""
    try:
        return float(number << exponent) if exponent >= 0 else number / (1 << -exponent)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _root(number: int) -> float:
    """Return sqrt(number * 2^-_SHIFT), rounded to nearest."""
    shift = max(2 * 64 - number.bit_length(), 0)
    shift += shift % 2  # _SHIFT is even too, so that the root of the power of two is whole
    wide = number << shift
    root = math.isqrt(wide)
    # One more bit says that the root was cut off, so that rounding sees on which side it lies.
    root = 2 * root + (root * root != wide)
    return _float(root, -(_SHIFT + shift) // 2 - 1)
