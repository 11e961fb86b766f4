"""Parts that are joined become what one tensor would have held, to the last bit."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from anchorlib import dtypes
from anchorlib.diagnosis.pairing.splits.groups import RowGroup
from anchorlib.diagnosis.pairing.splits.joined_values import joined
from tests.anchorlib.diagnosis.tables import table
from tests.anchorlib.store.records import record


def summed(parts, dtype, factor=1.0):
    records = [
        record(f"x{number}", 0, part, kind="grad", dtype=dtype, order=number)
        for number, part in enumerate(parts)
    ]
    group = RowGroup(tuple(range(len(parts))), -1, "summed", factor=factor)
    return joined(table(records), group)


def bfloat16(number: float) -> np.ndarray:
    """A number that bfloat16 holds, as it is stored."""
    return (np.array([number], "<f4").view("<u4") >> 16).astype("<u2")


NEAR = st.integers(0x3000, 0x4300)
"""The bits of numbers that float64 can add without rounding, mostly."""
HELD = (NEAR | st.integers(0, 0x40)).map(lambda bits: np.array([bits], "<u2"))


@pytest.mark.slow
@given(HELD, HELD, HELD)
def test_a_sum_of_bfloat16_is_the_number_of_bfloat16_that_is_nearest(one, two, three):
    found = summed([one, two, three], "bfloat16")
    parts = [dtypes.decode(part, "bfloat16").item() for part in (one, two, three)]
    assume(max(parts) < 2.0**100)
    assume(max(parts) <= 2.0**40 * min(filter(None, parts), default=1.0))  # exact in float64
    exact = sum(map(Fraction, parts))
    near = [np.array([int(found[0]) + step], "<u2") for step in (-1, 0, 1) if found[0] or step >= 0]
    off = [abs(Fraction(dtypes.decode(bits, "bfloat16").item()) - exact) for bits in near]
    own = off[len(near) - 2]
    assert own == min(off)
    assert off.count(own) == 1 or not found[0] & 1, "of two that are as near, the even one"


def test_a_sum_is_rounded_once():
    parts = [bfloat16(1.0), bfloat16(2.0**-8), bfloat16(2.0**-40)]
    assert summed(parts, "bfloat16") == bfloat16(1 + 2.0**-7)


def test_a_sum_that_is_too_large_for_bfloat16_is_infinite():
    largest = np.array([0x7F7F], "<u2")
    assert summed([largest, largest], "bfloat16") == bfloat16(np.inf)


@pytest.mark.parametrize(
    ("parts", "factor", "found"),
    [((2**60, 1), 1.0, 2**60 + 1), ((2**61, 5), 1 / 3, (2**61 + 5 + 1) // 3), ((5, 6), 0.25, 3)],
)
def test_no_bit_of_a_sum_of_integers_is_lost(parts, factor, found):
    assert summed([np.array([part]) for part in parts], "int64", factor) == found
