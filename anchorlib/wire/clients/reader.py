"""The client of a collector's service Reader: reads and lists files, which is all zarr needs."""

from __future__ import annotations

from typing import Self, TypeVar

from anchorlib.wire.address import Address
from anchorlib.wire.clients.unary_channel import NotThereError, UnaryChannel
from anchorlib.wire.connection import ReadCall, read_calls
from anchorlib.wire.credentials import Credentials
from anchorlib.wire.limits import READ_BYTES
from anchorlib.wire.v1.collector_pb2 import GetReply, GetRequest, ListReply, ListRequest

__all__ = ["ReaderClient"]

R = TypeVar("R", GetReply, ListReply)


class ReaderClient:
    """Reads files of the store that a collector serves; may be used by several threads.

    address: an Address or a URL; a run in it is ignored.
    credentials: None takes those that the environment variables describe.
    timeout: how many seconds one answer may take.
    """

    def __init__(
        self,
        address: Address | str,
        credentials: Credentials | None = None,
        *,
        timeout: float = 30.0,
    ) -> None:
        self._line = UnaryChannel(address, credentials)
        self.address = self._line.address
        self._timeout = timeout
        self._calls = read_calls(self._line.channel)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes | None:
        """Return bytes of the file `key`; None if there is no such file.

        start: the offset of the first byte. length: the most bytes to return; None reads to the
        file's end. The result is shorter than `length` where the file ends before, and b"" where
        the file ends at `start` or before.

        Raises CollectorError if the collector refuses or cannot be reached, and StoreError if `key`
        is no regular file (a link, a pipe), which a collector does not read.
        """
        if length == 0:
            return b"" if self.get(key, 0, 1) is not None else None
        parts: list[bytes] = []
        got = 0
        while length is None or got < length:
            want = READ_BYTES if length is None else min(READ_BYTES, length - got)
            reply = self._get(GetRequest(key=key, offset=start + got, length=want))
            if reply is None:
                return None
            size, data = reply
            parts.append(data)
            got += len(data)
            if not data or start + got >= size:
                break
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def list(self, prefix: str = "") -> list[str]:
        """Return the sorted names in the folder `prefix`; names of folders end in "/".

        prefix: the folder's path in the store; "" is the store itself. The list is empty if there
        is no such folder. Raises CollectorError if the collector refuses or cannot be reached,
        StoreError if it cannot read the folder.
        """
        names: list[str] = []
        more = True
        while more:
            request = ListRequest(prefix=prefix, after=names[-1] if names else "")
            reply = self._ask(self._calls[1], request, ListReply)
            names += reply.names
            more = reply.more and bool(reply.names)
        return names

    def close(self) -> None:
        """Close the channel to the collector."""
        self._line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ReaderClient({str(self.address)!r})"

    def _get(self, request: GetRequest) -> tuple[int, bytes] | None:
        try:
            reply = self._ask(self._calls[0], request, GetReply)
        except NotThereError:
            return None
        return reply.size, reply.data

    def _ask(self, method: ReadCall, request: GetRequest | ListRequest, kind: type[R]) -> R:
        return self._line.ask(method, request, kind, timeout=self._timeout, again=True)
