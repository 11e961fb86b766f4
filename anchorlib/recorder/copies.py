"""Records whose values come later than their slot, because a device has to copy them first.

    put, under the queue's lock   a place in the ring, its slot published with an empty last word
    fill, without it              the copier is given the copy, and nobody waits for it
    the device's stream           writes the values, then the slot's last word

The drain reads no slot behind one whose last word is empty. Slots whose values will never come
(their copy could not begin, or their device has failed) are made void here, so that the drain
counts the records as lost and goes on.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from anchorlib.recorder.layout import SEQ_AT, Word
from anchorlib.recorder.ring import Ring

__all__ = ["Copier", "Copies", "Lane", "Later"]

_LOOK_SECONDS: Final = 0.25  # between two looks at devices while somebody waits for them


class Lane(Protocol):
    """Copies that run one after the other, as the copies in one stream of a device do."""

    @property
    def is_idle(self) -> bool:
        """Whether no copy is still to run: all are done, or the device has failed.

        Raises nothing.
        """


class Copier(Lane, Protocol):
    """Copies values from devices, in as many lanes. Any thread may call it."""

    def takes(self, x: Any) -> bool:
        """Whether this copier is to copy the values of `x`."""

    def enqueue(
        self, writes: Sequence[tuple[Any, int]], ready_address: int, value: int
    ) -> Lane | None:
        """Have the values of each `x` copied to its address, and then `value` to `ready_address`.

        Copied are the values that `x` has at this point of its device's work. The eight bytes of
        `value` must become visible after all values. The copier keeps the memory of each `x` alive
        until then.

        Returns the lane in which the copies wait; None where all are done. Raises an Exception
        where they cannot be made: then nothing is written, neither now nor later.
        """

    def close(self) -> bool:
        """Enqueue nothing more; returns whether no copy is still to be written either."""


@dataclass(frozen=True, slots=True)
class Later:
    """The values of `x` on a device, which `copier` copies.

    fields: further values that only the device has, each with its offset in the slot.
    """

    copier: Copier
    x: Any
    fields: tuple[tuple[Any, int], ...] = ()


class _Destination(NamedTuple):
    """Where the values of a slot are to be written.

    number: the slot's. owner: keeps the memory at `address` alive where it is not the ring's.
    """

    number: int
    address: int
    source: Later
    owner: object


class Copies:
    """The slots of a ring that are published and wait for their values.

    on_fault: called with the fault of each copy that failed.
    """

    def __init__(self, ring: Ring, on_fault: Callable[[Exception], None]) -> None:
        self._ring, self._on_fault = ring, on_fault
        self._places: dict[int, deque[_Destination]] = {}  # by thread: each fills its own
        self._running: deque[tuple[int, Lane]] = deque()
        self._guard = threading.RLock()

    def reserve(self, source: Later, address: int, owner: object = None) -> None:
        """Note that the next published slot is for `source`; the queue's lock is held."""
        place = _Destination(self._ring[Word.PUBLISHED], address, source, owner)
        self._places.setdefault(threading.get_ident(), deque()).append(place)

    def cancel(self) -> None:
        """Undo `reserve` after a failure, unless the slot was published nevertheless."""
        places = self._places.get(threading.get_ident())
        if places and places[-1].number >= self._ring[Word.PUBLISHED]:
            places.pop()

    def fill(self) -> None:
        """Begin the copies into this thread's reserved slots; the queue's lock is not held."""
        if not self._places:
            return
        places = self._places.pop(threading.get_ident(), None)
        try:
            while places:
                self._begin(places)
        finally:
            for place in places or ():  # left over where an exception, as Ctrl-C, came in between
                self._ring.void(place.number)

    def _begin(self, places: deque[_Destination]) -> None:
        number, address, source, _ = places[0]
        slot = self._ring.slot_address(number)
        writes = [(source.x, address), *((x, slot + at) for x, at in source.fields)]
        # Ctrl-C may come before or after the copies began: the copier's own lane covers both cases.
        lane: Lane | None = source.copier
        try:
            places.popleft()
            lane = source.copier.enqueue(writes, slot + SEQ_AT, number + 1)
        except Exception as fault:  # noqa: BLE001  # of a device: it must not end training
            lane = None
            self._ring.void(number)
            self.settle()
            self._on_fault(fault)
        finally:
            if lane is not None:
                self._await(number, lane)

    def _await(self, number: int, lane: Lane) -> None:
        with self._guard:
            self._running.append((number, lane))
            self._forget_done()

    def _forget_done(self) -> None:
        running = self._running
        while running and self._ring.is_settled(running[0][0]):
            running.popleft()

    def settle(self) -> None:
        """Make slots void whose values an idle lane has not written: they never come."""
        with self._guard:
            self._forget_done()
            # The copies are listed before any lane is asked whether it is idle: a lane that is idle
            # now may get another copy right after, which is not void.
            running = list(self._running)
            idle = {lane for lane in {lane for _, lane in running} if lane.is_idle}
            for number, lane in running:
                if lane in idle and not self._ring.is_settled(number):
                    self._ring.void(number)
            self._forget_done()

    def watch(self, asked: Future[Any], timeout: float | None) -> None:
        """Wait for `asked`, at most `timeout` seconds, and settle copies meanwhile.

        Returns at once where no copies are awaited: then nothing needs to be settled.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while (self._running or self._places) and not asked.done():
            left = _LOOK_SECONDS if end is None else min(_LOOK_SECONDS, end - time.monotonic())
            if left <= 0:
                return
            wait([asked], left)
            self.settle()
