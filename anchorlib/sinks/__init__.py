"""How records leave the training thread.

queue      bounded by bytes, with the thread that drains it: the one in front of every sink
deferred   records that are still to be made: what waits in the queue
statements gaps, lineage and header entries on their way to the sink
losses     what a queue lost, counted and told
base       what a sink is
embedded   the store's writer, in this process
remote     a collector, over gRPC, by way of a spool
pushing    what `anchor push` does: a spool delivered, or a run copied
copying    a run of one store, recorded once more in another; `copy_key`: by whom
memory     a list, for tests
options    what a sink is told of the rank that it records
opening    which of them a store's address means
"""

from __future__ import annotations

from anchorlib.sinks.base import Sink
from anchorlib.sinks.deferred import Deferred
from anchorlib.sinks.memory import MemorySink
from anchorlib.sinks.opening import open_sink
from anchorlib.sinks.options import QUEUE_BYTES, Durability, RunOptions
from anchorlib.sinks.pushing import push
from anchorlib.sinks.queue import OnFull, RecordQueue

__all__ = [
    "QUEUE_BYTES",
    "Deferred",
    "Durability",
    "MemorySink",
    "OnFull",
    "RecordQueue",
    "RunOptions",
    "Sink",
    "open_sink",
    "push",
]
