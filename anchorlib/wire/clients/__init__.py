"""The clients of a collector's services.

push           the service Collector: one stream of records to a collector
unary_channel  one question to a collector, and its answer; `reader` and `keeper` use it
reader         the service Reader: files of a store
keeper         the service Keeper: runs measured, removed and renamed
health         gRPC's health service: whether a collector is serving
"""

from anchorlib.wire.clients.health import ask_health
from anchorlib.wire.clients.keeper import KeeperClient
from anchorlib.wire.clients.push import PushStream, host_of, writer_name
from anchorlib.wire.clients.reader import ReaderClient

__all__ = [
    "KeeperClient",
    "PushStream",
    "ReaderClient",
    "ask_health",
    "host_of",
    "writer_name",
]
