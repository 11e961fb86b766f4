"""Records to frames: the sending half of the codec.

One `Encoder` numbers the records of one writer and knows what it has defined. What it hands out is
finished bytes: they can be sent, kept, and sent again on another stream after the definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np

from anchorlib.record import Record
from anchorlib.wire.framing import Buffer, join
from anchorlib.wire.limits import FRAME_BYTES
from anchorlib.wire.sealing import sealed
from anchorlib.wire.v1.collector_pb2 import (
    Columns,
    Define,
    Fragment,
    Frame,
    Layout,
    PushRequest,
    Series,
)

__all__ = ["Encoded", "Encoder"]

_ROW_BYTES = 128  # about what a row's columns take, without its histogram
_BIN_BYTES = 5  # of one histogram bin
_SMALL_BYTES = 1 << 14  # below, copying an array costs less than looking into it
_DEFINE_BYTES = 1 << 19
_WHOLE_FRAMES = 4  # a record of so many travels whole: a collector writes it from where it arrived

K = TypeVar("K", bound=Hashable)


class Encoded(NamedTuple):
    """One frame.

    parts: the serialised PushRequest, end to end; an encoder's may be views of the records' arrays.
    end: the number after the last record of which this frame holds a part.
    definitions: how many of `Encoder.definitions` a stream has to send before it.
    """

    parts: tuple[Buffer, ...]
    end: int
    definitions: int

    @property
    def message(self) -> bytes:
        """The parts as one; copied unless they are."""
        first = self.parts[0]
        return first if len(self.parts) == 1 and isinstance(first, bytes) else b"".join(self.parts)

    @property
    def nbytes(self) -> int:
        """Of the message."""
        return sum(map(len, self.parts))

    def joined(self) -> Encoded:
        """The same frame, whatever becomes of the records' arrays."""
        return self._replace(parts=(self.message,))


class Encoder:
    """Turns records into frames of about `frame_bytes`, in order; one thread at a time.

    A larger record has a frame of its own, and from four times that on comes in fragments.

    definitions: serialised PushRequests, to be sent in order on every new stream.
    sequence: the number of the next record.
    """

    def __init__(self, *, first: int = 0, frame_bytes: int = FRAME_BYTES) -> None:
        self.sequence = first
        self.definitions: list[bytes] = []
        self._frame_bytes = frame_bytes
        self._series: dict[tuple[str, str, str], int] = {}
        self._layouts: dict[tuple[str, tuple[int, ...]], int] = {}
        self._phases: dict[str, int] = {}
        self._new = Define()
        self._new_bytes = 0

    def encode(self, records: Sequence[Record]) -> Iterator[Encoded]:
        """The frames that carry `records`; each has its summary, or ValueError.

        Large arrays are not copied: use each frame, or `joined`, while they are valid.
        """
        start = size = 0
        for index, record in enumerate(records):
            weight = frame_weight(record)
            if size and size + weight > self._frame_bytes:
                yield self._frame(records[start:index])
                start, size = index, 0
            if record.nbytes > _WHOLE_FRAMES * self._frame_bytes:
                yield from self._fragments(record)
                start = index + 1
            else:
                size += weight
        if start < len(records):
            yield self._frame(records[start:])

    def _frame(self, records: Sequence[Record]) -> Encoded:
        head = Frame(first=self.sequence, columns=self._columns(records))
        self.sequence += len(records)
        return self._encoded(join(head.SerializeToString(), _payload(records)))

    def _fragments(self, record: Record) -> Iterator[Encoded]:
        """One record that is larger than a frame; its row travels with the first part."""
        columns: Columns | None = self._columns([record])
        (storage,) = _payload([record])
        number, self.sequence = self.sequence, self.sequence + 1
        view = memoryview(storage)
        for offset in range(0, len(view), self._frame_bytes):
            part = Fragment(offset=offset, total=len(view))
            head = Frame(first=number, columns=columns, fragment=part)
            piece = view[offset : offset + self._frame_bytes]
            yield self._encoded(join(head.SerializeToString(), [piece]))
            columns = None

    def _encoded(self, parts: tuple[Buffer, ...]) -> Encoded:
        self._define()
        return Encoded(parts, self.sequence, len(self.definitions))

    def _define(self) -> None:
        if self._new_bytes:
            self.definitions.append(sealed(PushRequest(define=self._new)))
            self._new, self._new_bytes = Define(), 0

    def _number(self, table: dict[K, int], key: K, define: Callable[[K], int]) -> int:
        """The number of `key`, defined now if it is new."""
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

    def _columns(self, records: Sequence[Record]) -> Columns:
        """One list a column; columns of defaults alone are left out."""
        where = [record.coordinates for record in records]
        summaries = [record.summary for record in records if record.summary is not None]
        if len(summaries) < len(records):
            raise ValueError("a record without a summary cannot travel: summarise it first")
        histograms = [summary.histogram for summary in summaries]
        bins = [histogram.bins for histogram in histograms]
        number, series, layouts, phases = self._number, self._series, self._layouts, self._phases
        return Columns(
            series=[number(series, (r.name, r.kind, r.mode), self._define_series) for r in records],
            layout=[number(layouts, (r.dtype, r.shape), self._define_layout) for r in records],
            step=[place.step for place in where],
            pass_index=_unless([place.pass_index for place in where], 0),
            call=_unless([place.call for place in where], 0),
            phase=_unless([number(phases, p.phase, self._define_phase) for p in where], 0),
            attempt=_unless([place.attempt for place in where], 0),
            order=[record.order for record in records],
            time_ns=[record.time_ns for record in records],
            count=_unless([record.count for record in records], 1),
            flags=_unless([int(record.flags) for record in records], 0),
            scale=_unless([record.scale for record in records], 1.0),
            summary_only=_unless([record.raw is None for record in records], False),
            digest=b"".join([summary.digest for summary in summaries]),
            min=[summary.min for summary in summaries],
            max=[summary.max for summary in summaries],
            sum=[summary.sum for summary in summaries],
            l2=[summary.l2 for summary in summaries],
            zero=_unless([histogram.zero for histogram in histograms], 0),
            nan=_unless([histogram.nan for histogram in histograms], 0),
            inf=_unless([histogram.inf for histogram in histograms], 0),
            subnormal=_unless([histogram.subnormal for histogram in histograms], 0),
            bins=_unless([len(pairs) for pairs in bins], 0),
            exponent=list(chain.from_iterable(bins)),
            elements=list(chain.from_iterable([pairs.values() for pairs in bins])),
        )


V = TypeVar("V", int, float, bool)


def frame_weight(record: Record) -> int:
    """About how many bytes of a frame `record` takes."""
    bins = 0 if record.summary is None else len(record.summary.histogram.bins)
    return record.nbytes + _ROW_BYTES + _BIN_BYTES * bins


def _unless(column: list[V], default: V) -> list[V] | None:
    """The column, or None where every entry is the default."""
    return None if column.count(default) == len(column) else column


def _payload(records: Sequence[Record]) -> list[Buffer]:
    return [_storage(record.raw) for record in records if record.raw is not None]


def _storage(raw: np.ndarray) -> Buffer:
    """The bytes of an array, C order; a view where copying it would cost."""
    if raw.nbytes < _SMALL_BYTES:
        return raw.tobytes()
    return np.ascontiguousarray(raw).reshape(-1).view(np.uint8).data
