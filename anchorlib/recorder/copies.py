"""Records whose values come after their slot: a copier brings them, when its device comes to it.

    put, under the queue's lock   a place in the ring, its slot published with an empty last word
    fill, without it              the copier is given the copy, and nobody waits for it
    the device's stream           writes the values, then the slot's last word

The drain takes nothing behind a slot whose last word is empty. What will never be written (a copy
that could not begin, a device that has failed) is made void here, so that the drain counts it and
goes on.
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
    """Copies that run one after the other, as those in a stream of a device do."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is still to be copied: all is done, or the device has failed.

        Raises nothing.
        """


class Copier(Lane, Protocol):
    """Copies values from devices, in as many lanes. Any thread may call it."""

    def takes(self, x: Any) -> bool:
        """Whether the values of `x` are to be copied by it."""

    def enqueue(
        self, writes: Sequence[tuple[Any, int]], ready_address: int, value: int
    ) -> Lane | None:
        """Have the values of each `x` copied to its address, and then `value` to `ready_address`.

        The copies are of what `x` holds now, in the order of its device's work; that of the value,
        eight bytes, is seen by nobody before the others are. Whoever implements this keeps the
        memory of each `x` as long as it is needed.

        The lane in which this waits; None where all of it is done. Raises an Exception where it
        cannot be: nothing of it is written then, neither now nor later.
        """

    def close(self) -> bool:
        """Nothing more is enqueued; whether nothing is written any more either."""


@dataclass(frozen=True, slots=True)
class Later:
    """Values on a device: `copier` brings those of `x`.

    fields: what else only the device knows, each with its place in the slot.
    """

    copier: Copier
    x: Any
    fields: tuple[tuple[Any, int], ...] = ()


class _Place(NamedTuple):
    """Where values are to come. owner: keeps the memory at `address`, if it is not the ring's."""

    number: int
    address: int
    source: Later
    owner: object


class Copies:
    """The slots of a ring that are published and wait for their values.

    told: hears of each copy that failed.
    """

    def __init__(self, ring: Ring, told: Callable[[Exception], None]) -> None:
        self._ring, self._told = ring, told
        self._places: dict[int, deque[_Place]] = {}  # by thread: each fills its own
        self._running: deque[tuple[int, Lane]] = deque()
        self._guard = threading.RLock()

    def reserve(self, source: Later, address: int, owner: object = None) -> None:
        """The slot that is published next is for `source`; the queue's lock is held."""
        place = _Place(self._ring[Word.PUBLISHED], address, source, owner)
        self._places.setdefault(threading.get_ident(), deque()).append(place)

    def cancel(self) -> None:
        """Something went wrong after `reserve`: forget the place, unless its slot was published."""
        places = self._places.get(threading.get_ident())
        if places and places[-1].number >= self._ring[Word.PUBLISHED]:
            places.pop()

    def fill(self) -> None:
        """Have the values copied for which this thread has places; the queue's lock is not held."""
        if not self._places:
            return
        places = self._places.pop(threading.get_ident(), None)
        try:
            while places:
                self._begin(places)
        finally:
            for place in places or ():  # Ctrl-C came in between
                self._ring.void(place.number)

    def _begin(self, places: deque[_Place]) -> None:
        number, address, source, _ = places[0]
        slot = self._ring.slot_address(number)
        writes = [(source.x, address), *((x, slot + at) for x, at in source.fields)]
        # Should Ctrl-C come, nobody knows whether it was too late: the whole copier is waited for.
        lane: Lane | None = source.copier
        try:
            places.popleft()
            lane = source.copier.enqueue(writes, slot + SEQ_AT, number + 1)
        except Exception as fault:  # noqa: BLE001  # of a device: it must not end training
            lane = None
            self._ring.void(number)
            self.settle()
            self._told(fault)
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
        """Make void what lanes that have nothing to do any more did not copy."""
        with self._guard:
            self._forget_done()
            running = list(self._running)  # what they were given before they are asked
            idle = {lane for lane in {lane for _, lane in running} if lane.is_idle}
            for number, lane in running:
                if lane in idle and not self._ring.is_settled(number):
                    self._ring.void(number)
            self._forget_done()

    def watch(self, asked: Future[Any], timeout: float | None) -> None:
        """While copies are awaited, and at most for `timeout` seconds, wait for `asked`."""
        end = None if timeout is None else time.monotonic() + timeout
        while (self._running or self._places) and not asked.done():
            left = _LOOK_SECONDS if end is None else min(_LOOK_SECONDS, end - time.monotonic())
            if left <= 0:
                return
            wait([asked], left)
            self.settle()
