"""What numbers in slots stand for: streams and layouts, as the trainer defined them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from anchorlib import dtypes
from anchorlib.block import Tables, layout_bytes

__all__ = ["Known"]

Array: TypeAlias = np.ndarray[Any, Any]
K = TypeVar("K", bound=Hashable)

_FIRST = 64  # entries that an array of numbers begins with


class Numbers(Generic[K]):
    """Numbers from 0 for keys, in the order in which they came; `keys` has them in that order."""

    def __init__(self) -> None:
        self.keys: list[K] = []
        self._numbers: dict[K, int] = {}

    def of(self, key: K) -> int:
        """The number of `key`."""
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.keys)
            self.keys.append(key)
        return number


class Known:
    """Definitions so far, as arrays that a batch of slots indexes.

    series, phase: of each stream, its numbers in `tables`. keeps: whether its mode keeps values.
    counted: of each layout, dtype and elements.
    """

    def __init__(self) -> None:
        self._series: Numbers[tuple[str, str, str]] = Numbers()
        self._phases: Numbers[str] = Numbers()
        self._layouts: list[tuple[str, tuple[int, ...]]] = []
        self._sizes: list[int] = []
        self.counted: list[tuple[str, int]] = []
        self._of_streams = np.zeros((3, _FIRST), np.int64)
        self.tables = Tables(self._series.keys, self._layouts, self._sizes, self._phases.keys)

    def define(self, told: Mapping[str, Any]) -> bool:
        """Take a definition up; whether `told` was one."""
        if "stream" in told:
            *key, keeps = told["stream"]
            self._stream(*key, keeps=keeps)
        elif "layout" in told:
            self._layout(*told["layout"])
        else:
            return False
        return True

    # A number may be defined twice: an exception, as Ctrl-C is one, can end the first definition of
    # a trainer between the ring and its books. No record has that number then.

    def _stream(self, number: int, *key: str, keeps: bool) -> None:
        name, kind, mode, phase = key
        if number >= self._of_streams.shape[1]:
            self._of_streams = np.concatenate([self._of_streams] * 2, axis=1)
        series = self._series.of((name, kind, mode))
        self._of_streams[:, number] = series, self._phases.of(phase), keeps

    def _layout(self, number: int, dtype: str, shape: list[int]) -> None:
        nbytes = layout_bytes(dtype, tuple(shape))
        elements = nbytes // dtypes.dtype(dtype).storage.itemsize
        only = slice(number, number + 1)
        self._layouts[only] = [(dtype, tuple(shape))]
        self._sizes[only] = [nbytes]
        self.counted[only] = [(dtype, elements)]

    @property
    def series(self) -> Array:
        """Of each stream, the number of its series."""
        column: Array = self._of_streams[0]
        return column

    @property
    def phase(self) -> Array:
        """Of each stream, the number of its phase."""
        column: Array = self._of_streams[1]
        return column

    @property
    def keeps(self) -> Array:
        """Of each stream, whether its mode keeps values."""
        column: Array = self._of_streams[2].astype(bool)
        return column
