"""Decodes frames, messages that each carry some records, to blocks of records.

A message may come from anybody: every length, number and shape in it is checked before memory is
allocated for it, and the values of each record are checked against their digest before the record
is handed on (see `anchorlib.wire.messages.row_columns`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from anchorlib.block import RowBlock, Tables, layout_bytes
from anchorlib.errors import AnchorError
from anchorlib.wire.limits import MAX_DIMS, MAX_ELEMENTS, RECORD_BYTES, TABLE_ENTRIES
from anchorlib.wire.messages.checksum import check_seal
from anchorlib.wire.messages.framing import split
from anchorlib.wire.messages.malformed import FrameError
from anchorlib.wire.messages.row_columns import read_block
from anchorlib.wire.messages.texts import check_phase, check_series
from anchorlib.wire.v1.collector_pb2 import Columns, Define, Fragment, Frame, Layout, PushRequest

__all__ = ["Decoder", "FrameError", "ParsedFrame", "parse_request"]

_DIGEST_BYTES = 16


class ParsedFrame(NamedTuple):
    """A parsed frame (message with records): `head` has the records' rows, `payload` their values.

    The payload is a view of the message's bytes.
    """

    head: Frame
    payload: memoryview


def parse_request(message: bytes) -> PushRequest | ParsedFrame:
    """Parse a serialised PushRequest; the result is a `ParsedFrame` if it carries a frame.

    A frame is a message with records. Any other message is returned as a PushRequest. Raises
    GarbledError if the message does not fit its checksum, FrameError if it is no PushRequest.
    """
    check_seal(message)
    try:
        parts = split(message)
        if parts is not None:
            head = Frame.FromString(parts[0])
            return ParsedFrame(head, parts[1] if not head.payload else memoryview(head.payload))
        request = PushRequest.FromString(message)
    except (DecodeError, IndexError):
        raise FrameError("a message that is no PushRequest arrived") from None
    if request.WhichOneof("message") == "frame":
        return ParsedFrame(request.frame, memoryview(request.frame.payload))
    return request


@dataclass(slots=True)
class _Partial:
    """A large record that comes in several frames, some of which are still to come.

    first: the record's number in the stream. columns: the record's row, one entry for each column.
    data: the bytes of the record's values, of which the first `received` have arrived.
    """

    first: int
    columns: Columns
    data: np.ndarray[Any, Any]
    received: int = 0


class Decoder:
    """Turns the frames (messages with records) of one stream into blocks of records.

    record_bytes: the most bytes that the values of one record may have.
    """

    def __init__(self, *, record_bytes: int = RECORD_BYTES) -> None:
        self._record_bytes = record_bytes
        self._series: list[tuple[str, str, str]] = []
        self._layouts: list[tuple[str, tuple[int, ...]]] = []
        self._phases: list[str] = []
        self._sizes: list[int] = []
        self._tables = Tables(self._series, self._layouts, self._sizes, self._phases)
        self._partial: _Partial | None = None

    def define(self, message: Define) -> None:
        """Add series, layouts and phases to the tables that the indices in later rows refer to.

        A series is a name, kind and mode; a layout is a dtype and a shape. Raises InvalidNameError
        for an invalid name, kind or phase, ModeError for an invalid mode, FrameError for an invalid
        or too large layout, and FrameError for a table of more than TABLE_ENTRIES entries.
        """
        self._series += [check_series(s.name, s.kind, s.mode) for s in message.series]
        layouts = [self._layout(layout) for layout in message.layouts]
        self._layouts += layouts
        self._sizes += [layout_bytes(*layout) for layout in layouts]
        self._phases += [check_phase(phase) for phase in message.phases]
        if max(len(self._series), len(self._layouts), len(self._phases)) > TABLE_ENTRIES:
            raise FrameError(f"one stream defines at most {TABLE_ENTRIES} series, shapes or phases")

    def block(self, frame: ParsedFrame) -> RowBlock | None:
        """Return the records that a message with records completes; None if it completes none.

        A message completes no record if it holds a fragment of a large record whose last fragment
        is still to come. The values of the block are views of the message, or of the memory in
        which the fragments of a large record were put together.

        Raises FrameError for a malformed frame and for a fragment that comes out of turn,
        GarbledError for values that do not fit their digest, MemoryError for a large record for
        which there is not enough free memory.
        """
        head, payload = frame
        if not head.HasField("fragment"):
            if self._partial is not None:
                raise FrameError(f"record {self._partial.first} was left unfinished")
            return read_block(head.columns, payload, self._tables)
        partial = self._continued(head, head.fragment)
        end = partial.received + len(payload)
        if not partial.received < end <= len(partial.data):
            raise FrameError(f"a fragment of {len(payload)} bytes in record {head.first}")
        partial.data[partial.received : end] = np.frombuffer(payload, np.uint8)
        partial.received = end
        if end < len(partial.data):
            return None
        self._partial = None
        return read_block(partial.columns, partial.data.data, self._tables)

    def _continued(self, head: Frame, fragment: Fragment) -> _Partial:
        """Return the unfinished record of which this fragment holds the next values.

        For the first fragment of a record this is a new, empty record. Raises FrameError if the
        fragment is not the next one of the unfinished record, or begins a record wrongly.

        head: the frame's rows. fragment: the place of the frame's values among those of the record.
        """
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
        number = columns.layout[0] if columns.layout else 0
        if number >= len(self._sizes):
            raise FrameError("a row names a layout that was not defined")
        if any(columns.summary_only) or self._sizes[number] != total:
            raise FrameError(f"record {head.first} has {self._sizes[number]} bytes, not {total}")
        return _Partial(head.first, columns, np.empty(total, np.uint8))

    def _layout(self, layout: Layout) -> tuple[str, tuple[int, ...]]:
        shape = tuple(layout.shape)
        elements = prod(filter(None, shape))  # zeros must not hide a dimension that is too large
        if len(shape) > MAX_DIMS or elements > MAX_ELEMENTS:
            raise FrameError(f"a shape of {len(shape)} dimensions and {elements} elements")
        try:
            nbytes = layout_bytes(layout.dtype, shape)
        except AnchorError as error:
            raise FrameError(str(error)) from None
        if nbytes > self._record_bytes:
            raise FrameError(
                f"a record of {nbytes} bytes; this collector takes {self._record_bytes} at most"
            )
        return layout.dtype, shape
