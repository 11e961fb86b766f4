"""Hypothesis strategies for what travels the line: element types and storage arrays.

They favour what breaks things: 0-d and empty shapes, zeros of both signs, subnormals, values just
under and at powers of two, infinities, every kind of NaN, the ends of the integers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from anchorlib.dtypes import DTYPES, DType

if TYPE_CHECKING:
    from collections.abc import Sequence

PART = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
"""The type of a complex type's real and imaginary part."""


def dtype_names(*families: str) -> st.SearchStrategy[str]:
    """Names of element types, of all families or of the given ones."""
    return st.sampled_from(
        [k.name for k in DTYPES.values() if not families or k.family in families]
    )


def shapes(max_side: int = 4) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of up to three dimensions: (), (0,), (2, 0, 3), (3, 4), …."""
    usual = hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=max_side)
    return st.one_of(usual, usual, st.sampled_from([(), (0,), (1,), (13,), (2, 0, 3), (1, 1, 1)]))


def patterns(name: str) -> st.SearchStrategy[int]:
    """Bit patterns of one element (of one part of a complex one)."""
    kind = DTYPES[PART.get(name, name)]
    if kind.family == "bool":
        return st.integers(0, 1)
    width = 8 * kind.storage.itemsize
    edges = st.builds(
        lambda power, offset, sign: (sign * (1 << power) + offset) % (1 << width),
        st.integers(0, width - 1),
        st.integers(-1, 1),
        st.sampled_from([1, -1]),
    )
    if kind.family == "float":
        # Where the exponent field changes: all zeros, limits, infinities and their neighbours.
        step = 1 << mantissa_bits(kind)
        edges = st.builds(
            lambda field, offset: (field * step + offset) % (1 << width),
            st.integers(0, (1 << width) // step - 1),
            st.integers(-1, 1),
        )
    return st.one_of(edges, edges, st.integers(0, (1 << width) - 1))


def mantissa_bits(kind: DType) -> int:
    """Bits of the mantissa of a float type."""
    assert kind.eps is not None
    return -(math.frexp(kind.eps)[1] - 1)


@st.composite
def storage_arrays(
    draw: st.DrawFn,
    name: str,
    shape: st.SearchStrategy[tuple[int, ...]] | tuple[int, ...] | None = None,
) -> np.ndarray[Any, Any]:
    """Storage arrays of one element type: contiguous, of the shapes drawn from `shape`."""
    dims = shapes() if shape is None else shape
    dims = dims if isinstance(dims, tuple) else draw(dims)
    parts = 2 if name in PART else 1
    size = math.prod(dims) * parts
    drawn = draw(st.lists(patterns(name), min_size=size, max_size=size))
    return from_patterns(drawn, name).reshape(dims)


@st.composite
def stored(
    draw: st.DrawFn,
    names: st.SearchStrategy[str] | None = None,
    shape: st.SearchStrategy[tuple[int, ...]] | tuple[int, ...] | None = None,
) -> tuple[np.ndarray[Any, Any], str]:
    """A storage array of any element type, and the name of the type."""
    name = draw(dtype_names() if names is None else names)
    return draw(storage_arrays(name, shape)), name


def from_patterns(patterns: Sequence[int], name: str) -> np.ndarray[Any, Any]:
    """The storage array of one dimension with these bits; two patterns for a complex element."""
    part = DTYPES[PART.get(name, name)].storage
    bits = np.array(patterns, dtype=f"<u{part.itemsize}")
    return bits.view(DTYPES[name].storage)
