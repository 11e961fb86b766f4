"""Frames to records: the receiving half of the codec.

What arrives is not to be trusted: every length, number and shape is checked before anything is
made of it, and the digest of every value before its record is handed on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, TypeVar

import numpy as np
from google.protobuf.message import DecodeError

from anchorlib import dtypes
from anchorlib.errors import AnchorError
from anchorlib.record import Coordinates, Flag, Record
from anchorlib.summary import Log2Histogram, Summary, digest
from anchorlib.wire.blocks import RowBlock, Tables, read_block
from anchorlib.wire.framing import split
from anchorlib.wire.limits import MAX_DIMS, MAX_ELEMENTS, RECORD_BYTES, TABLE_ENTRIES
from anchorlib.wire.malformed import FrameError
from anchorlib.wire.sealing import DamagedError, check_seal
from anchorlib.wire.texts import check_phase, check_series
from anchorlib.wire.v1.collector_pb2 import Columns, Define, Fragment, Frame, Layout, PushRequest

__all__ = ["Decoder", "FrameError", "Framed", "parse_request"]

_DIGEST_BYTES = 16
_BLOCK_ROWS = 8  # fewer are sooner decoded one by one
_BLOCK_ROW_BYTES = 1 << 14  # of values on average; copying larger ones would cost more
_MAX_FLAGS = 1 << 16
_MAX_NUMBER = 1 << 63  # of what is stored in signed 64 bits
_MAX_COUNT = 1 << 48  # of elements: more than fit into any record
_MAX_EXPONENT = 1 << 14

_FLAGS = {int(flag): flag for flag in map(Flag, range(8))}

T = TypeVar("T")


class Framed(NamedTuple):
    """A frame and its payload, which is a view of the message."""

    head: Frame
    payload: memoryview


def parse_request(message: bytes) -> PushRequest | Framed:
    """A PushRequest, or the frame it carries; FrameError where it is neither.

    Raises DamagedError where it is not the message that was sent.
    """
    check_seal(message)
    try:
        parts = split(message)
        if parts is not None:
            head = Frame.FromString(parts[0])
            return Framed(head, parts[1] if not head.payload else memoryview(head.payload))
        request = PushRequest.FromString(message)
    except (DecodeError, IndexError):
        raise FrameError("a message that is no PushRequest arrived") from None
    if request.WhichOneof("message") == "frame":
        return Framed(request.frame, memoryview(request.frame.payload))
    return request


@dataclass(frozen=True, slots=True)
class _Storage:
    """What the payload of one record is."""

    dtype: str
    shape: tuple[int, ...]
    storage: np.dtype[Any]
    nbytes: int


@dataclass(slots=True)
class _Partial:
    """A record of which fragments are still to come."""

    first: int
    columns: Columns
    data: np.ndarray[Any, Any]
    received: int = 0


class Decoder:
    """Turns the frames of one stream into records of `rank`.

    record_bytes: the most raw storage that one record may have.
    """

    def __init__(self, rank: int, *, record_bytes: int = RECORD_BYTES) -> None:
        self._rank = rank
        self._record_bytes = record_bytes
        self._series: list[tuple[str, str, str]] = []
        self._layouts: list[_Storage] = []
        self._phases: list[str] = []
        self._shapes: list[tuple[str, tuple[int, ...]]] = []
        self._sizes: list[int] = []
        self._tables = Tables(self._series, self._shapes, self._sizes, self._phases)
        self._partial: _Partial | None = None

    def define(self, message: Define) -> None:
        """Learn what later rows speak of. Raises FrameError for what cannot be."""
        self._series += [check_series(s.name, s.kind, s.mode) for s in message.series]
        layouts = [self._layout(layout) for layout in message.layouts]
        self._layouts += layouts
        self._shapes += [(layout.dtype, layout.shape) for layout in layouts]
        self._sizes += [layout.nbytes for layout in layouts]
        self._phases += [check_phase(phase) for phase in message.phases]
        if max(len(self._series), len(self._layouts), len(self._phases)) > TABLE_ENTRIES:
            raise FrameError(f"one stream defines at most {TABLE_ENTRIES} series, shapes or phases")

    def block(self, frame: Framed) -> RowBlock | None:
        """The rows of a frame of small records as columns; None for any other frame.

        Raises FrameError for a malformed frame, DamagedError for a wrong digest.
        """
        head, payload = frame
        rows = len(head.columns.digest) // _DIGEST_BYTES
        if head.HasField("fragment") or self._partial is not None or rows < _BLOCK_ROWS:
            return None
        if len(payload) > _BLOCK_ROW_BYTES * rows:
            return None
        return read_block(head.columns, payload, self._tables)

    def decode(self, frame: Framed) -> list[Record]:
        """The records that are whole with this frame, the first of them numbered `head.first`.

        Their arrays are read-only views of the message. Raises FrameError for a malformed frame,
        DamagedError for a wrong digest, MemoryError for a record that finds no room.
        """
        head, payload = frame
        if not head.HasField("fragment"):
            if self._partial is not None:
                raise FrameError(f"record {self._partial.first} was left unfinished")
            return self._records(head.columns, payload)
        partial = self._continued(head, head.fragment)
        end = partial.received + len(payload)
        if not partial.received < end <= len(partial.data):
            raise FrameError(f"a fragment of {len(payload)} bytes in record {head.first}")
        partial.data[partial.received : end] = np.frombuffer(payload, np.uint8)
        partial.received = end
        if end < len(partial.data):
            return []
        self._partial = None
        return self._records(partial.columns, partial.data.data)

    def _continued(self, head: Frame, fragment: Fragment) -> _Partial:
        """The record that this fragment goes on with, or begins."""
        partial = self._partial
        if fragment.offset == 0 and partial is None:
            self._partial = partial = self._begun(head, fragment.total)
        if partial is None or (head.first, fragment.offset, fragment.total) != (
            partial.first,
            partial.received,
            len(partial.data),
        ):
            raise FrameError(f"a fragment of record {head.first} came out of turn")
        return partial

    def _begun(self, head: Frame, total: int) -> _Partial:
        columns = head.columns
        if len(columns.digest) != _DIGEST_BYTES:
            raise FrameError(f"record {head.first} comes in fragments but has no row of its own")
        (layout,) = _pick(self._layouts, columns.layout, 1, "layout")
        if any(columns.summary_only) or layout.nbytes != total:
            raise FrameError(f"record {head.first} has {layout.nbytes} bytes, not {total}")
        return _Partial(head.first, columns, np.empty(total, np.uint8))

    def _layout(self, layout: Layout) -> _Storage:
        shape = tuple(layout.shape)
        elements = prod(filter(None, shape))  # zeros must not hide a dimension that is too large
        if len(shape) > MAX_DIMS or elements > MAX_ELEMENTS:
            raise FrameError(f"a shape of {len(shape)} dimensions and {elements} elements")
        storage = _storage(layout.dtype)
        nbytes = prod(shape) * storage.itemsize
        if nbytes > self._record_bytes:
            raise FrameError(
                f"a record of {nbytes} bytes; this collector takes {self._record_bytes} at most"
            )
        return _Storage(layout.dtype, shape, storage, nbytes)

    def _records(self, columns: Columns, payload: memoryview) -> list[Record]:
        rows, rest = divmod(len(columns.digest), _DIGEST_BYTES)
        if rest:
            raise FrameError(f"{len(columns.digest)} bytes of digests, which is no multiple of 16")
        layouts = _pick(self._layouts, columns.layout, rows, "layout")
        only = _column(columns.summary_only, rows, False, "summary_only")
        summaries = _summaries(columns, rows)
        wheres = map(
            Coordinates,
            _column(columns.step, rows, 0, "step"),
            _bounded(_column(columns.pass_index, rows, 0, "pass_index"), _MAX_NUMBER),
            _bounded(_column(columns.call, rows, 0, "call"), _MAX_NUMBER),
            _pick(self._phases, columns.phase, rows, "phase"),
            _column(columns.attempt, rows, 0, "attempt"),
        )
        flags = _bounded(_column(columns.flags, rows, 0, "flags"), _MAX_FLAGS)
        parts = zip(
            _pick(self._series, columns.series, rows, "series"),
            wheres,
            _column(columns.order, rows, 0, "order"),
            _column(columns.time_ns, rows, 0, "time_ns"),
            layouts,
            _arrays(layouts, only, payload),
            summaries,
            _column(columns.count, rows, 1, "count"),
            [_FLAGS.get(flag) or Flag(flag) for flag in flags],
            _column(columns.scale, rows, 1.0, "scale"),
            strict=True,
        )
        rank = self._rank
        records = [
            Record(
                name, kind, mode, where, order, time, layout.dtype, layout.shape, raw, summary,
                count, rank, flag, scale,
            )
            for (name, kind, mode), where, order, time, layout, raw, summary, count, flag, scale
            in parts
        ]  # fmt: skip
        _check_digests(records)
        return records


def _summaries(columns: Columns, rows: int) -> Iterator[Summary]:
    digests, counts = columns.digest, (columns.zero, columns.nan, columns.inf, columns.subnormal)
    histograms = map(
        Log2Histogram,
        _bins(columns, rows),
        *(_bounded(_column(column, rows, 0, "counts"), _MAX_COUNT) for column in counts),
    )
    return map(
        Summary,
        [digests[at : at + _DIGEST_BYTES] for at in range(0, len(digests), _DIGEST_BYTES)],
        _column(columns.min, rows, 0.0, "min"),
        _column(columns.max, rows, 0.0, "max"),
        _column(columns.sum, rows, 0.0, "sum"),
        _column(columns.l2, rows, 0.0, "l2"),
        histograms,
    )


def _bins(columns: Columns, rows: int) -> list[dict[int, int]]:
    lengths = _column(columns.bins, rows, 0, "bins")
    exponents = list(columns.exponent)
    elements = _bounded(list(columns.elements), _MAX_COUNT)
    if not sum(lengths) == len(exponents) == len(elements):
        raise FrameError(f"{len(exponents)} exponents where {sum(lengths)} were told")
    if exponents and not -_MAX_EXPONENT < min(exponents) <= max(exponents) < _MAX_EXPONENT:
        raise FrameError("a histogram has an exponent that no float has")
    found, at = [], 0
    for length in lengths:
        found.append(dict(zip(exponents[at : at + length], elements[at : at + length])))  # noqa: B905  # lengths were just compared
        at += length
    if sum(map(len, found)) != len(exponents):
        raise FrameError("a histogram names one exponent twice")
    return found


def _arrays(
    layouts: Sequence[_Storage], only: Sequence[bool], payload: memoryview
) -> list[np.ndarray[Any, Any] | None]:
    """The arrays of the rows, None where a row has none; views of the payload."""
    sizes = [0 if alone else layout.nbytes for layout, alone in zip(layouts, only, strict=True)]
    if sum(sizes) != len(payload):
        raise FrameError(f"a payload of {len(payload)} bytes; its rows have {sum(sizes)}")
    arrays: list[np.ndarray[Any, Any] | None] = []
    at = 0
    for layout, alone, size in zip(layouts, only, sizes, strict=True):
        if alone:
            arrays.append(None)
        else:
            # An empty array needs no buffer, and numpy wants none that ends where it begins.
            buffer = payload if size else None
            arrays.append(np.ndarray(layout.shape, layout.storage, buffer, at if size else 0))
            at += size
    return arrays


def _check_digests(records: Sequence[Record]) -> None:
    for record in records:
        raw = record.raw
        if raw is not None and digest(raw) != record.summary.digest:  # type: ignore[union-attr]
            raise DamagedError(
                f"the values of {record.name!r}@{record.kind} at step {record.coordinates.step} "
                "were damaged on the way: their digest does not fit"
            )


def _column(values: Sequence[T], rows: int, default: T, name: str) -> list[T]:
    """The column as a list; a column that was left out is full of its default."""
    if not values:
        return [default] * rows
    if len(values) != rows:
        raise FrameError(f"column {name} has {len(values)} entries for {rows} rows")
    return list(values)


def _pick(table: Sequence[T], numbers: Sequence[int], rows: int, name: str) -> list[T]:
    """What the numbers stand for."""
    try:
        return [table[number] for number in _column(numbers, rows, 0, name)]
    except IndexError:
        raise FrameError(f"a row speaks of a {name} that was not defined") from None


def _bounded(column: list[int], limit: int) -> list[int]:
    if column and max(column) >= limit:
        raise FrameError(f"{max(column)} in a frame, where numbers are below {limit}")
    return column


def _storage(dtype: str) -> np.dtype[Any]:
    try:
        return dtypes.dtype(dtype).storage
    except AnchorError as error:
        raise FrameError(str(error)) from None
