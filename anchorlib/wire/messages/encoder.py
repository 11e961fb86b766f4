"""Encodes blocks of records as frames, messages that each carry some records.

One `Encoder` numbers the records of one writer, and defines each series, layout and phase once, in
messages of their own. Frames are finished bytes: they can be sent, kept, and sent again on another
stream, after the definitions that they refer to.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np

from anchorlib.block import RowBlock
from anchorlib.wire.limits import FRAME_BYTES
from anchorlib.wire.messages.checksum import sealed
from anchorlib.wire.messages.framing import Buffer, join
from anchorlib.wire.v1.collector_pb2 import (
    Columns,
    Define,
    Fragment,
    Frame,
    Layout,
    PushRequest,
    Series,
)

__all__ = ["EncodedFrame", "Encoder", "frame_weights"]

_ROW_BYTES = 128  # about what a row's columns take, without its histogram
_BIN_BYTES = 5  # of one histogram bin
_DEFINE_BYTES = 1 << 19
# The most frames' worth of a record that travels in one message: a collector writes such values
# from the memory in which they arrived, while fragments have to be copied together first.
_WHOLE_FRAMES = 4

_ALWAYS: Final = ("step", "order", "time_ns", "min", "max", "sum", "l2")
_DEFAULTS: Final[dict[str, float]] = {
    **dict.fromkeys(("pass_index", "call", "flags", "zero", "nan", "inf", "subnormal", "bins"), 0),
    **dict.fromkeys(("count", "scale"), 1),
}

Array: TypeAlias = np.ndarray[Any, Any]
K = TypeVar("K", bound=Hashable)


class EncodedFrame(NamedTuple):
    """One frame, ready to be sent: a serialised message with records.

    Before the frame, a stream has to send the first `definitions` entries of `Encoder.definitions`.

    parts: the bytes of the PushRequest, in parts, some of which may be views of records' arrays.
    end: one more than the number of the last record of which the frame has a row or values.
    """

    parts: tuple[Buffer, ...]
    end: int
    definitions: int

    @property
    def message(self) -> bytes:
        """The message as one bytes object; a message of several parts is copied into it."""
        first = self.parts[0]
        return first if len(self.parts) == 1 and isinstance(first, bytes) else b"".join(self.parts)

    @property
    def nbytes(self) -> int:
        """How many bytes the frame's message has."""
        return sum(map(len, self.parts))

    def joined(self) -> EncodedFrame:
        """Return a copy of this frame that does not share memory with the records' arrays."""
        return self._replace(parts=(self.message,))


