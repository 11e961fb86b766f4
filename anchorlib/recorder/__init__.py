"""How records leave the training threads.

queue      the trainer's side, bounded by bytes: what waits lies in a ring
ring       the memory, and the hand that places records in it; `layout` says which byte is what
copies     records whose values come later, from a device
teller     places definitions and `statements` in the ring, where they lie as `told` says; the
           drain's side knows them by `known`
drain      the other end: columns, admission, the sink; `losses` counts what did not get there
asks       what is asked of a drain beside the records
worker     where a drain runs: in a `thread`, or in a `process`, started with a `plan`
main       what that process does; it and the trainer `talk`
opening    which of both a session gets
"""

from __future__ import annotations

from anchorlib.recorder.copies import Copier, Lane, Later
from anchorlib.recorder.opening import Place, default_place, process_queue, thread_queue
from anchorlib.recorder.queue import RecordQueue, Source
from anchorlib.recorder.ring import Ring

__all__ = [
    "Copier",
    "Lane",
    "Later",
    "Place",
    "RecordQueue",
    "Ring",
    "Source",
    "default_place",
    "process_queue",
    "thread_queue",
]
