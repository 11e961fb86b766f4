"""How B's record follows from A's, where one formula turns all elements of A's into those of B's.

    B is A plus 1                  B is the square of A            B is 1 minus A
    B is 0.7 times the square of A          A sums up to 1 along axis 1, B along axis 0
    B is the cumulative product of A                               A is the cumulative product of B
    B's elements are A's, 1 place on along axis 0
    B has A's elements, arranged otherwise
    each row of B is A's times a factor of its own, 0.2 to 0.9
    each of B's slices along axis 1 is A's times a factor of its own, 0.2 to 0.9
    where they differ B has 0                   where they differ A has 5, B 0
    where they differ B is A plus 1             B is the logarithm of 1 plus A

Such a relation shows a formula that a program leaves out or applies twice: a table of noise that is
not summed up, a missing root, a position that is off by one, a weight of each sample or feature.
Multiples are found in `changes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.judgement.clauses import ValueClause
from anchorlib.diagnosis.judgement.series import values
from anchorlib.errors import StoreError

__all__ = ["relation"]

Array = np.ndarray[Any, Any]
NEAR = 1e-5  # share of the spread of B by which B may be off
CLEAR = 1e-2  # share of the size of A from which B differs from A
FEW = 8  # elements: in smaller tensors, formulas are found by chance
MOST_ELEMENTS = 1 << 20
FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {
    "the square of A": np.square,
    "the square root of A": lambda a: np.sign(a) * np.sqrt(np.abs(a)),
    "the inverse of A": np.reciprocal,
    "the logarithm of A": np.log,
    "the logarithm of 1 plus A": np.log1p,
    "the exponential of A": np.exp,
    "the exponential of A, less 1": np.expm1,
}
"""Functions of each element, by name; the root keeps the sign, since programs take roots of sizes.
"""


def relation(frontier: Frontier, row: int) -> list[ValueClause]:
    """Return the clause that says how B's record follows from A's; [] where no formula is known.

    row: a row of A with a partner in B. Both values must be stored and of one shape.
    """
    alignment = frontier.alignment
    a, b = alignment.a, alignment.b
    partner = int(alignment.b_row[np.searchsorted(alignment.a_row, row)])
    shape = a.shapes[a.shape[row]]
    if b.shapes[b.shape[partner]] != shape or not FEW <= a.figures["numel"][row] <= MOST_ELEMENTS:
        return []
    try:
        sides = values(a, row), values(b, partner)
    except StoreError:
        return []
    values_a, values_b = sides
    if values_a is None or values_b is None or not _apart(values_a, values_b):
        return []
    with np.errstate(all="ignore"):
        clause = next(_clauses(values_a.reshape(shape), values_b.reshape(shape)), None)
    return [] if clause is None else [ValueClause(clause)]


def _clauses(a: Array, b: Array) -> Iterator[str]:
    shift = float(np.median(b - a))
    if _same(a + shift, b):
        yield f"B is A {'plus' if shift > 0 else 'minus'} {abs(shift):.6g}"
    if _same(1 - a, b):
        yield "B is 1 minus A"
    yield from _functions(a, b)
    yield from _summing_up(a, b)
    if a.ndim == 1:
        if _same(np.cumprod(a), b):
            yield "B is the cumulative product of A"
        if _same(np.cumprod(b), a):
            yield "A is the cumulative product of B"
    yield from _moved(a, b)
    yield from _factors(a, b)
    yield from _replaced(a, b)
    yield from _shifted_in_part(a, b)


def _functions(a: Array, b: Array) -> Iterator[str]:
    """Yield a clause where each element of B is a function of A's, or one multiple of that."""
    for name, function in FUNCTIONS.items():
        made = function(a)
        if _same(made, b):
            yield f"B is {name}"
        times = float((made * b).sum() / (made * made).sum())
        if abs(times) > CLEAR and _same(times * made, b):
            yield f"B is {times:.6g} times {name}"