class Encoder:
    """Turns blocks of records into frames of at most about `frame_bytes` each, in order.

    A record that takes more has a frame of its own, and a record whose values take more than four
    times `frame_bytes` is sent in fragments, that is, in several frames. Only one thread at a time
    may use an encoder.

    first: the number that the first record gets; later records are numbered on from there.

    definitions: PushRequests that the caller has to send, in order, on every new stream.
    sequence: the number that the next record gets.
    """

    def __init__(self, *, first: int = 0, frame_bytes: int = FRAME_BYTES) -> None:
        self.sequence = first
        self.definitions: list[bytes] = []
        self._frame_bytes = frame_bytes
        self._known: dict[str, dict[Any, int]] = {"series": {}, "layout": {}, "phase": {}}
        self._new = Define()
        self._new_bytes = 0

    def encode(self, block: RowBlock) -> Iterator[EncodedFrame]:
        """Yield the frames (messages with records) that carry the records of `block`, in order.

        Large values are not copied: send each frame, or take its `joined` copy, before the
        memory of the values is used again.
        """
        sizes = block.sizes
        bounds = self._bounds(frame_weights(block))
        for first, part in zip(bounds, block.cut(bounds), strict=False):
            if int(sizes[first]) > _WHOLE_FRAMES * self._frame_bytes:
                yield from self._fragments(part)
            else:
                yield self._frame(part)

    def _bounds(self, weights: Array) -> list[int]:
        """Return the indices of the rows at which frames begin, and last the number of rows.

        A row that takes more than `frame_bytes` is alone in its frame.

        weights: about how many bytes each row takes in a message, values included.
        """
        ends = np.cumsum(weights)
        bounds, first = [0], 0
        while first < len(ends):
            before = int(ends[first - 1]) if first else 0
            last = int(np.searchsorted(ends, before + self._frame_bytes, "right"))
            first = max(last, first + 1)
            bounds.append(first)
        return bounds

    def _frame(self, part: RowBlock) -> EncodedFrame:
        head = Frame(first=self.sequence, columns=self._columns(part))
        self.sequence += len(part)
        return self._encoded(join(head.SerializeToString(), part.values()))

    def _fragments(self, part: RowBlock) -> Iterator[EncodedFrame]:
        """Yield the frames of one large record, each with a fragment (a part) of its values.

        The record's row is in the first frame alone.
        """
        columns: Columns | None = self._columns(part)
        (storage,) = part.values()
        number, self.sequence = self.sequence, self.sequence + 1
        view = memoryview(storage)
        for offset in range(0, len(view), self._frame_bytes):
            fragment = Fragment(offset=offset, total=len(view))
            head = Frame(first=number, columns=columns, fragment=fragment)
            piece = view[offset : offset + self._frame_bytes]
            yield self._encoded(join(head.SerializeToString(), [piece]))
            columns = None

    def _encoded(self, parts: tuple[Buffer, ...]) -> EncodedFrame:
        self._define()
        return EncodedFrame(parts, self.sequence, len(self.definitions))

    def _define(self) -> None:
        if self._new_bytes:
            self.definitions.append(sealed(PushRequest(define=self._new)))
            self._new, self._new_bytes = Define(), 0

    def _number(self, table: dict[K, int], key: K, define: Callable[[K], int]) -> int:
        """Return the number of `key` in `table`; a missing key is added with the next number.

        For a missing key calls `define`, which adds the key's definition to the next definition
        message, and returns about how many bytes the definition takes there.

        table: the series, layouts or phases that are defined so far, each with its number.
        """
        number = table.get(key)
        if number is None:
            self._new_bytes += define(key)
            number = table[key] = len(table)
            if self._new_bytes > _DEFINE_BYTES:
                self._define()
        return number

    def _define_series(self, key: tuple[str, str, str]) -> int:
        series = Series(name=key[0], kind=key[1], mode=key[2])
        self._new.series.append(series)
        return series.ByteSize() + 8

    def _define_layout(self, key: tuple[str, tuple[int, ...]]) -> int:
        layout = Layout(dtype=key[0], shape=key[1])
        self._new.layouts.append(layout)
        return layout.ByteSize() + 8

    def _define_phase(self, phase: str) -> int:
        self._new.phases.append(phase)
        return len(phase.encode()) + 8

    def _columns(self, part: RowBlock) -> Columns:
        """Return the rows of `part` as the columns of a message with records.

        A column that has a default is left empty where all its entries have the default's value.
        """
        columns, tables = part.columns, part.tables
        numbered = self._numbered
        return Columns(
            series=numbered("series", tables.series, columns, self._define_series),
            layout=numbered("layout", tables.layouts, columns, self._define_layout),
            phase=_unless(
                np.array(numbered("phase", tables.phases, columns, self._define_phase)), 0
            ),
            summary_only=_unless(~part.kept, False),  # the column's default
            digest=part.digest.astype(">u8").tobytes(),
            exponent=part.exponents.tolist(),
            elements=part.elements.tolist(),
            **{name: columns[name].tolist() for name in _ALWAYS},
            **{name: _unless(columns[name], default) for name, default in _DEFAULTS.items()},
        )

    def _numbered(
        self,
        name: str,
        table: Sequence[K],
        columns: Mapping[str, Array],
        define: Callable[[K], int],
    ) -> list[int]:
        """Convert a column of indices into the block's `table` to indices into the encoder's table.

        name: the column: "series", "layout" or "phase". columns: all columns of the block, by name.
        define: as in `_number`; called with each entry that the encoder's table does not have yet.
        """
        used, places = np.unique(columns[name], return_inverse=True)
        known = self._known[name]
        numbers = [self._number(known, table[number], define) for number in used.tolist()]
        return [numbers[place] for place in places.tolist()]


def frame_weights(block: RowBlock) -> Array:
    """Return about how many bytes each record of `block` takes in a message, as an array."""
    weights: Array = block.sizes + _ROW_BYTES + _BIN_BYTES * block.columns["bins"].astype(np.int64)
    return weights


def _unless(column: Array, default: float) -> list[Any] | None:
    """Return the column as a list, or None if every entry is `default`.

    With None the message leaves the column empty.
    """
    return None if (column == default).all() else column.tolist()
