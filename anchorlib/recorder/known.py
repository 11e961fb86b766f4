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
        self._streams = 0
        self.tables = Tables(self._series.keys, self._layouts, self._sizes, self._phases.keys)

    def define(self, told: Mapping[str, Any]) -> bool:
        """Take a definition up; whether `told` was one."""
        if "stream" in told:
            self._stream(*told["stream"])
        elif "layout" in told:
            self._layout(*told["layout"])
        else:
            return False
        return True

    def _stream(self, name: str, kind: str, mode: str, phase: str, keeps: bool) -> None:  # noqa: FBT001  # a field of JSON
        if self._streams == self._of_streams.shape[1]:
            self._of_streams = np.concatenate([self._of_streams] * 2, axis=1)
        series = self._series.of((name, kind, mode))
        self._of_streams[:, self._streams] = series, self._phases.of(phase), keeps
        self._streams += 1

    def _layout(self, dtype: str, shape: list[int]) -> None:
        nbytes = layout_bytes(dtype, tuple(shape))
        self._layouts.append((dtype, tuple(shape)))
        self._sizes.append(nbytes)
        self.counted.append((dtype, nbytes // dtypes.dtype(dtype).storage.itemsize))

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
