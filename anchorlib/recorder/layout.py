"""The bytes of the ring: what the trainer writes and the drain reads, perhaps in another process.

    control page │ slots, of a fixed size │ payload bytes

A slot is a fixed-size entry: it says what a record is and where in the payload its values lie. The
producer writes the values, then the slot with its field `seq` last, then the word `PUBLISHED` of
the control page. The consumer reads a slot whose number is below `PUBLISHED` only if `seq` is that
number plus one. A position in the payload counts bytes since the ring was made; the byte lies at
its position modulo the payload's size.

The values of a record on a device come later than its slot: the device's stream writes them, and
then the slot's `seq`, which no earlier record in that slot had. The consumer reads no slot behind
one whose `seq` is missing. A slot whose values never come gets `VOID` in its `seq`.

`VERSION` changes whenever this layout does, so that processes of different versions refuse each
other.
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
WORD_STRIDE: Final = 8  # 8-byte units between words: each word has a cache line of its own
ALIGNMENT: Final = 64  # bytes, of each record's values

# At the end of the control page, which has no words: a device is tried here before it is used, by a
# copy of values and then of the word that says that the values are there.
TRIAL_BYTES: Final = 64
TRIAL_AT: Final = CONTROL_BYTES - 2 * TRIAL_BYTES

KIND_SHIFT: Final = 16  # the lower bits are the record's flags, the upper ones its slot's kind


class Word(IntEnum):
    """The words of the control page, 64 bits unsigned each; word n begins at byte 64 * n."""

    MAGIC = 0
    # Written by the producer.
    PUBLISHED = 1  # how many slots are written
    WRITTEN = 2  # the position behind the last values
    FLOOR = 3  # the payload before this position is free, whatever the marks say
    # Written by the consumer.
    CONSUMED = 4  # how many slots are in the sink
    MARKS = 5  # two marks, see `Mark`
    RECORDS = 19  # records that have left the ring
    LOST = 20  # records that the drain or the sink lost
    SUMMARY_ONLY = 21  # records kept without their values
    LOST_BYTES = 22  # bytes of the values of lost records and of those kept as summaries
    GAPS = 23  # gaps, counted by series and reason
    WAITING = 24  # records that the sink has taken and not yet delivered
    RETRIES = 25  # how often the sink tried a delivery again
    ACTIVE = 26  # which of the two marks holds, 0 or 1


class Mark(IntEnum):
    """The words of a mark, in which the consumer of the ring notes how far it has come.

    There are two marks, and the word `ACTIVE` says which of them is valid. The consumer writes the
    other one, then changes `ACTIVE`, then writes `Word.CONSUMED` for the producer. So a consumer
    that is killed at any moment leaves one mark that is whole and valid.
    """

    CONSUMED = 0
    FREED = 1  # the position up to which the payload may be written again
    RECORDS = 2  # how many of these slots were records
    STORED = 3  # how many of these records a sink has taken
    AHEAD = 4  # how many records behind these slots a sink has already
    DRAIN = 5  # the number of the drain that wrote the mark, from 0
    OWN = 6  # how many records the sink of this drain has taken


class SlotKind(IntEnum):
    """What a slot of the ring describes: a record, stored in one of three ways, or a JSON text."""

    VALUES = 0  # a record
    SUMMARY_ONLY = 1  # a record whose values are dropped once they are summarised
    OUTSIDE = 2  # a record whose values lie in memory outside the ring
    STATEMENT = 3  # no record: a definition or a statement, as JSON


# Little-endian, as all machines with a compiled put are. `seq` stands last, to be written last.
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
SCALE_AT: Final = 40  # offsets in a slot, in bytes
FLAGS_AT: Final = 64  # 16 bits of flags, then the kind
SEQ_AT: Final = 72
VOID: Final = 1 << 63  # a bit of `seq`: the values of this slot never come
