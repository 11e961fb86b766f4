"""Where trainers and recorders die: at named places of a spool, and around a mark of the ring.

    python -m tests.delivery.mortal NAME DESCRIPTORS

is a recorder process as `anchorlib.recorder.main` is, of the life whose folder CHAOS_LIFE names. It
writes down that it begins and how it ends, and marks what its sink has taken.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from anchorlib.recorder import main as recorder
from anchorlib.recorder.ring import Ring
from anchorlib.sinks import Sink
from anchorlib.spool import spools
from anchorlib.spool.disk import Disk
from tests.delivery.lives import LIFE, Marks, Order, note

FAILPOINTS = ("write", "half", "create", "remove", "sync", "folder")
RING_POINTS = ("unmarked", "marked")  # before and behind the mark that says what is in the sink

_ALIVE_SECONDS = 3.0  # that a dead trainer's records have to reach a collector
_SEGMENT_BYTES = 40_000


def die() -> None:
    """End this process as kill -9 does."""
    os.kill(os.getpid(), signal.SIGKILL)


class Countdown:
    """Comes to an end at the `count`-th time that a process comes to `point`."""

    def __init__(self, point: str, count: int, end: Callable[[], None] = die) -> None:
        self.point = point
        self.end = end
        self._left = count

    @classmethod
    def of(cls, text: str, end: Callable[[], None] = die) -> Countdown:
        """From POINT:COUNT."""
        point, _, count = text.partition(":")
        return cls(point, int(count or 0), end)

    def is_over(self, point: str) -> bool:
        if point == self.point:
            self._left -= 1
        return point == self.point and self._left <= 0

    def at(self, point: str) -> None:
        if self.is_over(point):
            self.end()


class MortalDisk(Disk):
    """A disk that kills the process when the countdown ends."""

    def __init__(self, countdown: Countdown) -> None:
        self._countdown = countdown

    def create(self, path: Path) -> int:
        self._countdown.at("create")
        return super().create(path)

    def write(self, file: int, parts: Sequence[bytes]) -> int:
        self._countdown.at("write")
        if self._countdown.is_over("half"):
            data = b"".join(parts)
            os.write(file, data[: len(data) // 2])
            self._countdown.end()
        return super().write(file, parts)

    def sync(self, file: int) -> None:
        self._countdown.at("sync")
        super().sync(file)

    def sync_folder(self, folder: Path) -> None:
        self._countdown.at("folder")
        super().sync_folder(folder)

    def remove(self, path: Path) -> None:
        self._countdown.at("remove")
        super().remove(path)


def spool_mortally(countdown: Countdown) -> None:
    """Put the spools of this process on a mortal disk, in small segments."""
    spools.Disk = lambda: MortalDisk(countdown)  # type: ignore[assignment,misc]
    spools.SEGMENT_SIZE = type(spools.SEGMENT_SIZE)(_SEGMENT_BYTES, _SEGMENT_BYTES)  # type: ignore[misc]


def mark_mortally(countdown: Countdown) -> None:
    """Let the drains of this process die around a mark."""
    advance = Ring.advance

    def mortal(ring: Ring, mark: Sequence[int]) -> None:
        countdown.at("unmarked")
        advance(ring, mark)
        countdown.at("marked")

    Ring.advance = mortal  # type: ignore[method-assign]


def watched(sink: Sink, marks: Marks) -> Sink:
    """`sink`, wrapped so that it marks the records that it has taken."""
    put = sink.put

    def putting(block):
        put(block)
        marks.set("put", block.columns["step"].tolist())

    sink.put = putting  # type: ignore[method-assign]
    return sink


def main(arguments: Sequence[str]) -> None:
    """Be a recorder."""
    folder = Path(os.environ[LIFE])
    is_first = note(folder, "begun")
    order, marks = Order.read(folder), Marks(folder)

    def end() -> None:
        note(folder, "died")
        die()

    countdown = Countdown.of(order.point if is_first else "", end)
    spool_mortally(countdown)
    mark_mortally(countdown)
    open_plan = recorder.open_plan

    def opened(*given):
        sink, before = open_plan(*given)
        return watched(sink, marks), before

    recorder.open_plan = opened  # type: ignore[assignment]
    recorder._ALIVE_SECONDS = _ALIVE_SECONDS  # type: ignore[misc]
    recorder.main(arguments)
    note(folder, "ended")


if __name__ == "__main__":
    main(sys.argv[1:])
