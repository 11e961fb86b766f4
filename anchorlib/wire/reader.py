"""Reading a collector's store from elsewhere: the two verbs that a zarr store needs."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Final, Self, TypeVar

from anchorlib.errors import StoreError
from anchorlib.names import escape
from anchorlib.wire.address import Address, parse_address
from anchorlib.wire.channel import open_channel
from anchorlib.wire.credentials import Credentials
from anchorlib.wire.failures import Failure, failure
from anchorlib.wire.kinds import Kind
from anchorlib.wire.limits import READ_BYTES
from anchorlib.wire.loading import grpc
from anchorlib.wire.sealing import DamagedError, check_of, check_seal, sealed
from anchorlib.wire.services import ReadCall, read_calls
from anchorlib.wire.v1.collector_pb2 import GetReply, GetRequest, ListReply, ListRequest

__all__ = ["ReaderClient"]

_TRIES: Final = 4  # of a question that was damaged on the way, or whose answer was

R = TypeVar("R", GetReply, ListReply)


class ReaderClient:
    """Files of the store that a collector serves; may be used by several threads.

    address: an Address or a URL; its run is not looked at.
    credentials: None takes the environment's.
    timeout: seconds that one answer may take.
    """

    def __init__(
        self,
        address: Address | str,
        credentials: Credentials | None = None,
        *,
        timeout: float = 30.0,
    ) -> None:
        self.address = parse_address(address) if isinstance(address, str) else address
        credentials = credentials or Credentials.from_environment()
        self._metadata = credentials.metadata
        self._timeout = timeout
        self._process = os.getpid()
        self._channel = open_channel(self.address, credentials)
        self._calls = read_calls(self._channel)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes | None:
        """The bytes of file `key` from `start` on, at most `length`; None where there is no file.

        A range that reaches beyond the end gives what there is. Raises CollectorError, and
        StoreError where the collector finds what it will not read: a link, a pipe.
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
        """The names in folder `prefix`, sorted, folders with a "/" at the end; [] if there is none.

        Raises as `get`.
        """
        names: list[str] = []
        more = True
        while more:
            request = ListRequest(prefix=prefix, after=names[-1] if names else "")
            reply = self._call(self._calls[1], request, ListReply)
            names += reply.names
            more = reply.more and bool(reply.names)
        return names

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ReaderClient({str(self.address)!r})"

    def _get(self, request: GetRequest) -> tuple[int, bytes] | None:
        try:
            reply = self._call(self._calls[0], request, GetReply)
        except _NotFoundError:
            return None
        return reply.size, reply.data

    def _call(self, method: ReadCall, request: GetRequest | ListRequest, kind: type[R]) -> R:
        if os.getpid() != self._process:
            # gRPC would hang here now and then, instead of failing.
            sentence = (
                f"{self.address} was opened before this process was forked, which gRPC does not "
                "survive; open it in this process, started by 'spawn'"
            )
            raise Failure(Kind.HERE, sentence).error()
        question = sealed(request)
        for _ in range(_TRIES):
            try:
                # A damaged line may lose the message and keep the status: gRPC then says None.
                answer = method(question, timeout=self._timeout, metadata=self._metadata) or b""
                check_seal(answer, check_of(question))
                return kind.FromString(answer)
            except DamagedError:
                continue
            except grpc.RpcError as error:
                fault = failure(self.address, error)
                if fault.kind is Kind.MISSING:
                    raise _NotFoundError from None
                if fault.kind is Kind.STORE:
                    details = escape((error.details() or "")[:500])
                    raise StoreError(f"{details} (at {self.address})") from None
                if fault.kind is not Kind.DAMAGED:
                    raise fault.error() from None
        sentence = (
            f"what {self.address} answers is damaged on the way, again and again: look after the "
            "line, or use grpcs://"
        )
        raise Failure(Kind.DAMAGED, sentence).error()


class _NotFoundError(Exception):
    """The collector has no such file."""
