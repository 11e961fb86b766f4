"""The bits of a float, and the elements of an array in cache-sized blocks.

Every float type is scanned as float32 or float64: narrower ones convert exactly, block by block,
and complex numbers are scanned as their parts.
"""

from __future__ import annotations

import struct
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from anchorlib import dtypes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anchorlib.dtypes import DType

__all__ = [
    "BLOCK",
    "CHUNK",
    "DOUBLE",
    "SCRATCH",
    "SINGLE",
    "BitLayout",
    "blocks",
    "elements",
    "layout_of",
    "parts",
]

BLOCK = 1 << 16
"""The most elements of a block: a few arrays of this size fit into the second-level cache."""

CHUNK = 1 << 18
"""The most elements of a chunk, a larger block, in which exponents are counted in pairs."""


@dataclass(frozen=True, slots=True)
class BitLayout:
    """The bit layout of an IEEE binary format: sign, exponent field, mantissa.

    floating, unsigned, signed: the numpy dtypes of its width.
    mantissa: bits of the mantissa.
    bias: the exponent field of 1.0; a normal value's exponent is its field less the bias.
    fields: how many values the exponent field has (0: zero or subnormal, the last: inf or nan).
    infinity: the pattern of +inf. sign: the pattern of -0.0.
    """

    floating: np.dtype[Any]
    unsigned: np.dtype[Any]
    signed: np.dtype[Any]
    mantissa: int
    bias: int
    fields: int
    infinity: int
    sign: int

    @property
    def lowest_exponent(self) -> int:
        """The exponent of the smallest subnormal number, which is 2**lowest_exponent."""
        return 1 - self.bias - self.mantissa

    def value(self, pattern: int) -> float:
        """Return the float that has these bits, also in a thread that flushes subnormals."""
        if self.mantissa == DOUBLE.mantissa:
            return float(struct.unpack("<d", struct.pack("<Q", pattern))[0])
        magnitude = pattern & (self.sign - 1)
        if magnitude >> self.mantissa:
            return float(struct.unpack("<f", struct.pack("<I", pattern))[0])
        return magnitude * 2.0**self.lowest_exponent * (-1.0 if pattern & self.sign else 1.0)

    def ordered(self, number: int) -> float:
        """Return the float with this number, where all floats are numbered in ascending order.

        0.0 has the number 0, and -0.0 has -1.
        """
        return self.value(number if number >= 0 else self.sign - 1 - number)


def _layout(bits: int, mantissa: int) -> BitLayout:
    floating, unsigned, signed = (np.dtype(f"<{code}{bits // 8}") for code in "fui")
    fields = 1 << (bits - 1 - mantissa)
    infinity = (fields - 1) << mantissa
    return BitLayout(
        floating, unsigned, signed, mantissa, fields // 2 - 1, fields, infinity, 1 << (bits - 1)
    )


SINGLE = _layout(32, 23)
DOUBLE = _layout(64, 52)


class _Scratch(threading.local):
    """Scratch buffers of each thread: two of BLOCK elements, and one for CHUNK / 2 pairs of floats.

    New buffers for each block can cost more than the arithmetic: the allocator returns their pages
    to the system each time, and the system clears them again (float16: 2.6 times slower).
    """

    def __init__(self) -> None:
        self.single = np.empty(BLOCK, "<f4")
        self.double = np.empty(BLOCK, "<f8")
        self.pairs = np.empty(CHUNK // 2, "<u8")


SCRATCH = _Scratch()

_REAL = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}


def layout_of(kind: DType) -> BitLayout | None:
    """Return the bit layout in which elements of this type are scanned: float32's or float64's.

    Returns None for integers and bool.
    """
    if kind.family in ("int", "bool"):
        return None
    return DOUBLE if kind.name in ("float64", "complex128") else SINGLE


def parts(raw: np.ndarray[Any, Any], kind: DType) -> tuple[np.ndarray[Any, Any], DType]:
    """Return (the elements of a storage array, contiguous in one dimension; their element type).

    Complex elements become two each, the real and the imaginary part, with the type of these.
    """
    flat = np.ascontiguousarray(raw).reshape(-1)
    if kind.family != "complex":
        return flat, kind
    real = dtypes.DTYPES[_REAL[kind.name]]
    return flat.view(real.storage), real


def elements(block: np.ndarray[Any, Any], kind: DType) -> np.ndarray[Any, Any]:
    """Convert a piece of an array to float32, float64, or integers (True becomes 1).

    block, kind: at most BLOCK elements of an array that `parts` has returned, and their type.
    The result may lie in `SCRATCH.single`: it is valid only until the next piece is converted.
    """
    if kind.family == "bool":
        truth: np.ndarray[Any, Any] = block.view(np.uint8) != 0  # any byte but 0 means True
        return truth.view(np.uint8)
    if kind.family == "int" or kind.name == "float32":
        return block
    values = SCRATCH.single[: block.size]
    if kind.name == "float16":
        np.copyto(values, block)  # its subnormals are normal in float32: nothing to flush
        return values
    return dtypes.decode(block, kind.name, out=values)


def blocks(flat: np.ndarray[Any, Any], size: int | None = None) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the one-dimensional array `flat` in pieces of at most `size` elements (None: BLOCK)."""
    size = size or BLOCK
    for start in range(0, flat.size, size):
        yield flat[start : start + size]
