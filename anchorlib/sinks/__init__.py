"""Where records go: a sink takes blocks of them.

base       what a sink is
admission  which records every sink has room for
embedded   the store's writer, in this process
remote     a collector, over gRPC, by way of a spool
spool…     records on this machine's disk until the collector has them
sending    an outbox and a collector that comes and goes
copying    a run of one store, recorded once more in another; `copy_key`: by whom
memory     a list, for tests
opening    which of them a store's address means
"""

from __future__ import annotations

from anchorlib.sinks.admission import Admission, check_edges, statable
from anchorlib.sinks.base import DONE, Flushing, OnFull, Sink
from anchorlib.sinks.embedded import EmbeddedSink
from anchorlib.sinks.memory import MemorySink
from anchorlib.sinks.opening import SinkOptions, open_sink, open_writer
from anchorlib.sinks.pushing import is_spool, push
from anchorlib.sinks.spool_left import LeftSpool, SpoolRoom, spool_room, spools_here
from anchorlib.sinks.spool_place import parse_bytes

__all__ = [
    "DONE",
    "Admission",
    "EmbeddedSink",
    "Flushing",
    "LeftSpool",
    "MemorySink",
    "OnFull",
    "Sink",
    "SinkOptions",
    "SpoolRoom",
    "check_edges",
    "is_spool",
    "open_sink",
    "open_writer",
    "parse_bytes",
    "push",
    "spool_room",
    "spools_here",
    "statable",
]
