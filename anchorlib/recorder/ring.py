"""The ring between training threads and the drain: memory that both may map.

`Ring` is the memory. `Producer` places records in it; its caller holds a lock, for one record is
placed at a time. The consumer, `drain`, frees what is in the sink.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import time
from array import array
from collections.abc import Sequence
from typing import Any, Final, Self

import numpy as np

from anchorlib.errors import StoreError
from anchorlib.recorder.layout import (
    ALIGNMENT,
    CONTROL_BYTES,
    KIND_SHIFT,
    MAGIC,
    SLOT,
    SLOT_BYTES,
    SLOT_STRUCT,
    VOID,
    WORD_STRIDE,
    Mark,
    SlotKind,
    Word,
)

__all__ = [
    "SLOTS",
    "WARM_BYTES",
    "Producer",
    "Ring",
    "aligned",
    "move",
    "ring_bytes",
    "shared_memory",
]

SLOTS: Final = 1 << 15
WARM_BYTES: Final = 32 << 20  # what waits while the drain keeps up, twice
_PAGE: Final = 4096
_POPULATE: Final = 23  # MADV_POPULATE_WRITE, since Linux 5.14
_COPIED_TWICE: Final = 32 << 10  # below, a slice of memory is faster than a call of memmove
_LET_OTHERS_RUN: Final = 2 << 20  # from here on Python's lock is given away while memory is copied

_PUBLISHED: Final = Word.PUBLISHED * WORD_STRIDE
_WRITTEN: Final = Word.WRITTEN * WORD_STRIDE
_CONSUMED: Final = Word.CONSUMED * WORD_STRIDE
_FLOOR: Final = Word.FLOOR * WORD_STRIDE

# The memory of this process as one array of chars: a slice of it is a copy, made in a third of the
# time that ctypes.string_at takes. Only what belongs to a tensor is ever sliced.
_memory: Any = (ctypes.c_char * ((1 << 63) - 1)).from_address(0)

# ctypes.memmove gives Python's lock away for the time; to get it back takes longer than to copy.
_move = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
    ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0
)
_now = time.time_ns


def move(target: int, source: int, nbytes: int) -> None:
    """Copy memory from one address to another."""
    (_move if nbytes < _LET_OTHERS_RUN else ctypes.memmove)(target, source, nbytes)


def aligned(nbytes: int) -> int:
    """What values of `nbytes` take of the payload."""
    return (nbytes + ALIGNMENT - 1) & -ALIGNMENT


def ring_bytes(slots: int, payload: int) -> int:
    """The size of a ring's memory."""
    return _payload_at(slots) + payload


def _mark_words(which: int) -> slice:
    first = Word.MARKS + which * len(Mark)
    return slice(first * WORD_STRIDE, (first + len(Mark)) * WORD_STRIDE, WORD_STRIDE)


