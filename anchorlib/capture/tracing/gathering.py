"""Copies a tensor's values into row-major order where they lie in another, as after a transpose.

numpy copies into memory that is used for one copy after another: a torch operation would allocate
memory for each copy and touch it first, which costs several times as much as the copy.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["CopyMemory", "Gathering"]

_LISTED: Final = (16, 32)
"""Element sizes for which numpy copies faster by a list of positions than by strides.

For these sizes numpy copies an element with two or four instructions from a list, and with a
function call by strides.
"""
_LISTED_BYTES: Final = 1 << 18
"""Bytes of values up to which their positions are listed; the list has at most half that size."""

_KEPT: Final = 1 << 22
"""Bytes of memory that are kept for the next copy; a larger copy gets memory of its own."""


class Gathering:
    """Copies the values of tensors of one layout into memory, in their logical (row-major) order.

    Values that lie one after another along the last dimensions are copied as one element.

    shape, stride: the tensor's shape and strides, in elements. itemsize: the bytes of an element.
    """

    __slots__ = ("_dtype", "_listed", "_run", "_shape", "_strides")

    def __init__(self, shape: Sequence[int], stride: Sequence[int], itemsize: int) -> None:
        run = itemsize
        left = [(n, step * itemsize) for n, step in zip(shape, stride, strict=True) if n != 1]
        while left and left[-1][1] == run:
            run *= left.pop()[0]
        self._shape = tuple(n for n, _ in left)
        self._strides = tuple(step for _, step in left)
        self._run = run
        self._dtype = np.dtype(f"u{run}" if run in (1, 2, 4, 8) else f"V{run}")
        nbytes = run * prod(self._shape)
        whole = not any(step % run for step in self._strides)
        self._listed = run in _LISTED and nbytes <= _LISTED_BYTES and whole

    def read(self, memory: Any, into: npt.NDArray[np.uint8]) -> None:
        """Copy the values in `memory` to `into`, in row-major order.

        memory: the memory of a tensor of this layout, from its first value to its last. into: an
            array of as many bytes as the values have.
        """
        if self._listed:
            places = _places(self._shape, self._strides, self._run)
            elements = np.ndarray(len(memory) // self._run, self._dtype, memory)
            # Any mode but the default copies into `out` at once; no place lies outside.
            elements.take(places, out=np.ndarray(len(places), self._dtype, into), mode="clip")
            return
        there = np.ndarray(self._shape, self._dtype, memory, 0, self._strides)
        np.copyto(np.ndarray(self._shape, self._dtype, into), there)


@lru_cache(maxsize=128)
def _places(shape: tuple[int, ...], strides: tuple[int, ...], run: int) -> npt.NDArray[np.intp]:
    """Return the position in memory of each element, in row-major order, as a 1-d array.

    Positions are counted in elements of `run` bytes, from the first value on. Results are cached
    for the layouts that were read last, since a step reads the same layouts again and again.

    shape: the number of elements along each dimension. strides: in bytes. run: the bytes of an
        element, which may be several values.
    """
    places = np.zeros(1, np.intp)
    for n, step in zip(shape, strides, strict=True):
        places = np.add.outer(places, np.arange(n, dtype=np.intp) * (step // run)).ravel()
    return places


class CopyMemory:
    """A buffer in which one copy after another is made, by one thread at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._memory = np.empty(0, np.uint8)

    def of(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return `nbytes` bytes of the buffer, which the caller may use while it holds `lock`.

        The caller has to take `lock` before the call. More than 4 MiB are not kept as the buffer:
        they are new memory at each call.
        """
        if nbytes > len(self._memory):
            if nbytes > _KEPT:
                return np.empty(nbytes, np.uint8)
            self._memory = np.empty(nbytes, np.uint8)
        return self._memory[:nbytes]
