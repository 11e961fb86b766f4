"""What the numbers of streams and layouts in the ring's slots mean, as the trainer defined them.

A stream is one series (name, kind, mode) in one phase; a layout is a dtype and a shape.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from anchorlib import dtypes
from anchorlib.block import Tables, layout_bytes

__all__ = ["Definitions"]

Array: TypeAlias = np.ndarray[Any, Any]
K = TypeVar("K", bound=Hashable)

_FIRST = 64  # the first size of an array, which doubles when it is full


class KeyNumbers(Generic[K]):
    """Numbers distinct keys from 0 on, in order of first use; `keys` lists them in that order."""

    def __init__(self) -> None:
        self.keys: list[K] = []
        self._numbers: dict[K, int] = {}

    def of(self, key: K) -> int:
        """Return the number of `key`; a key that is new gets the next number."""
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.keys)
            self.keys.append(key)
        return number


class Definitions:
    """The definitions of streams and layouts so far, as arrays indexed by their numbers.

    A stream is one series (name, kind, mode) in one phase; a layout is a dtype and a shape. With
    arrays, a whole batch of slots is looked up at once.

    series, phase: for each stream, the indices of its series and of its phase in `tables`.
    keeps: for each stream, whether its mode stores values, and not their summaries alone.
    counted: for each layout, (dtype, number of elements).
    tables: the distinct series and phases, and for each layout its dtype, shape and bytes.
    """

    def __init__(self) -> None:
        self._series: KeyNumbers[tuple[str, str, str]] = KeyNumbers()
        self._phases: KeyNumbers[str] = KeyNumbers()
        self._layouts: list[tuple[str, tuple[int, ...]]] = []
        self._sizes: list[int] = []
        self.counted: list[tuple[str, int]] = []
        self._of_streams = np.zeros((3, _FIRST), np.int64)
        self.tables = Tables(self._series.keys, self._layouts, self._sizes, self._phases.keys)

    def define(self, definition: Mapping[str, Any]) -> bool:
        """Add a definition of a stream or layout; return whether `definition` was one.

        Nothing is done for a statement, such as a gap.

        definition: parsed JSON from the ring: a definition or a statement.
        """
        if "stream" in definition:
            *key, keeps = definition["stream"]
            self._stream(*key, keeps=keeps)
        elif "layout" in definition:
            self._layout(*definition["layout"])
        else:
            return False
        return True

    # A number may be defined twice: an exception, as Ctrl-C, can come after the trainer has placed
    # the first definition and before it has noted that. No record has the number by then.

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
        """The index in `tables.series` of each stream's series, as an array by stream number.

        A stream is one series (name, kind, mode) in one phase.
        """
        column: Array = self._of_streams[0]
        return column

    @property
    def phase(self) -> Array:
        """The index in `tables.phases` of each stream's phase, as an array by stream number.

        A stream is one series (name, kind, mode) in one phase.
        """
        column: Array = self._of_streams[1]
        return column

    @property
    def keeps(self) -> Array:
        """Whether a stream's mode stores values (else summaries alone): bool, by stream number.

        A stream is one series (name, kind, mode) in one phase.
        """
        column: Array = self._of_streams[2].astype(bool)
        return column
