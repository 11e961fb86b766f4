"""Channels to a collector."""

from __future__ import annotations

from typing import Final

from anchorlib.wire.address import Address, is_loopback
from anchorlib.wire.credentials import Credentials, check_credentials, read_file
from anchorlib.wire.limits import MESSAGE_BYTES
from anchorlib.wire.loading import grpc

__all__ = ["KEEPALIVE_SECONDS", "PING_SECONDS", "open_channel"]

KEEPALIVE_SECONDS: Final = 20
"""How often a quiet connection is tried with a ping."""

PING_SECONDS: Final = 60
"""A peer that has not acknowledged a ping for so long is gone.

Longer than a ping may wait behind what is sent already, on a slow line.
"""


def open_channel(address: Address, credentials: Credentials) -> grpc.Channel:
    """A channel of its own (it shares no connection); connects at the first call.

    Raises OptionError as `check_credentials` does.
    """
    check_credentials(address, credentials)
    options = [
        ("grpc.max_send_message_length", MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", KEEPALIVE_SECONDS * 1000),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_SECONDS * 500),  # of bytes on the way, in TCP
        ("grpc.http2.ping_timeout_ms", PING_SECONDS * 1000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.enable_retries", 0),  # a stream cannot be tried again by gRPC, only by its writer
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if is_loopback(address.host):
        options.append(("grpc.enable_http_proxy", 0))
    if not address.tls:
        return grpc.insecure_channel(address.target, options=options)
    return grpc.secure_channel(address.target, _tls(credentials), options=options)


def _tls(credentials: Credentials) -> grpc.ChannelCredentials:
    files = (credentials.ca_file, credentials.key_file, credentials.cert_file)
    return grpc.ssl_channel_credentials(*map(read_file, files))
