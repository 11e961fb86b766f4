"""The bytes of the ring: what the trainer writes and the drain reads, perhaps in another process.

    control page │ slots, of a fixed size │ payload bytes

A slot says what a record is and where in the payload its values lie. The producer writes payload,
then the slot with its `seq` last, then `published`; the consumer believes a slot below `published`
whose `seq` is its number plus one. Positions in the payload count bytes since the ring was made and
only grow: a byte's place is its position modulo the payload's size.

The values of a record that lies on a device come later than its slot: the device's stream writes
them, and then the slot's `seq`, which no earlier record of that slot can have had. The consumer
takes nothing behind a slot whose `seq` is not there. Values that never come have `VOID` in it.

`VERSION` changes with any of this: two processes that disagree part at once.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final

import numpy as np

__all__ = [
    "ALIGNMENT",
    "CONTROL_BYTES",
    "FLAGS_AT",
    "MAGIC",
    "SCALE_AT",
    "SEQ_AT",
    "SLOT",
    "SLOT_BYTES",
    "SLOT_STRUCT",
    "TRIAL_AT",
    "TRIAL_BYTES",
    "VOID",
    "WORD_STRIDE",
    "Mark",
    "SlotKind",
    "Word",
]

VERSION: Final = 3
MAGIC: Final = 0x414E4348_00000000 | VERSION  # "ANCH", then the version

CONTROL_BYTES: Final = 4096
WORD_STRIDE: Final = 8  # in words: each has a cache line of its own
ALIGNMENT: Final = 64  # of each record's values

# At the end of the control page, where no word is: here a device shows that it reaches the ring,
# with values first and then the word that says they are there.
TRIAL_BYTES: Final = 64
TRIAL_AT: Final = CONTROL_BYTES - 2 * TRIAL_BYTES

KIND_SHIFT: Final = 16  # the flags of a record are below, the kind of its slot above


class Word(IntEnum):
    """The words of the control page, unsigned 64 bits each; the number times 64 is the byte."""

    MAGIC = 0
    # The producer's.
    PUBLISHED = 1  # slots written
    WRITTEN = 2  # the position behind the last payload
    FLOOR = 3  # all payload before it is free, whatever the marks say
    # The consumer's.
    CONSUMED = 4  # slots that are in the sink
    MARKS = 5  # two marks, see `Mark`
    RECORDS = 19  # records that have left the ring
    LOST = 20  # records that were lost, by the drain or by the sink
    BARE = 21  # records kept without their values
    LOST_BYTES = 22  # bytes of values of both
    GAPS = 23  # series with a gap, each reason counted for itself
    WAITING = 24  # records that the sink has and has not delivered
    RETRIES = 25  # of the sink's deliveries
    ACTIVE = 26  # which of the marks holds, 0 or 1


class Mark(IntEnum):
    """The words of a mark: what is true when so many slots are consumed.

    The consumer writes the mark that does not hold, whole, then says in `ACTIVE` that it does, then
    tells the producer by `CONSUMED`: killed at any moment it leaves one mark that holds.
    """

    CONSUMED = 0
    FREED = 1  # the position up to which the payload may be written again
    RECORDS = 2  # records among these slots
    STORED = 3  # those of them that a sink has taken
    AHEAD = 4  # records behind these slots that a sink has nevertheless
    DRAIN = 5  # which drain wrote this: the first is 0, each one that takes over adds 1
    OWN = 6  # records that the sink of this drain has taken


class SlotKind(IntEnum):
    """What a slot holds."""

    VALUES = 0  # a record
    BARE = 1  # a record whose values are left out once they are summarised
    OUTSIDE = 2  # a record whose values lie in memory of their own
    TOLD = 3  # a statement: JSON


# Little-endian, as all machines with a compiled put are; `seq` last, so that it is written last.
_FIELDS: Final = (
    ("time_ns", "<i8"),
    ("step", "<i8"),
    ("pos", "<u8"),
    ("nbytes", "<u8"),
    ("order", "<i8"),
    ("scale", "<f8"),
    ("stream", "<u4"),
    ("layout", "<u4"),
    ("pass_index", "<u4"),
    ("call", "<u4"),
    ("flags", "<u4"),
    ("count", "<u4"),
    ("seq", "<u8"),
)
SLOT: Final = np.dtype([*_FIELDS])
SLOT_STRUCT: Final = Struct("<qqQQqdIIIIIIQ")
SLOT_BYTES: Final = SLOT_STRUCT.size  # 80
SCALE_AT: Final = 40  # bytes from the start of a slot, as of the next two
FLAGS_AT: Final = 64  # 16 bits of flags, then the kind
SEQ_AT: Final = 72
VOID: Final = 1 << 63  # beside a slot's number in its `seq`: its values never come
