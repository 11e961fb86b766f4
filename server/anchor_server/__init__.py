"""The collector: takes records in over gRPC, writes them with the store's writer, gives files out.

    trainer ══Push══▶ PushService ─▶ Ranks ─▶ Writer ─▶ <store>/<run>.zarr
    reader  ◀══Get═══ ReaderService ◀──────────────────┘

collector  the gRPC server and its life
push       one stream: what it says, in which order, and what it is answered
inbox      a stream's requests, read ahead
ranks      who writes which rank
files      the reader's service
refusals   errors as status codes
auth       bearer tokens and certificates
"""

from anchor_server.auth import ServerTLS
from anchor_server.collector import Collector, serve

__all__ = ["Collector", "ServerTLS", "serve"]
