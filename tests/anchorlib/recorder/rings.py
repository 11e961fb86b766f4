"""A ring in memory, and the two ends of it that tests need."""

from __future__ import annotations

import mmap
from types import SimpleNamespace

import numpy as np

from anchorlib.capture.recording.putter import compiled_putter, layout_key
from anchorlib.recorder.layout import (
    ALIGNMENT,
    CONTROL_BYTES,
    SLOT,
    SLOT_BYTES,
    SLOT_STRUCT,
    WORD_STRIDE,
    Mark,
    Word,
)


def up(value, unit):
    """`value`, or the next multiple of `unit`."""
    return -(-value // unit) * unit


class Ring:
    """Small by default, so that it fills and goes round soon."""

    def __init__(self, slots=8, payload=16384, room=None):
        self.slots, self.payload = slots, payload
        self.payload_at = up(CONTROL_BYTES + slots * SLOT_BYTES, 4096)
        self.room = payload if room is None else room
        self.memory = mmap.mmap(-1, self.payload_at + payload)
        self.words = np.frombuffer(self.memory, "<u8", CONTROL_BYTES // 8)[::WORD_STRIDE]
        self.entries = np.frombuffer(self.memory, SLOT, slots, CONTROL_BYTES)
        self.putter = self.compiled()

    def compiled(self):
        """A compiled putter for it."""
        ring = SimpleNamespace(
            memory=self.memory,
            slot_count=self.slots,
            payload_at=self.payload_at,
            payload_bytes=self.payload,
        )
        return compiled_putter(ring, self.room)

    def put(self, x, layout_key=None, **told):
        """The compiled put of `x`, by its own layout unless another is given."""
        key = key_of(x) if layout_key is None else layout_key
        at = (*(told.get(name, 0) for name in ("step", "pass_index", "call")), "train")
        stream, layout, order = (told.get(name, 0) for name in ("stream", "layout", "order"))
        return self.putter.put(x, stream, layout, key, at, order)

    def bytes(self):
        """All of it."""
        return self.memory[:]

    def consume(self, most=None):
        """The slots that were published and not consumed yet, with their values; frees both."""
        published, consumed = int(self.words[Word.PUBLISHED]), int(self.words[Word.CONSUMED])
        read = []
        for number in range(
            consumed, published if most is None else min(published, consumed + most)
        ):
            slot = self.entries[number % self.slots].copy()
            assert slot["seq"] == number + 1
            place, size = int(slot["pos"]) % self.payload, int(slot["nbytes"])
            assert slot["pos"] % ALIGNMENT == 0
            assert place + size <= self.payload
            start = self.payload_at + place
            read.append((slot, self.memory[start : start + size]))
            self.advance(number + 1, int(slot["pos"]) + up(size, ALIGNMENT))
        return read

    def free(self):
        """Count all as consumed."""
        self.advance(self.words[Word.PUBLISHED], self.words[Word.WRITTEN])

    def advance(self, consumed, freed):
        """The consumer has come so far: the mark that does not hold is written, then the count."""
        first = self.words[Word.MARKS + Mark.CONSUMED] == self.words[Word.CONSUMED]
        mark = Word.MARKS + (len(Mark) if first else 0)
        self.words[mark + Mark.CONSUMED], self.words[mark + Mark.FREED] = consumed, freed
        self.words[Word.CONSUMED] = consumed

    @property
    def freed(self):
        """What the mark that holds says."""
        marks = Word.MARKS, Word.MARKS + len(Mark)
        held = [at for at in marks if self.words[at] == self.words[Word.CONSUMED]]
        return int(self.words[held[0] + Mark.FREED])


def key_of(x):
    """The layout key of a tensor."""
    return layout_key(x.dtype, x.shape)


class Reference:
    """The put of bytes, in Python, by the words of layout.py; says what the compiled one says."""

    def __init__(self, ring):
        self.ring = ring

    def put(self, values, order):
        """Size of the record, -1 without room, None where it can never fit."""
        ring, words = self.ring, self.ring.words
        need = up(len(values), ALIGNMENT)
        published, consumed = int(words[Word.PUBLISHED]), int(words[Word.CONSUMED])
        if need > ring.room:
            return None
        pos = int(words[Word.WRITTEN])
        if published == consumed:
            pos = up(pos, ring.payload)
            words[Word.FLOOR] = pos
        elif pos % ring.payload + need > ring.payload:
            pos = up(pos, ring.payload)
        held = pos + need - max(ring.freed, int(words[Word.FLOOR]))
        if published - consumed >= ring.slots or held > ring.room:
            return -1
        start = ring.payload_at + pos % ring.payload
        ring.memory[start : start + len(values)] = values
        slot = (0, 0, pos, len(values), order, 1.0, 0, 0, 0, 0, 0, 1, published + 1)
        SLOT_STRUCT.pack_into(
            ring.memory, CONTROL_BYTES + published % ring.slots * SLOT_BYTES, *slot
        )
        words[Word.WRITTEN], words[Word.PUBLISHED] = pos + need, published + 1
        return len(values)


WRITES_RINGS = Ring().putter is not None
