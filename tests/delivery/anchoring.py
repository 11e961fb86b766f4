"""A trainer without training: a session that anchors numbered records, one a step.

    python -m tests.delivery.anchoring FOLDER

FOLDER is that of its life (`tests.delivery.lives`).
"""

from __future__ import annotations

import ctypes
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path

import torch

import anchorlib
import anchorlib.capture.sessions.active
import anchorlib.recorder.process
from anchorlib.errors import FlushTimeoutError
from tests.delivery import mortal
from tests.delivery.lines import numbered
from tests.delivery.lives import DEATHS, EXIT, Marks, Order

_CLOSE_SECONDS = 60


def main(folder: Path) -> None:
    """Anchor the records that the life's order names."""
    order, marks = Order.read(folder), Marks(folder)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _arrange(order, marks)
    session = anchorlib.start(
        "run1",
        store=order.store,
        recorder=order.place,
        resume=order.resume,
        first_step=order.first,
        on_full="block",
        queue_bytes=order.queue_bytes,
        durability=order.durability,
    )
    chance = random.Random(order.seed)
    rest = order.seconds / max(1, order.last - order.first)
    for number in range(order.first, order.last):
        if number == order.dies_at:
            _die(order.death)
        record = numbered(number)
        tensor = torch.from_numpy(record.raw)
        session.step(number)
        marks.set("begun", [number])
        anchorlib.anchor(tensor, record.name, grad=False)
        marks.set("anchored", [number])
        if chance.random() < 0.1:
            time.sleep(chance.random() * 20 * rest)
        elif chance.random() < 0.01:
            _flush(session)
    session.close(_CLOSE_SECONDS)


def _arrange(order: Order, marks: Marks) -> None:
    """Make the recorder mark the records that its sink took, and die where the order says."""
    process, opening = anchorlib.recorder.process, anchorlib.capture.sessions.active
    process._MODULE = "tests.delivery.mortal"  # type: ignore[misc]
    if order.place == "thread":
        mortal.spool_mortally(mortal.Countdown.of(order.point))
    open_plan, open_sink = process.open_plan, opening.open_sink

    def plan_opened(*given):
        sink, before = open_plan(*given)
        return mortal.watched(sink, marks), before

    process.open_plan = plan_opened  # type: ignore[assignment]
    opening.open_sink = lambda *given: mortal.watched(open_sink(*given), marks)  # type: ignore[assignment]


def _die(death: str) -> None:
    if DEATHS[death] == signal.SIGSEGV:
        ctypes.string_at(0)
    elif DEATHS[death]:
        os.kill(os.getpid(), DEATHS[death])
    os._exit(EXIT)


def _flush(session: anchorlib.Session) -> None:
    try:
        session.flush(0.2)
    except FlushTimeoutError:
        return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
