"""Questions to a collector over one channel: a request and its answer, each with a checksum."""

from __future__ import annotations

import os
from typing import Final, TypeVar

from google.protobuf.message import Message

from anchorlib.errors import StoreError
from anchorlib.names import escape
from anchorlib.wire.address import Address, parse_address
from anchorlib.wire.connection import Failure, FailureKind, ReadCall, failure, grpc, open_channel
from anchorlib.wire.credentials import Credentials
from anchorlib.wire.messages import GarbledError, check_of, check_seal, sealed

__all__ = ["NotThereError", "UnaryChannel"]

_TRIES: Final = 4  # of one question, where the question or its answer is damaged on the way

R = TypeVar("R", bound=Message)


class NotThereError(Exception):
    """Raised if the collector does not have the run or the file that it was asked about."""


class UnaryChannel:
    """A gRPC channel to a collector, for single questions; may be used by several threads.

    address: an Address or a URL; a run in it is ignored.
    credentials: None takes those that the environment variables describe.
    """

    def __init__(self, address: Address | str, credentials: Credentials | None = None) -> None:
        self.address = parse_address(address) if isinstance(address, str) else address
        credentials = credentials or Credentials.from_environment()
        self._metadata = credentials.metadata
        self._process = os.getpid()
        self.channel = open_channel(self.address, credentials)

    def close(self) -> None:
        """Close the channel to the collector."""
        self.channel.close()

    def ask(
        self, method: ReadCall, request: Message, kind: type[R], *, timeout: float, again: bool
    ) -> R:
        """Return the collector's answer to `request`, which must come within `timeout` seconds.

        method: the gRPC call. kind: the class of the answer.
        again: whether to ask again if the answer was damaged on the way. It may be True only for a
            question that changes nothing at the collector.

        Raises NotThereError for a run or file that the collector does not have, StoreError for a
        damaged store at the collector, CollectorError if the collector refuses for another reason
        or cannot be reached, or if its answer was damaged on the way.
        """
        self._check_process()
        question = sealed(request)
        for _ in range(_TRIES):
            try:
                # A damaged line may lose the message and keep the status: gRPC then says None.
                answer = method(question, timeout=timeout, metadata=self._metadata) or b""
                check_seal(answer, check_of(question))
                return kind.FromString(answer)
            except GarbledError:
                if not again:
                    break
            except grpc.RpcError as error:
                self._refuse(error)
        sentence = (
            f"what {self.address} answers is damaged on the way, again and again: look after the "
            "line, or use grpcs://"
            if again
            else f"what {self.address} answered was damaged on the way: look whether it was done "
            "(anchor runs), and try again"
        )
        raise Failure(FailureKind.DAMAGED, sentence).error()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            # gRPC would hang here now and then, instead of failing.
            sentence = (
                f"{self.address} was opened before this process was forked, which gRPC does not "
                "survive; open it in this process, started by 'spawn'"
            )
            raise Failure(FailureKind.HERE, sentence).error()

    def _refuse(self, error: grpc.RpcError) -> None:
        """Raise the error that `ask` raises for a call that ended with gRPC's `error`.

        Raises nothing if the question was damaged on the way, so that `ask` can ask again.
        """
        fault = failure(self.address, error)
        if fault.kind is FailureKind.MISSING:
            raise NotThereError from None
        if fault.kind is FailureKind.STORE:
            details = escape((error.details() or "")[:500])
            raise StoreError(f"{details} (at {self.address})") from None
        if fault.kind is not FailureKind.DAMAGED:
            raise fault.error() from None
