"""Makes the queue of a session, drained by a recorder process or by a thread of this process."""

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
from anchorlib.recorder.recorder_plan import Plan
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
"""Where a ring is drained."""


def default_place() -> DrainPlace:
    """Where a ring is drained by default: in a process where the system allows it, else a thread.

    A process needs Linux's memfd, eventfd and pidfd. It also needs a processor that makes stores to
    shared memory visible in the order in which Python makes them, as x86-64 does.
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
    """A queue that a thread of this process drains into `sink`.

    on_start: called first in that thread.

    Raises StoreError where there is no memory for the queue, and closes `sink` then.
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
    """A queue that a process of its own drains into `store`: a directory, or a collector's URL.

    Where no process can be started, a thread of this process drains the queue, after a warning.

    on_start: called first in that thread.

    Raises what opening the store raises; a collector is not waited for.
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


def _planned(store: str, options: RunOptions) -> tuple[Plan, RankLock | None]:
    payload = ring_size(options.queue_bytes)
    if "://" in store:
        check_collector(store)
        return Plan(store, options, payload, ()), None
    secret = os.urandom(16)
    lock = open_writer(Path(store), options, secret).hand_over()
    options = replace(options, header={})  # the opened attempt has the header already
    # The path is absolute, because a training may change its directory before a recorder restarts.
    return Plan(str(Path(store).absolute()), options, payload, (secret.hex(),)), lock


def _sink_instead(plan: Plan, lock: RankLock | None) -> Sink:
    if lock is None:
        return open_sink(plan.store, plan.options)
    secret = bytes.fromhex(plan.writers[-1])
    return EmbeddedSink(open_writer(Path(plan.store), plan.options, secret, lock))
