"""The ring between training threads and the drain: memory that both processes map.

`Ring` is the memory; `layout` says what its bytes mean. `Producer` places records in it, one at a
time: its caller holds a lock. The consumer, `drain`, frees the memory of records that are in the
sink (the place that stores or sends them).

A slot is a fixed-size entry that describes a record or a statement; slots are numbered from 0 on,
and slot n lies at n modulo the number of slots. The payload is the bytes with the values. A
position in the payload counts bytes since the ring was made; the byte lies at its position modulo
the payload's size.
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
WARM_BYTES: Final = 32 << 20  # twice the bytes that wait while the drain keeps up
_PAGE: Final = 4096
_POPULATE: Final = 23  # MADV_POPULATE_WRITE, since Linux 5.14
_COPIED_TWICE: Final = 32 << 10  # below this size a slice of memory is faster than memmove
_LET_OTHERS_RUN: Final = 2 << 20  # from this size on Python's lock is released during a copy

_PUBLISHED: Final = Word.PUBLISHED * WORD_STRIDE
_WRITTEN: Final = Word.WRITTEN * WORD_STRIDE
_CONSUMED: Final = Word.CONSUMED * WORD_STRIDE
_FLOOR: Final = Word.FLOOR * WORD_STRIDE

# The memory of this process as one array of chars: a slice of it is a copy, made in a third of the
# time that ctypes.string_at takes. Only what belongs to a tensor is ever sliced.
_memory: Any = (ctypes.c_char * ((1 << 63) - 1)).from_address(0)

# ctypes.memmove releases Python's lock, and getting it back takes longer than a small copy.
_move = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
    ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0
)
_now = time.time_ns


def move(target: int, source: int, nbytes: int) -> None:
    """Copy `nbytes` bytes of memory from address `source` to address `target`."""
    (_move if nbytes < _LET_OTHERS_RUN else ctypes.memmove)(target, source, nbytes)


def aligned(nbytes: int) -> int:
    """Return how much payload `nbytes` bytes take: the number, rounded up to a multiple of 64."""
    return (nbytes + ALIGNMENT - 1) & -ALIGNMENT


def ring_bytes(slots: int, payload: int) -> int:
    """Return the size in bytes of a ring with `slots` slots and `payload` bytes of payload."""
    return _payload_at(slots) + payload


def _mark_words(which: int) -> slice:
    first = Word.MARKS + which * len(Mark)
    return slice(first * WORD_STRIDE, (first + len(Mark)) * WORD_STRIDE, WORD_STRIDE)


def _payload_at(slots: int) -> int:
    return CONTROL_BYTES + -(-slots * SLOT_BYTES // _PAGE) * _PAGE


class Ring:
    """A ring's memory, mapped into this process.

    slots: how many slots the ring has. payload: how many bytes it has for values, a multiple of 64.
    """

    def __init__(self, descriptor: int, payload: int, slots: int = SLOTS, *, new: bool) -> None:
        """Map the memory of the file with descriptor `descriptor`, or anonymous memory for -1.

        new: whether to make a ring of memory that is all zero. Otherwise the memory must hold a
        ring already: StoreError is raised if it holds none, or one of another version of the
        format.
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
        """Return the consumer's latest progress mark: one number for each member of `Mark`."""
        while True:
            active = self[Word.ACTIVE]
            mark = tuple(self.words[_mark_words(active)])
            if self[Word.ACTIVE] == active:  # else the consumer may have overwritten the mark
                return mark

    def advance(self, mark: Sequence[int]) -> None:
        """Write the consumer's progress: `mark` has one number for each member of `Mark`.

        If the consumer is killed during this call, a whole mark stays valid: the old or the new.
        """
        other = 1 - self[Word.ACTIVE]
        self.words[_mark_words(other)] = memoryview(array("Q", mark))
        self[Word.ACTIVE] = other
        self[Word.RECORDS] = mark[Mark.RECORDS]
        self[Word.CONSUMED] = mark[Mark.CONSUMED]

    def slot_address(self, number: int) -> int:
        """Return the address in this process of slot `number`."""
        return self.address + CONTROL_BYTES + number % self.slot_count * SLOT_BYTES

    def is_settled(self, number: int) -> bool:
        """Return whether nothing more will be written into slot `number` for its record.

        This is so if the record's values are there, if they never come (see `void`), or if the
        consumer has passed the slot.
        """
        seq = int(self.slots["seq"][number % self.slot_count])
        return seq & ~VOID == number + 1 or self[Word.CONSUMED] > number

    def void(self, number: int) -> None:
        """Mark slot `number` as void: the values of its record never come.

        The caller has to make sure that no device will still write these values.
        """
        self.slots["seq"][number % self.slot_count] = (number + 1) | VOID

    def warm(self, nbytes: int) -> None:
        """Have the system allocate the payload's first `nbytes` bytes now, not at first use.

        Returns when this is done; Python's lock is released meanwhile. A system that is not Linux,
        or a kernel that cannot do this, still allocates at first use.
        """
        start = -(-(self.address + self.payload_at) // _PAGE) * _PAGE
        size = min(nbytes, self.payload_bytes) // _PAGE * _PAGE
        if sys.platform == "linux":  # a kernel without this call allocates at first use
            ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _POPULATE)

    def give_back(self) -> None:
        """Return the memory of slots and payload to the system.

        The caller must not use the ring afterwards.
        """
        if hasattr(mmap, "MADV_REMOVE"):
            self.memory.madvise(mmap.MADV_REMOVE, CONTROL_BYTES)


