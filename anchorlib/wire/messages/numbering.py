"""Reads finished frames and changes their record numbers, for a spool that has lost records.

A spool is a writer's queue of frames on disk. A collector accepts no missing numbers, so records
after lost ones are sent under lower numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from anchorlib.wire.messages.decoder import ParsedFrame, parse_request
from anchorlib.wire.messages.framing import join
from anchorlib.wire.messages.malformed import FrameError
from anchorlib.wire.v1.collector_pb2 import Columns, Define

__all__ = ["TableSizes", "first_of", "kept_definition", "kept_frame", "renumbered", "table_sizes"]


class TableSizes(NamedTuple):
    """How many series, layouts and phases are defined, or must be defined to read a frame.

    A series is a name, kind and mode; a layout is a dtype and a shape.
    """

    series: int
    layouts: int
    phases: int


def first_of(message: bytes) -> tuple[int, int, TableSizes, int]:
    """Return (first record's number, offset, definitions needed, step) of a message with records.

    The offset is above 0 only for a later fragment of a large record: it is the byte in the
    record's values at which the fragment begins. "Definitions needed" is how many series, layouts
    and phases a stream has to define before the message; a later fragment needs none. The step is
    the lowest step of all rows; 0 without rows. Raises FrameError if `message` carries no records.
    """
    head = kept_frame(message).head
    columns = head.columns
    offset = head.fragment.offset if head.HasField("fragment") else 0
    needs = TableSizes(0, 0, 0)
    if not offset:
        needs = TableSizes(*(max(column, default=0) + 1 for column in _numbers(columns)))
    return head.first, offset, needs, min(columns.step, default=0)


def table_sizes(definitions: Iterable[bytes]) -> TableSizes:
    """Return how many series, layouts and phases the definition messages define together."""
    tables = [kept_definition(message) for message in definitions]
    return TableSizes(
        sum(len(one.series) for one in tables),
        sum(len(one.layouts) for one in tables),
        sum(len(one.phases) for one in tables),
    )


def renumbered(message: bytes, back: int) -> bytes:
    """Return the serialised message, with the numbers of its records lowered by `back`."""
    if not back:
        return message
    head, payload = kept_frame(message)
    head.first -= back
    head.payload = b""
    return b"".join(join(head.SerializeToString(), [payload]))


def _numbers(columns: Columns) -> tuple[Iterable[int], Iterable[int], Iterable[int]]:
    return columns.series, columns.layout, columns.phase


def kept_frame(message: bytes) -> ParsedFrame:
    """Return the frame (records) in a serialised message. Raises FrameError if it carries none."""
    frame = parse_request(message)
    if not isinstance(frame, ParsedFrame):
        raise FrameError("a message that was kept as a frame is no frame")
    return frame


def kept_definition(message: bytes) -> Define:
    """Return the definitions (of series, layouts, phases) in a serialised message.

    The result is empty for a message of another kind. Raises FrameError if `message` carries
    records.
    """
    request = parse_request(message)
    if isinstance(request, ParsedFrame):
        raise FrameError("a frame stands where definitions are")
    return request.define
