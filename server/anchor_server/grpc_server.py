"""The gRPC server of a collector: the options that bound its clients, and its port."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc

from anchor_server.address_and_store import port_taken
from anchor_server.tls import Certificates
from anchorlib.errors import CollectorError
from anchorlib.wire import (
    HANDSHAKE_SECONDS,
    IDLE_SECONDS,
    KEEPALIVE_SECONDS,
    MESSAGE_BYTES,
    PING_SECONDS,
)

__all__ = ["bind_port", "make_server"]

_WAITING_CALLS = 256

# so_reuseport is off: with it two servers on one port would silently share the port's clients.
_OPTIONS: Final[list[tuple[str, Any]]] = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_SECONDS * 1000),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_SECONDS * 500),  # for unacknowledged TCP bytes
    ("grpc.http2.ping_timeout_ms", PING_SECONDS * 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Without this option gRPC stops pinging a connection that carries no data.
    ("grpc.http2.max_pings_without_data", 0),
    # A connection without a finished handshake or without calls is closed after these times.
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_SECONDS * 1000),
    ("grpc.max_connection_idle_ms", IDLE_SECONDS * 1000),
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_SECONDS * 500),
]


def make_server(
    threads: ThreadPoolExecutor,
    handlers: Sequence[grpc.GenericRpcHandler],
    interceptors: Sequence[grpc.ServerInterceptor],
    calls: int,
) -> grpc.Server:
    """Returns a server that is not started and has no port yet.

    threads: the pool whose threads answer calls.
    interceptors: gRPC's objects that see each call before its handler.
    calls: how many calls may be answered at once; 256 more may wait, further calls are refused.
    """
    return grpc.server(
        threads,
        handlers=list(handlers),
        interceptors=list(interceptors),
        options=[*_OPTIONS, ("grpc.max_concurrent_streams", calls)],
        maximum_concurrent_rpcs=calls + _WAITING_CALLS,
    )


def bind_port(server: grpc.Server, bind: str, certificates: Certificates | None) -> int:
    """Binds the port of a server, and returns the port's number.

    Raises CollectorError where the port cannot be bound.

    bind: host:port; port 0 picks a free port. certificates: for TLS; None serves without TLS.
    """
    try:
        if certificates is None:
            return server.add_insecure_port(bind)
        return server.add_secure_port(bind, certificates.credentials())
    except RuntimeError:
        raise CollectorError(port_taken(bind)) from None
