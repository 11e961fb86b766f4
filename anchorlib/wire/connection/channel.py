"""gRPC channels to a collector, with the options and credentials of every client."""

from __future__ import annotations

from typing import Final

from anchorlib.wire.address import Address, is_loopback
from anchorlib.wire.connection.loading import grpc
from anchorlib.wire.credentials import Credentials, check_credentials, read_file
from anchorlib.wire.limits import MESSAGE_BYTES

__all__ = ["KEEPALIVE_SECONDS", "PING_SECONDS", "open_channel"]

KEEPALIVE_SECONDS: Final = 20
"""A ping is sent over a connection that was quiet for this long."""

PING_SECONDS: Final = 60
"""A peer that has not acknowledged a ping for this long is taken for gone.

It is long because a ping waits behind messages that were sent before it, on a slow line.
"""


def open_channel(address: Address, credentials: Credentials) -> grpc.Channel:
    """Return a new channel to the collector, whose connection no other channel shares.

    The channel connects at the first call that is made through it. Raises OptionError for
    credentials that cannot or must not be shown to this collector.
    """
    check_credentials(address, credentials)
    options = [
        ("grpc.max_send_message_length", MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", KEEPALIVE_SECONDS * 1000),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_SECONDS * 500),  # until TCP acknowledges sent bytes
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