def shared_memory(nbytes: int) -> int:
    """Return a file descriptor of new memory, which processes that have the descriptor can map.

    A program that this process starts has the descriptor only if it is passed on (`pass_fds`).
    Raises OSError where the system gives no descriptor or memory.
    """
    descriptor = os.memfd_create("anchor-ring", os.MFD_CLOEXEC)
    try:
        os.truncate(descriptor, nbytes)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class Producer:
    """Places records in a ring, one after the other; the consumer sees no half-written record.

    For each record the caller calls `place`, then `copy` or `write`, then `publish`. No other
    record may be placed between `place` and `publish`, and a signal handler might try. So
    the caller makes these calls inside `with producer`, after it has seen that `placing` is False.

    The consumer relies on stores to memory becoming visible in the order in which Python makes
    them. On x86-64 the processor keeps that order; for a thread of this process Python's lock does.
    """

    def __init__(self, ring: Ring) -> None:
        self._words = ring.words
        self._memory = ring.memory
        self._base = ring.address
        self._slots, self._size = ring.slot_count, ring.payload_bytes
        self._payload_at = ring.payload_at
        self._ring = ring
        self._consumed = self._freed = 0  # as the last mark that was read says
        self.placing = False

    def __enter__(self) -> Self:
        self.placing = True
        return self

    def __exit__(self, *_: object) -> None:
        self.placing = False

    def place(self, nbytes: int, room: int) -> int:
        """Return the payload position at which `nbytes` bytes of values may be written.

        The result is -1 if there is not enough room, or no free slot. The bytes are not reserved
        before `publish`.
        room: how many bytes of the payload may be in use, these values included.
        """
        words, size = self._words, self._size
        published, pos, consumed = words[_PUBLISHED], words[_WRITTEN], words[_CONSUMED]
        over = pos % size
        if consumed != self._consumed:
            mark = self._ring.mark()
            self._consumed, self._freed = mark[Mark.CONSUMED], mark[Mark.FREED]
        if over and consumed == published:  # the ring is empty: begin again at the warm pages
            pos += size - over
            words[_FLOOR] = pos
        elif over + nbytes > size:
            pos += size - over
        held = pos + aligned(nbytes) - max(self._freed, words[_FLOOR])
        return -1 if held > room or published - consumed >= self._slots else pos

    @property
    def held(self) -> int:
        """How many bytes of the payload are in use, padding included."""
        freed = self._ring.mark()[Mark.FREED]
        return self._words[_WRITTEN] - max(freed, self._words[_FLOOR])

    def address(self, pos: int) -> int:
        """Return the address in this process of the payload's position `pos`."""
        return self._base + self._payload_at + pos % self._size

    def copy(self, pos: int, source: int, nbytes: int) -> None:
        """Copy `nbytes` bytes from the address `source` to the payload's position `pos`."""
        at = self._payload_at + pos % self._size
        if nbytes < _COPIED_TWICE:
            self._memory[at : at + nbytes] = _memory[source : source + nbytes]
        else:
            move(self._base + at, source, nbytes)

    def write(self, pos: int, text: bytes) -> None:
        """Write the bytes `text` at the payload's position `pos`."""
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
        """Make the record with values at `pos` visible to the consumer; return its slot's number.

        pos, nbytes: where the values begin, as `place` returned it, and how many bytes they take.
        stream, layout: the defined numbers of the record's series and phase, and of its dtype and
        shape. at: step, pass and call; further items are ignored. order: the record's place in the
        run. scale: the loss scale. flags: the record's flags, as bits. count: how many
        observations the record sums up. kind: a `SlotKind`. later: whether a device writes the
        values, and then the slot's last word, after this call.

        Raises struct.error for a number that is too large for its field in a slot.
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
