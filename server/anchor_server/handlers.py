"""Wraps a gRPC handler, so that a check runs before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import grpc

__all__ = ["Handler", "behind"]

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


def behind(handler: Handler, first: Callable[[grpc.ServicerContext], object]) -> Handler:
    """Returns a handler that calls `first` with the call's context, and then `handler`.

    `first` may abort the call, by which it raises; `handler` is then not called.
    """
    requests = "stream" if handler.request_streaming else "unary"
    answers = "stream" if handler.response_streaming else "unary"
    answer = getattr(handler, f"{requests}_{answers}")

    def answering(request: Any, context: grpc.ServicerContext) -> Any:
        first(context)
        return answer(request, context)

    make = getattr(grpc, f"{requests}_{answers}_rpc_method_handler")
    made: Handler = make(answering, handler.request_deserializer, handler.response_serializer)
    return made
