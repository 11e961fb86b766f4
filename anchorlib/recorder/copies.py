"""Records of a device (a GPU), whose values get into the ring later than their slot is published.

    put, with the queue's lock    reserves room, and publishes a slot whose last word (`seq`) is 0
    fill, without the lock        gives the copier the copy to make, and does not wait for it
    the device's stream           writes the values, then the slot's last word

The drain, which empties the ring in order, stops at a slot whose last word is still 0. Slots whose
values will never come (their copy could not begin, or their device has failed) are made void here,
so that the drain counts the records as lost and goes on.
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
    """The interface of a lane: copies that run one after the other, as in one CUDA stream."""

    @property
    def is_idle(self) -> bool:
        """Whether no copy of this lane will write any more: all are done, or the device has failed.

        Raises nothing.
        """


class Copier(Lane, Protocol):
    """The interface of an object that copies values from devices, with one lane per device.

    Any thread may call the methods. A copier is idle if all of its lanes are.
    """

    def takes(self, x: Any) -> bool:
        """Return whether this copier can copy the values of the tensor `x`, by its device."""

    def enqueue(
        self, writes: Sequence[tuple[Any, int]], ready_address: int, value: int
    ) -> Lane | None:
        """Begin to copy each (x, address) of `writes`, and then `value` to `ready_address`.

        Each tensor `x` is copied as it is at this point of its device's work. The eight bytes of
        `value` must become visible after all copied values, to say that these are there. The copier
        keeps the memory of each `x` alive until then.

        Returns the lane in which the copies wait; None if all are done already. Raises an Exception
        if the copies cannot be made: then nothing is written, neither now nor later.
        """

    def close(self) -> bool:
        """Refuse further copies, and return whether no earlier copy can write any more."""


@dataclass(frozen=True, slots=True)
class Later:
    """The source of a record whose values are on a device.

    copier: copies the values.
    x: the tensor that holds the values.
    fields: further values that only the device has (such as the loss scale), each with its byte
        offset in the record's slot.
    """

    copier: Copier
    x: Any
    fields: tuple[tuple[Any, int], ...] = ()


class _Destination(NamedTuple):
    """The address to which the values of one record are to be copied.

    number: the number of the record's slot in the ring.
    source: the tensor and its copier.
    owner: an object that keeps the memory at `address` alive; None for memory of the ring.
    """

    number: int
    address: int
    source: Later
    owner: object


class Copies:
    """The records in a ring whose values a device (a GPU) has yet to write.

    The slots, which describe the records, are published already.

    on_fault: called with the exception of each copy that could not begin.
    """

    def __init__(self, ring: Ring, on_fault: Callable[[Exception], None]) -> None:
        self._ring, self._on_fault = ring, on_fault
        self._places: dict[int, deque[_Destination]] = {}  # by thread: each fills its own
        self._running: deque[tuple[int, Lane]] = deque()
        self._guard = threading.RLock()

    def reserve(self, source: Later, address: int, owner: object = None) -> None:
        """Note that the record which is published next gets the values of `source`, at `address`.

        The caller has to hold the queue's lock. The copy begins with `fill`.

        owner: an object that keeps the memory at `address` alive; None for memory of the ring.
        """
        place = _Destination(self._ring[Word.PUBLISHED], address, source, owner)
        self._places.setdefault(threading.get_ident(), deque()).append(place)

    def cancel(self) -> None:
        """Undo this thread's last `reserve` after a failure, unless its record was published."""
        places = self._places.get(threading.get_ident())
        if places and places[-1].number >= self._ring[Word.PUBLISHED]:
            places.pop()

    def fill(self) -> None:
        """Begin the copies for the records that this thread has reserved; do not wait for them.

        The caller must not hold the queue's lock. A copy that cannot begin makes its record void;
        nothing is raised for it.
        """
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
        """Make void each record whose copy is over without having written the values.

        A copy is over if its lane is idle. The values never come, for instance because the device
        has failed; the drain then counts the record as lost, and goes on.
        """
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

    def watch(self, answer: Future[Any], timeout: float | None) -> None:
        """Wait for the future `answer`, and call `settle` a few times a second while waiting.

        The drain completes `answer`. It would wait for the values of a failed device for ever if
        `settle` did not make their records void. Returns when `answer` is complete, when no copy is
        under way any more, or after `timeout` seconds (None: no limit).
        """
        end = None if timeout is None else time.monotonic() + timeout
        while (self._running or self._places) and not answer.done():
            left = _LOOK_SECONDS if end is None else min(_LOOK_SECONDS, end - time.monotonic())
            if left <= 0:
                return
            wait([answer], left)
            self.settle()
