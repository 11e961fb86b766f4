"""Emitted records as a block of columns: what the drain thread hands to a sink.

No object is made of a record: its fields become entries of columns, and its values are summarised
together with those of the others.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

import numpy as np

from anchorlib import dtypes
from anchorlib.block import Buffer, RowBlock, Tables, layout_bytes, payloads_of
from anchorlib.capture.emitted import Emitted
from anchorlib.capture.snapshot import Snapshot, dtype_name
from anchorlib.capture.streams import NO_NOTE, Note
from anchorlib.summary import figures_of

__all__ = ["Blocks"]

K = TypeVar("K", bound=Hashable)


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


class Blocks:
    """Makes the blocks of one session; they share tables, which grow. One thread calls it."""

    def __init__(self) -> None:
        self._series: Numbers[tuple[str, str, str]] = Numbers()
        self._layouts: Numbers[tuple[str, tuple[int, ...]]] = Numbers()
        self._phases: Numbers[str] = Numbers()
        self._sizes: list[int] = []  # of each layout, in bytes
        self._counted: list[tuple[str, int]] = []  # of each layout: dtype and elements
        self._tables = Tables(self._series.keys, self._layouts.keys, self._sizes, self._phases.keys)

    def __call__(self, items: Sequence[Emitted]) -> RowBlock:
        """The block of these records, in order. Raises what reading their values raises."""
        streams, ats, orders, times, _, _, _, notes, folded = zip(*items, strict=True)
        steps, passes, calls, phases = zip(*ats, strict=True)
        values = [_bytes_of(item) for item in items]
        layout = np.array([self._layout(item) for item in items], np.int64)
        series = [self._series.of((s.name, s.kind, s.mode)) for s in streams]
        phase = [self._phases.of(name) for name in phases]
        figures = figures_of(values, layout, self._counted)
        kept = [stream.values for stream in streams]
        flags, scale = _notes(notes)
        return RowBlock(
            self._tables,
            {
                "series": np.array(series, np.int64),
                "layout": layout,
                "phase": np.array(phase, np.int64),
                "step": np.array(steps, np.int64),
                "pass_index": np.array(passes, np.int64),
                "call": np.array(calls, np.int64),
                "order": np.array(orders, np.int64),
                "time_ns": np.array(times, np.int64),
                "count": np.array(folded, np.uint64),
                "flags": flags,
                "scale": scale,
                **figures.columns,
            },
            figures.digest,
            np.array(kept, bool),
            *payloads_of([one if keeps else None for one, keeps in zip(values, kept, strict=True)]),
            figures.exponents,
            figures.elements,
        )

    def _layout(self, item: Emitted) -> int:
        kept = item.kept
        if isinstance(kept, Snapshot):
            dtype, shape = kept.tensor.dtype, kept.tensor.shape
        else:
            _, dtype, shape, _ = kept
        number = self._layouts.of((dtype_name(dtype), shape))
        if number == len(self._sizes):
            nbytes = layout_bytes(dtype_name(dtype), shape)
            self._sizes.append(nbytes)
            itemsize = dtypes.dtype(dtype_name(dtype)).storage.itemsize
            self._counted.append((dtype_name(dtype), nbytes // itemsize))
        return number


def _bytes_of(item: Emitted) -> Buffer:
    """The raw storage of a record, C order; it shares the snapshot's memory."""
    kept = item.kept
    if not isinstance(kept, Snapshot):
        memory = kept[0]
        return memory if isinstance(memory, bytes) else memory.numpy()[: kept[3]].data
    return np.ascontiguousarray(kept.raw()).reshape(-1).view(np.uint8).data


def _notes(notes: Sequence[Note]) -> tuple[np.ndarray, np.ndarray]:
    """The columns flags and scale."""
    flags, scale = np.zeros(len(notes), np.uint32), np.ones(len(notes))
    for place, note in enumerate(notes):
        if note is not NO_NOTE:
            scale[place], flags[place] = note.read()
    return flags, scale
