"""Makes a session's queue of records, and the process or thread that empties it into the store."""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias

from anchorlib.errors import StoreError
from anchorlib.recorder.process import RecorderProcess
from anchorlib.recorder.queue import RecordQueue, ring_size
from anchorlib.recorder.recorder_plan import RecorderPlan
from anchorlib.recorder.ring import Ring
from anchorlib.recorder.thread import RecorderThread
from anchorlib.sinks import (
    EmbeddedSink,
    OnFull,
    RunOptions,
    Sink,
    check_collector,
    open_sink,
    open_writer,
)
from anchorlib.store import RankLock

__all__ = [
    "DrainPlace",
    "default_place",
    "process_queue",
    "thread_queue",
]

_log = logging.getLogger("anchorlib")

DrainPlace: TypeAlias = Literal["process", "thread"]
"""What empties a session's ring: a recorder process, or a thread of the trainer."""


def default_place() -> DrainPlace:
    """Return what empties the ring by default: "process" if the system allows that, else "thread".

    A process needs Linux's memfd, eventfd and pidfd, and a Python interpreter to run, which a
    frozen program does not have. It also needs a processor that makes stores to shared memory
    visible in the order in which Python makes them, as x86-64 does.
    """
    has_all = all(hasattr(os, name) for name in ("memfd_create", "eventfd", "pidfd_open"))
    in_order = platform.machine() in {"x86_64", "AMD64"}
    # In a frozen program sys.executable is the program itself, and would start the training again.
    has_python = bool(sys.executable) and not getattr(sys, "frozen", False)
    return "process" if has_all and in_order and has_python else "thread"


def thread_queue(
    sink: Sink,
    *,
    limit_bytes: int,
    on_full: OnFull,
    on_start: Callable[[], None] = lambda: None,
) -> RecordQueue:
    """Make a queue, and start a thread of this process that empties it into `sink`.

    limit_bytes: the most bytes of values that may wait in the queue.
    on_full: what to do when the queue is full (see `RunOptions`).
    on_start: called first in that thread.

    If there is no memory for the queue, this closes `sink` and raises StoreError.
    """
    try:
        ring = Ring(-1, ring_size(limit_bytes), new=True)
    except (OSError, MemoryError, OverflowError) as fault:
        sink.revoke()
        sink.close(0)
        raise StoreError(
            f"no memory for a queue of {limit_bytes} bytes ({fault}); "
            "start(queue_bytes=...) takes less"
        ) from None
    worker = RecorderThread(ring, sink, on_start)
    return RecordQueue(ring, worker, limit_bytes=limit_bytes, on_full=on_full)


def process_queue(
    store: str, options: RunOptions, on_start: Callable[[], None] = lambda: None
) -> RecordQueue:
    """Make a queue, and start a recorder process that empties it into `store`.

    Where no process can be started, a warning is logged, and a thread of this process empties the
    queue instead.

    store: a directory, or a collector's URL; a collector need not answer yet.
    options: which rank of which run is recorded, and how.

    on_start: called first in the thread of this process that empties the queue instead of the
        recorder process, if it ever comes to that.

    Raises the errors of opening the store, such as StoreError, RunExistsError and RunBusyError for
    a directory, and OptionError for a collector's address.
    """
    plan, lock = _planned(store, options)
    try:
        if default_place() != "process":
            raise OSError("not on this system")
        worker = RecorderProcess(plan, lock, on_start)
    except (OSError, OverflowError) as fault:
        _log.warning(
            "anchorlib: no recorder process could be started (%s); a thread of this process "
            "records instead",
            fault,
        )
        sink = _sink_instead(plan, lock)
        return thread_queue(
            sink, limit_bytes=options.queue_bytes, on_full=options.on_full, on_start=on_start
        )
    return RecordQueue(
        worker.ring, worker, limit_bytes=options.queue_bytes, on_full=options.on_full
    )


def _planned(store: str, options: RunOptions) -> tuple[RecorderPlan, RankLock | None]:
    payload = ring_size(options.queue_bytes)
    if "://" in store:
        check_collector(store)
        return RecorderPlan(store, options, payload, ()), None
    secret = os.urandom(16)
    lock = open_writer(Path(store), options, secret).hand_over()
    options = replace(options, header={})  # the opened attempt has the header already
    # The path is absolute, because a training may change its directory before a recorder restarts.
    return RecorderPlan(str(Path(store).absolute()), options, payload, (secret.hex(),)), lock


def _sink_instead(plan: RecorderPlan, lock: RankLock | None) -> Sink:
    if lock is None:
        return open_sink(plan.store, plan.options)
    secret = bytes.fromhex(plan.writers[-1])
    return EmbeddedSink(open_writer(Path(plan.store), plan.options, secret, lock))
