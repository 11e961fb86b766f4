"""A second computation of a summary's figures: Python floats, `math.frexp` and fractions.

Slow, obvious, and without a line of anchorlib's. Call it where subnormals are not flushed.
"""

from __future__ import annotations

import contextlib
import math
import struct
from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import torch

from tests.strategies import PART

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SMALLEST_NORMAL = {
    "float16": 2.0**-14,
    "bfloat16": 2.0**-126,
    "float32": 2.0**-126,
    "float64": 2.0**-1022,
    "float8_e4m3fn": 2.0**-6,
    "float8_e4m3fnuz": 2.0**-7,
    "float8_e5m2": 2.0**-14,
    "float8_e5m2fnuz": 2.0**-15,
    "float8_e8m0fnu": 2.0**-127,
}


@contextlib.contextmanager
def flushing(flush: bool) -> Iterator[None]:
    """Make this thread flush subnormals inside the context, or not."""
    torch.set_flush_denormal(flush)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def numbers(raw: np.ndarray[Any, Any], name: str) -> list[Any]:
    """The elements as Python numbers, in C order; complex ones as their two parts."""
    name = PART.get(name, name)
    data = raw.tobytes()
    if name == "bfloat16":
        widened = (bytes((0, 0)) + data[i : i + 2] for i in range(0, len(data), 2))
        return [struct.unpack("<f", four)[0] for four in widened]
    if name.startswith("float8"):
        return list(np.frombuffer(data, getattr(ml_dtypes, name)).astype(float).tolist())
    code = {"float16": "e", "float32": "f", "float64": "d", "bool": "?"}.get(name)
    if code is None:
        code = dict(zip((1, 2, 4, 8), "bhiq", strict=True))[raw.dtype.itemsize]
        code = code.upper() if name.startswith("u") else code
    return [value for (value,) in struct.iter_unpack(f"<{code}", data)]


def histogram(values: Sequence[Any], name: str) -> dict[str, Any]:
    """What `Log2Histogram` should say: bins, zero, nan, inf, subnormal."""
    finite = [value for value in values if math.isfinite(value) and value != 0]
    limit = SMALLEST_NORMAL.get(PART.get(name, name), 0)
    return {
        "bins": dict(sorted(Counter(map(exponent, finite)).items())),
        "zero": sum(value == 0 for value in values),
        "nan": sum(math.isnan(value) for value in values),
        "inf": sum(math.isinf(value) for value in values),
        "subnormal": sum(abs(value) < limit for value in finite),
    }


def exponent(value: float) -> int:
    """floor(log2(|value|))."""
    if isinstance(value, int):
        return abs(value).bit_length() - 1
    return math.frexp(value)[1] - 1


def sum_and_l2(values: Sequence[Any]) -> tuple[Fraction, Fraction, float]:
    """The sum and the sum of |x| (which bounds its error), exactly, and the L2 norm."""
    exact = [Fraction(value) for value in values]
    return (
        sum(exact, Fraction(0)),
        sum(map(abs, exact), Fraction(0)),
        root(sum((value * value for value in exact), Fraction(0))),
    )


def root(square: Fraction) -> float:
    """The square root, to 100 bits and more; beyond float64's range: inf."""
    if not square:
        return 0.0
    shift = max(0, 200 - square.numerator.bit_length() + square.denominator.bit_length())
    shift += shift % 2
    whole = math.isqrt(math.floor(square * 2**shift))
    try:
        return float(Fraction(whole, 2 ** (shift // 2)))
    except OverflowError:
        return math.inf
