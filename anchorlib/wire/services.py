"""Push as both ends see it: bytes on the way in, because frames are read and written in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import grpc

from anchorlib.wire.v1.collector_pb2 import DESCRIPTOR, PushReply

__all__ = ["PushBehaviour", "PushCall", "push_call", "push_handler"]

_SERVICE: Final = DESCRIPTOR.services_by_name["Collector"].full_name

PushCall: TypeAlias = "grpc.StreamStreamMultiCallable[bytes, PushReply]"
PushBehaviour: TypeAlias = Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[PushReply]]


def push_call(channel: grpc.Channel) -> PushCall:
    """Calls Push; requests are serialised PushRequests."""
    return channel.stream_stream(
        f"/{_SERVICE}/Push",
        request_serializer=None,
        response_deserializer=PushReply.FromString,
    )


def push_handler(behaviour: PushBehaviour) -> grpc.GenericRpcHandler:
    """Serves Push; requests are serialised PushRequests."""
    method: grpc.RpcMethodHandler[bytes, PushReply] = grpc.stream_stream_rpc_method_handler(
        behaviour,
        request_deserializer=None,
        response_serializer=PushReply.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(_SERVICE, {"Push": method})
