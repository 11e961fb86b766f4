"""The messages between a trainer and its recorder process, beside the ring: JSON over a socket.

    to the recorder   request, revoke, lent (with a descriptor)
    to the trainer    answer, log, warm

Sending to a process that has ended is no error: the message is dropped.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from anchorlib import errors
from anchorlib.errors import AnchorError, CollectorError, StoreError

__all__ = ["MOST_TEXT", "MessageSocket", "encoded_fault", "fault_of"]

_MOST_BYTES: Final = 1 << 16
MOST_TEXT: Final = 4096


class MessageSocket:
    """One end of the socket between trainer and recorder. Any thread may send; one receives."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a message and file descriptors. Raises nothing."""
        text = json.dumps(message).encode()
        try:
            socket.send_fds(self._end, [text], list(descriptors))
        except OSError:
            return  # the other process has ended

    def receive(self) -> tuple[dict[str, Any], list[int]] | None:
        """Wait for the next message; return (message, the file descriptors sent with it).

        Returns None once the other process has ended or the connection is closed.
        """
        try:
            text, descriptors, _, _ = socket.recv_fds(self._end, _MOST_BYTES, 4)
        except OSError:
            return None
        return (json.loads(text), descriptors) if text else None

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()


def encoded_fault(fault: Exception) -> list[str]:
    """Return an exception as texts for JSON: [class's name, message, kind].

    The first text is "" for an exception that is not one of anchorlib's: then the message begins
    with the class's name. The kind is that of a CollectorError; it is "" for other exceptions.
    """
    ours = type(fault).__name__ if isinstance(fault, AnchorError) else ""
    said = str(fault) if ours else f"{type(fault).__name__}: {fault}"
    return [ours, said[:MOST_TEXT], str(getattr(fault, "kind", ""))]


def fault_of(encoded: Sequence[str]) -> Exception:
    """Return the exception that `encoded_fault` encoded; a StoreError if it was not anchorlib's."""
    name, said, kind = encoded
    fault: Exception = getattr(errors, name, StoreError)(said) if name else StoreError(said)
    if isinstance(fault, CollectorError):
        fault.kind = kind
    return fault
