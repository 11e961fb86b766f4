"""Copies values that are scattered over memory, as those of a transposed tensor, into their order.

numpy copies them out of the memory as it lies: an operation of torch's would take and first touch
new memory for each copy, which costs several times as much as the copy.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["CopyMemory", "Gathering"]

_KEPT: Final = 1 << 22
"""Bytes of memory that are kept for the next copy; larger values get memory of their own."""


class Gathering:
    """How the values of one layout are read in their order.

    Values that lie one after another along the last dimensions are copied as one element.

    shape, stride: of the tensor, in elements. itemsize: bytes of an element.
    """

    __slots__ = ("_dtype", "_shape", "_strides")

    def __init__(self, shape: Sequence[int], stride: Sequence[int], itemsize: int) -> None:
        run = itemsize
        left = [(n, step * itemsize) for n, step in zip(shape, stride, strict=True) if n != 1]
        while left and left[-1][1] == run:
            run *= left.pop()[0]
        self._shape = tuple(n for n, _ in left)
        self._strides = tuple(step for _, step in left)
        self._dtype = np.dtype(f"u{run}" if run in (1, 2, 4, 8) else f"V{run}")

    def read(self, memory: Any, into: npt.NDArray[np.uint8]) -> None:
        """Copy the values in `memory`, from the first to the last, to as many bytes."""
        there = np.ndarray(self._shape, self._dtype, memory, 0, self._strides)
        np.copyto(np.ndarray(self._shape, self._dtype, into), there)


class CopyMemory:
    """Memory that one copy after another is made in, by one thread at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._memory = np.empty(0, np.uint8)

    def of(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """`nbytes` bytes of memory, for as long as the caller holds `lock`."""
        if nbytes > len(self._memory):
            if nbytes > _KEPT:
                return np.empty(nbytes, np.uint8)
            self._memory = np.empty(nbytes, np.uint8)
        return self._memory[:nbytes]