def _payload_at(slots: int) -> int:
    return CONTROL_BYTES + -(-slots * SLOT_BYTES // _PAGE) * _PAGE


class Ring:
    """A ring's memory, mapped into this process.

    slots: how many there are. payload: bytes for values, a multiple of 64.
    """

    def __init__(self, descriptor: int, payload: int, slots: int = SLOTS, *, new: bool) -> None:
        """Map the memory of `descriptor`, or anonymous memory for -1.

        Raises StoreError where it is no ring of this version.
        """
        self.slot_count, self.payload_bytes = slots, payload
        self.payload_at = _payload_at(slots)
        self.memory = mmap.mmap(descriptor, self.payload_at + payload)
        view = memoryview(self.memory)
        self.words = view[:CONTROL_BYTES].cast("Q")
        self.slots = np.frombuffer(self.memory, SLOT, slots, CONTROL_BYTES)
        self.payload = view[self.payload_at :]
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        if new:
            self.words[Word.MAGIC * WORD_STRIDE] = MAGIC
        elif self.words[Word.MAGIC * WORD_STRIDE] != MAGIC:
            raise StoreError("the recorder and the trainer are of different versions of anchorlib")

    def __getitem__(self, word: Word) -> int:
        return self.words[word * WORD_STRIDE]

    def __setitem__(self, word: Word, value: int) -> None:
        self.words[word * WORD_STRIDE] = value

    def mark(self) -> tuple[int, ...]:
        """The mark that holds now: an entry for each of `Mark`."""
        while True:
            active = self[Word.ACTIVE]
            mark = tuple(self.words[_mark_words(active)])
            if self[Word.ACTIVE] == active:  # it is not being written again
                return mark

    def advance(self, mark: Sequence[int]) -> None:
        """The consumer has come so far; the entries are those of `Mark`."""
        other = 1 - self[Word.ACTIVE]
        self.words[_mark_words(other)] = memoryview(array("Q", mark))
        self[Word.ACTIVE] = other
        self[Word.RECORDS] = mark[Mark.RECORDS]
        self[Word.CONSUMED] = mark[Mark.CONSUMED]

    def slot_address(self, number: int) -> int:
        """Where in this process's memory the slot of a record is."""
        return self.address + CONTROL_BYTES + number % self.slot_count * SLOT_BYTES

    def is_settled(self, number: int) -> bool:
        """Whether nothing more is awaited of the record in slot `number`."""
        seq = int(self.slots["seq"][number % self.slot_count])
        return seq & ~VOID == number + 1 or self[Word.CONSUMED] > number

    def void(self, number: int) -> None:
        """The values of the record in slot `number` never come; nobody writes there any more."""
        self.slots["seq"][number % self.slot_count] = (number + 1) | VOID

    def warm(self, nbytes: int) -> None:
        """Have the system find the first pages of the payload now, not when they are written to.

        Python's lock is given away meanwhile.
        """
        start = -(-(self.address + self.payload_at) // _PAGE) * _PAGE
        size = min(nbytes, self.payload_bytes) // _PAGE * _PAGE
        if sys.platform == "linux":  # where it is not known, the first writes find them
            ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _POPULATE)

    def give_back(self) -> None:
        """Nobody reads or writes records any more: the system gets their memory back."""
        if hasattr(mmap, "MADV_REMOVE"):
            self.memory.madvise(mmap.MADV_REMOVE, CONTROL_BYTES)


def shared_memory(nbytes: int) -> int:
    """A descriptor of memory that a child can map. Raises OSError."""
    descriptor = os.memfd_create("anchor-ring", os.MFD_CLOEXEC)
    try:
        os.truncate(descriptor, nbytes)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class Producer:
    """Places records in a ring, one after the other, each whole before it can be seen.

    Between `place` and `publish` no other record may be placed, as a signal handler might: what is
    done there is done inside `with producer`, and only where it is not `placing` already.

    Stores to memory become visible in the order in which Python makes them: on x86-64 because the
    processor keeps it, in a thread of this process because Python's lock does.
    """

    def __init__(self, ring: Ring) -> None:
        self._words = ring.words
        self._memory = ring.memory
        self._base = ring.address
        self._slots, self._size = ring.slot_count, ring.payload_bytes
        self._payload_at = ring.payload_at
        self._ring = ring
        self._consumed = self._freed = 0  # as the consumer last said
        self.placing = False

    def __enter__(self) -> Self:
        self.placing = True
        return self

    def __exit__(self, *_: object) -> None:
        self.placing = False

    def place(self, nbytes: int, room: int) -> int:
        """The position for values of `nbytes`; -1 where they, and what is held, exceed `room`."""
        words, size = self._words, self._size
        published, pos, consumed = words[_PUBLISHED], words[_WRITTEN], words[_CONSUMED]
        over = pos % size
        if consumed != self._consumed:
            mark = self._ring.mark()
            self._consumed, self._freed = mark[Mark.CONSUMED], mark[Mark.FREED]
        if over and consumed == published:  # empty: begin again, where pages are warm
            pos += size - over
            words[_FLOOR] = pos
        elif over + nbytes > size:
            pos += size - over
        held = pos + aligned(nbytes) - max(self._freed, words[_FLOOR])
        return -1 if held > room or published - consumed >= self._slots else pos

    @property
    def held(self) -> int:
        """Bytes of the payload that are not free, padding included."""
        freed = self._ring.mark()[Mark.FREED]
        return self._words[_WRITTEN] - max(freed, self._words[_FLOOR])

    def address(self, pos: int) -> int:
        """Where in this process's memory the values at `pos` lie."""
        return self._base + self._payload_at + pos % self._size

    def copy(self, pos: int, source: int, nbytes: int) -> None:
        """Copy the values at address `source` to `pos`."""
        at = self._payload_at + pos % self._size
        if nbytes < _COPIED_TWICE:
            self._memory[at : at + nbytes] = _memory[source : source + nbytes]
        else:
            move(self._base + at, source, nbytes)

    def write(self, pos: int, text: bytes) -> None:
        """Put `text` at `pos`."""
        at = self._payload_at + pos % self._size
        self._memory[at : at + len(text)] = text

    def publish(  # noqa: PLR0913  # a slot's fields, one by one: a tuple of them costs
        self,
        pos: int,
        nbytes: int,
        stream: int,
        layout: int,
        at: tuple[Any, ...],
        order: int,
        scale: float = 1.0,
        flags: int = 0,
        count: int = 1,
        kind: int = 0,
        later: bool = False,  # noqa: FBT001, FBT002  # as the others: a keyword costs
    ) -> int:
        """Let the consumer see the record whose values are at `pos`; the number of its slot.

        at: step, pass and call. later: the values, and then the slot's last word, are written by
        somebody else. Raises struct.error for what has no room in a slot.
        """
        words = self._words
        n = words[_PUBLISHED]
        SLOT_STRUCT.pack_into(
            self._memory,
            CONTROL_BYTES + (n % self._slots) * SLOT_BYTES,
            _now(),
            at[0],
            pos,
            nbytes,
            order,
            scale,
            stream,
            layout,
            at[1],
            at[2],
            flags | kind << KIND_SHIFT,
            count,
            0 if later else n + 1,
        )
        if kind != SlotKind.OUTSIDE:
            words[_WRITTEN] = pos + ((nbytes + ALIGNMENT - 1) & -ALIGNMENT)
        words[_PUBLISHED] = n + 1
        return n
