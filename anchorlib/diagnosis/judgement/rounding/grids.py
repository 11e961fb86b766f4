"""Records whose bits show that most of a subtraction cancelled.

    kl = (exp(s) - s) - 1,   s = 1e-4

The difference of two nearly equal numbers is exact: it is a multiple of the unit in the last place
of both, and these were rounded to that unit before. So a float32 record shows by itself how its
terms rounded if all its elements are multiples of one unit that is large beside them: they lie on a
grid. Another formula of the same quantity may differ by a few such units, which may be many eps of
the small rest that the subtraction leaves. A record that went through a division or a root
afterwards lies on no grid.

Other records lie on grids, too: counts, masks, images in steps of 1/255. Their units are no
rounding. So a unit counts only up to the rounding of a number of size 1, or of the size of the
parents, with some room for what was added up. And a record that was rounded to a narrower type has
as many bits in its large elements as in its small ones, whereas the large elements of a rest have
more.

A gradient is such a rest where a value has several uses: autograd adds up the gradients of all
uses. No recorded operation shows this sum, so that more is asked of the bits of a gradient: its
elements must differ by many units, unlike those of a mean of signs.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.judgement.rounding.formats import kind_of, type_eps
from anchorlib.diagnosis.judgement.series import values
from anchorlib.diagnosis.pairing import Table
from anchorlib.errors import StoreError

__all__ = ["is_rest_of_terms"]

Array = np.ndarray[Any, Any]
EPS32 = 2.0**-23
ADDING = re.compile(r"^(Add|Sub|Rsub|Sum|Addmm)Backward\d*$")
UNITS = 4.0
"""How many units two formulas may be apart, each of which rounds more than once: a unit is up to
one eps of the terms, and `bounds.TOLERANCE` is 8 of these."""
ROOM = 64.0
"""How many eps of a number of size 1, or of the parents' elements, a unit may be."""
SPREAD = 64.0
"""How many units the largest element of a gradient must be."""
BITS = 24
"""How many bits of all elements together have to be zero, so that it is no chance."""
MOST_ELEMENTS = 1 << 20


def is_rest_of_terms(frontier: Frontier, row: int, row_b: int) -> bool:
    """Return whether A's and B's record differ by a few units of a grid on which either lies.

    False for records that are not float32, and for values that no addition or subtraction made.
    """
    alignment = frontier.alignment
    a, b = alignment.a, alignment.b
    kind, records = kind_of(frontier, row), ((a, row), (b, row_b))
    if kind not in ("value", "grad", "pass_grad") or a.scale[row] != b.scale[row_b]:
        return False
    if kind == "value" and not any(ADDING.match(op) for op in frontier.ancestry(row).ops):
        return False
    if any(type_eps(*one) != EPS32 or _size(*one) > MOST_ELEMENTS for one in records):
        return False
    try:
        side_a, side_b = values(a, row), values(b, row_b)
    except StoreError:
        return False
    if side_a is None or side_b is None or len(side_a) != len(side_b):
        return False
    elements = [
        float(a.figures["l2"][parent]) / math.sqrt(max(_size(a, parent), 1))
        for parent in frontier.parents(row)
    ]
    largest = ROOM * EPS32 * max(1.0 if kind == "value" else 0.0, *elements, 0.0)
    spread = 0.0 if kind == "value" else SPREAD
    unit = max(_unit(side, largest, spread) for side in (side_a, side_b))
    apart = float(np.linalg.norm(side_b - side_a))
    return apart <= UNITS * unit * math.sqrt(len(side_a))


def _size(table: Table, row: int) -> int:
    return int(table.figures["numel"][row])


def _unit(side: Array, largest: float, spread: float) -> float:
    """Return the unit of the grid on which the elements of one run lie; 0.0 without a grid.

    side: the elements. largest: what the unit may be at most. spread: how many units the largest
    element must have at least.
    """
    size = np.abs(side[side != 0])
    if not len(size):
        return 0.0
    fraction, exponent = np.frexp(size)
    whole = np.ldexp(fraction, 24).astype(np.int64)  # float32 has 24 bits
    zeros = np.log2((whole & -whole).astype(np.float64)).astype(np.int64)
    lowest = zeros + exponent - 24  # the exponent of each element's last bit that is 1
    unit = float(np.ldexp(1.0, int(lowest.min())))
    # Half of all multiples of a unit are odd, of large elements as of small ones.
    fills = (lowest[size >= np.median(size)] <= lowest.min() + 1).any()
    is_grid = unit <= largest and int(zeros.sum()) >= BITS and fills
    return unit if is_grid and float(size.max()) >= spread * unit else 0.0