def _summing_up(a: Array, b: Array) -> Iterator[str]:
    """Yield a clause where each run's elements sum up to 1 along another axis: two softmaxes."""
    sums = [
        [axis for axis in range(one.ndim) if np.abs(one.sum(axis) - 1).max() <= CLEAR / 10]
        for one in (a, b)
    ]
    if all(len(axes) == 1 for axes in sums) and sums[0] != sums[1]:
        (of_a,), (of_b,) = sums
        yield f"A sums up to 1 along axis {of_a}, B along axis {of_b}"
    elif sorted(map(len, sums)) == [0, 1]:
        run, other = "AB" if sums[0] else "BA"
        yield f"{run} sums up to 1 along axis {(sums[0] or sums[1])[0]}, {other} along none"


def _moved(a: Array, b: Array) -> Iterator[str]:
    """Yield a clause where B has A's elements, one index further or back, or in another order."""
    for axis, length in enumerate(a.shape):
        if length < FEW // 2:
            continue
        later, earlier = (np.arange(length)[part] for part in (slice(1, None), slice(None, -1)))
        for run, other, name in ((a, b, "on"), (b, a, "back")):
            if _same(run.take(earlier, axis), other.take(later, axis)):
                yield f"B's elements are A's, 1 place {name} along axis {axis}"
    if np.array_equal(np.sort(a, axis=None), np.sort(b, axis=None)):
        yield "B has A's elements, arranged otherwise"


def _factors(a: Array, b: Array) -> Iterator[str]:
    """Yield a clause if slices of B along an axis are multiples of A's, by factors that differ."""
    if a.ndim < 2:
        return
    for axis, length in enumerate(a.shape):
        if a.size < FEW * length:
            continue
        rows_a, rows_b = (np.moveaxis(one, axis, 0).reshape(length, -1) for one in (a, b))
        sizes = (rows_a * rows_a).sum(axis=1)
        used = sizes > 0
        if used.sum() < 2 or rows_b[~used].any():
            continue
        factors = (rows_a * rows_b).sum(axis=1)[used] / sizes[used]
        if _same(factors[:, None] * rows_a[used], rows_b[used]) and np.ptp(factors) > CLEAR:
            whose = f"each of B's slices along axis {axis}" if axis else "each row of B"
            low, high = factors.min(), factors.max()
            yield f"{whose} is A's times a factor of its own, {low:.3g} to {high:.3g}"


def _replaced(a: Array, b: Array) -> Iterator[str]:
    """Yield a clause where all elements that differ have one value in A, or one value in B."""
    other = a != b
    numbers_a, numbers_b = np.unique(a[other])[:2], np.unique(b[other])[:2]
    if other.sum() < 2 or other.all():
        return
    if len(numbers_a) == len(numbers_b) == 1:
        yield f"where they differ A has {numbers_a[0]:.6g}, B {numbers_b[0]:.6g}"
    elif len(numbers_b) == 1:
        yield f"where they differ B has {numbers_b[0]:.6g}"
    elif len(numbers_a) == 1:
        yield f"where they differ A has {numbers_a[0]:.6g}"


def _shifted_in_part(a: Array, b: Array) -> Iterator[str]:
    """Yield a clause where B is A plus one number wherever they differ, in some elements alone."""
    other = a != b
    if other.all() or len(np.unique(a[other])) < FEW // 2:
        return
    shift = float(np.median((b - a)[other]))
    if _same(a[other] + shift, b[other]):
        yield f"where they differ B is A {'plus' if shift > 0 else 'minus'} {abs(shift):.6g}"


def _apart(a: Array, b: Array) -> bool:
    size = float(np.linalg.norm(a))
    return size > 0 and float(np.linalg.norm(b - a)) > CLEAR * size and float(np.ptp(a)) > 0


def _same(made: Array, b: Array) -> bool:
    """Return whether `made`, a formula's result, equals B up to a small share of B's spread."""
    spread = float(np.linalg.norm(b - b.mean()))
    return spread > 0 and float(np.linalg.norm(made - b)) <= NEAR * spread
