"""Sinks: where a process puts its blocks of records, be it a directory, a collector or memory.

base       the interface of a sink
admission  leaves out records that no store can hold
embedded   the sink that writes a store in this process
remote     the sink that sends to a collector over gRPC, by way of a spool; `line_room`: what it
           drops where too much waits; `delivery_warnings`: what it logs
memory     the sink that keeps records in a list, for tests
options    the rank that a sink records, and how its records are kept
opening    makes the sink for a store's address: a directory, or a collector's URL
pushing    `anchor push`: delivers a spool, or copies a run
copying    copies a run into another store; `copy_key`: the secret by which a copy is continued
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
