"""How records leave the training threads: through a ring buffer, which a drain empties into a sink.

    training threads ──▶ queue ──▶ ring (shared memory) ──▶ drain ──▶ sink

session_queue     makes the queue of a session, and chooses where its drain runs
queue             the trainer's side, bounded by bytes: takes records and statements, flushes
record_placer     places records in the ring; what becomes of them where the ring is full
ring              the ring's memory, and its producer; `layout` says what each byte means
copies            records whose values a device (a GPU) writes after their slot was published
statement_placer  places definitions and `statements` in the ring; `statement_json`: their encoding
definitions       what the numbers of streams and layouts in slots mean, as the drain looks it up
drain             the other end of the ring: hands waiting records to the sink, marks how far it is
slot_records      the records in slots as columns, with digests and summaries of their values
lost_records      counts the records that did not reach the sink whole
drain_requests    the requests to a drain beside the records: flush and close
worker            the interface of what runs a drain: a `thread`, or a `process`
recorder_plan     what a recorder process is started with
process_messages  the messages between a trainer and its recorder process
main              the program of the recorder process

A slot is an entry of the ring, of a fixed size: it describes a record, or holds a definition or a
statement. A statement is what is stored besides records: gaps, lineage, headers, operations.
"""

from __future__ import annotations

from anchorlib.recorder.copies import Later
from anchorlib.recorder.queue import RecordQueue
from anchorlib.recorder.record_placer import Source
from anchorlib.recorder.ring import Ring
from anchorlib.recorder.session_queue import DrainPlace, default_place, process_queue, thread_queue

__all__ = [
    "DrainPlace",
    "Later",
    "RecordQueue",
    "Ring",
    "Source",
    "default_place",
    "process_queue",
    "thread_queue",
]
