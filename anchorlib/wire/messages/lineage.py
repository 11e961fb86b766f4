"""Writes and reads Lineage messages: lineage, header entries, and traced operations.

Lineage says which tensors and operations a value was computed from. The header entries are those
that a run adds to its header while it is recorded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from anchorlib.names import check_name
from anchorlib.operations import Entry, check_entry
from anchorlib.record import Edges, Parent
from anchorlib.wire.limits import HEADER_BYTES, MAX_DIMS, OPERATIONS_BYTES
from anchorlib.wire.messages.malformed import FrameError
from anchorlib.wire.messages.texts import check_phase, check_reason
from anchorlib.wire.v1.collector_pb2 import Edges as WireEdges
from anchorlib.wire.v1.collector_pb2 import Lineage
from anchorlib.wire.v1.collector_pb2 import Parent as WireParent

__all__ = [
    "header_message",
    "lineage_messages",
    "operations_messages",
    "read_header",
    "read_lineage",
    "read_operations",
]

_MESSAGE_BYTES = 1 << 19  # of the statements in one message; a larger statement is alone in its own


def lineage_messages(edges: Iterable[Edges]) -> Iterator[Lineage]:
    """Yield messages that state lineage: from which tensors and operations values were computed.

    edges: each item is the lineage of one value. A message has at most half a MiB, unless the
    lineage of a single value is larger.
    """
    message, size = Lineage(), 0
    for one in edges:
        wire = _edges(one)
        if size and size + wire.ByteSize() > _MESSAGE_BYTES:
            yield message
            message, size = Lineage(), 0
        message.edges.append(wire)
        size += wire.ByteSize()
    if size:
        yield message


def header_message(entries: Mapping[str, Any]) -> Lineage:
    """Return the message that adds `entries` to the run's header, as JSON.

    A value that JSON cannot hold is replaced by its text (`str`).
    """
    return Lineage(header=json.dumps(dict(entries), default=str))


def operations_messages(entries: Iterable[Entry]) -> Iterator[Lineage]:
    """Yield messages with entries of the log of traced operations.

    A message has at most half a MiB; a larger entry has a message of its own. An entry of more than
    OPERATIONS_BYTES is left out, because a collector would refuse the whole stream for it.
    """
    message, size = Lineage(), 0
    for text in map(json.dumps, entries):
        if len(text) > OPERATIONS_BYTES:
            continue
        if size and size + len(text) > _MESSAGE_BYTES:
            yield message
            message, size = Lineage(), 0
        message.operations.append(text)
        size += len(text)
    if size:
        yield message


def read_operations(message: Lineage) -> list[Entry]:
    """Return the entries of the log of traced operations in a message; [] if it has none.

    Raises FrameError for an entry that is malformed, or longer than OPERATIONS_BYTES.
    """
    return list(map(_read_entry, message.operations))


def _read_entry(text: str) -> Entry:
    if len(text) > OPERATIONS_BYTES:
        raise FrameError(f"an entry of the operations' log has {OPERATIONS_BYTES} bytes at most")
    try:
        return check_entry(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise FrameError(f"an entry of the operations' log cannot be read: {error}") from None


def read_header(message: Lineage) -> dict[str, Any]:
    """Return the entries that a message adds to the run's header; {} if it adds none.

    Raises FrameError if their text is no JSON object, or is longer than HEADER_BYTES.
    """
    if len(message.header) > HEADER_BYTES:
        raise FrameError(f"{len(message.header)} characters of a header; {HEADER_BYTES} at most")
    try:
        entries = json.loads(message.header or "{}")
    except (ValueError, RecursionError):
        entries = None
    if not isinstance(entries, dict):
        raise FrameError("the entries that a run adds to its header are no JSON object")
    return entries


def _edges(edges: Edges) -> WireEdges:
    return WireEdges(
        name=edges.name,
        phase=edges.phase,
        pass_index=edges.pass_index,
        call=edges.call,
        shape=edges.shape,
        step=edges.step,
        parents=[
            WireParent(
                name=parent.name,
                call=parent.call,
                steps_back=parent.steps_back,
                pass_index=parent.pass_index,
                phase=parent.phase,
            )
            for parent in edges.parents
        ],
        ops=edges.ops,
        arity=map(len, edges.inputs),
        inputs=chain.from_iterable(edges.inputs),
        missing=edges.missing,
        grad=edges.grad,
        arguments=edges.arguments,
    )


def read_lineage(message: Lineage) -> list[Edges]:
    """Return the lineage in a message: from what each value was computed; [] if it has none.

    Raises InvalidNameError for an invalid name or phase, FrameError for a shape of too many
    dimensions, and where inputs or arguments do not fit the operations that the message names.
    """
    return [_read(edges) for edges in message.edges]


def _read(wire: WireEdges) -> Edges:
    if len(wire.shape) > MAX_DIMS:
        raise FrameError(f"edges of a tensor of {len(wire.shape)} dimensions")
    return Edges(
        name=check_name(wire.name),
        phase=check_phase(wire.phase),
        pass_index=wire.pass_index,
        call=wire.call,
        shape=tuple(wire.shape),
        step=wire.step,
        parents=tuple(map(_read_parent, wire.parents)),
        ops=tuple(map(check_reason, wire.ops)),
        inputs=_read_inputs(wire.arity, wire.inputs, len(wire.ops), len(wire.parents)),
        missing=tuple(map(check_reason, wire.missing)),
        grad=wire.grad,
        arguments=_read_arguments(wire.arguments, len(wire.ops)),
    )


def _read_parent(wire: WireParent) -> Parent:
    return Parent(
        name=check_name(wire.name),
        call=wire.call if wire.HasField("call") else None,
        steps_back=wire.steps_back,
        pass_index=wire.pass_index if wire.HasField("pass_index") else None,
        phase=wire.phase and check_phase(wire.phase),
    )


def _read_arguments(arguments: Sequence[str], ops: int) -> tuple[str, ...]:
    if arguments and len(arguments) != ops:
        raise FrameError(f"arguments of {len(arguments)} operations, where {ops} are named")
    return tuple(map(check_reason, arguments))


def _read_inputs(
    arity: Sequence[int], inputs: Sequence[int], ops: int, parents: int
) -> tuple[tuple[int, ...], ...]:
    if len(arity) != ops or sum(arity) != len(inputs):
        raise FrameError(f"{len(inputs)} inputs of {len(arity)} operations, where {ops} are named")
    if any(not -parents <= source < ops for source in inputs):
        raise FrameError("an operation has an input that is not named")
    rest = iter(inputs)
    return tuple(tuple(next(rest) for _ in range(count)) for count in arity)
