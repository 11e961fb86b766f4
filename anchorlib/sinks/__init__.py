"""Where records go: a sink takes blocks of them.

base       what a sink is
admission  which records every sink has room for
embedded   the store's writer, in this process
remote     a collector, over gRPC, by way of a spool
pushing    what `anchor push` does: a spool delivered, or a run copied
copying    a run of one store, recorded once more in another; `copy_key`: by whom
memory     a list, for tests
options    what a sink is told of the rank that it records
opening    which of them a store's address means
"""

from __future__ import annotations

from anchorlib.sinks.admission import Admission, check_edges, statable
from anchorlib.sinks.base import DONE, Flushing, OnFull, Sink
from anchorlib.sinks.embedded import EmbeddedSink, open_writer
from anchorlib.sinks.memory import MemorySink
from anchorlib.sinks.opening import check_collector, open_sink
from anchorlib.sinks.options import QUEUE_BYTES, Durability, RunOptions
from anchorlib.sinks.pushing import push

__all__ = [
    "DONE",
    "QUEUE_BYTES",
    "Admission",
    "Durability",
    "EmbeddedSink",
    "Flushing",
    "MemorySink",
    "OnFull",
    "RunOptions",
    "Sink",
    "check_collector",
    "check_edges",
    "open_sink",
    "open_writer",
    "push",
    "statable",
]
