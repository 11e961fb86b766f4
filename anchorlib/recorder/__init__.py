"""How records leave the training threads.

queue      the trainer's side, bounded by bytes: what waits lies in a ring
ring       the memory, and the hand that places records in it; `layout` says which byte is what
told       definitions and statements as they lie in the ring; `statements` before, `known` after
drain      the other end: columns, admission, the sink; `losses` counts what did not get there
asks       what is asked of a drain beside the records
worker     where a drain runs: in a `thread`, or in a `process`, started with a `plan`
main       what that process does; it and the trainer `talk`
"""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias

from anchorlib.recorder.plan import Plan, open_plan
from anchorlib.recorder.process import RecorderProcess
from anchorlib.recorder.queue import RecordQueue, Source, ring_size
from anchorlib.recorder.ring import Ring
from anchorlib.recorder.thread import RecorderThread
from anchorlib.sinks import OnFull, RunOptions, Sink, open_writer

__all__ = [
    "Place",
    "RecordQueue",
    "Ring",
    "Source",
    "default_place",
    "process_queue",
    "thread_queue",
]

_log = logging.getLogger("anchorlib")

Place: TypeAlias = Literal["process", "thread"]
"""Where a ring is drained."""


def default_place() -> Place:
    """A process where the system has what it needs.

    Stores to shared memory must become visible in the order in which Python makes them, which the
    processor decides.
    """
    has_all = all(hasattr(os, name) for name in ("memfd_create", "eventfd", "pidfd_open"))
    in_order = platform.machine() in {"x86_64", "AMD64"}
    return "process" if has_all and in_order and sys.executable else "thread"


def thread_queue(
    sink: Sink,
    *,
    limit_bytes: int,
    on_full: OnFull,
    on_start: Callable[[], None] = lambda: None,
) -> RecordQueue:
    """A queue that a thread of this process drains into `sink`.

    on_start: called first in that thread.
    """
    ring = Ring(-1, ring_size(limit_bytes), new=True)
    worker = RecorderThread(ring, sink, on_start)
    return RecordQueue(ring, worker, limit_bytes=limit_bytes, on_full=on_full)


def process_queue(store: str, options: RunOptions) -> RecordQueue:
    """A queue that a process of its own drains into the directory `store`.

    A thread of this process where the system refuses one, which is said. Raises what opening the
    store raises.
    """
    secret = os.urandom(16)
    lock = open_writer(Path(store), options, secret).hand_over()
    plan = Plan(
        str(Path(store).absolute()),  # a later chdir leaves it where it is
        replace(options, header={}),  # the attempt has it already
        ring_size(options.queue_bytes),
        secret.hex(),
    )
    try:
        worker = RecorderProcess(plan, lock)
    except OSError as fault:
        _log.warning(
            "anchorlib: no recorder process could be started (%s); a thread of this process "
            "records instead",
            fault,
        )
        return thread_queue(
            open_plan(plan, lock)[0], limit_bytes=options.queue_bytes, on_full=options.on_full
        )
    return RecordQueue(
        worker.ring, worker, limit_bytes=options.queue_bytes, on_full=options.on_full
    )
