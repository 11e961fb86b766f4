"""Records that a writer still holds, compared with the collector's before the writer removes them.

    frames held ─▶ UnconfirmedRange ──Confirm──▶ collector
                           equal or refused ◀──Confirmed──┘

A collector that has as many records as a writer sent need not have the same records: somebody may
have restored, replaced or forged the run. An `UnconfirmedRange` is a range of records that both the
writer and the collector have, with the fingerprint (a hash) of the writer's records. The message
Confirm asks for the fingerprint of the collector's records, and the message Confirmed answers with
it. Records that are not confirmed to be equal are not removed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from anchorlib.errors import RunExistsError
from anchorlib.fingerprints import RECORD, fingerprint_of, tensor_code
from anchorlib.wire.limits import WINDOW
from anchorlib.wire.messages import FrameError, entries, kept_definition, kept_frame, sealed
from anchorlib.wire.v1.collector_pb2 import Columns, Confirm, Confirmed, PushRequest

__all__ = [
    "OTHER_RECORDS",
    "ConfirmRequests",
    "HeldRows",
    "StoredRange",
    "UnconfirmedRange",
    "held_frame",
    "unconfirmed_ranges",
]

OTHER_RECORDS: Final = (
    "records {records.first} to {records.last} of attempt {records.attempt} there are not those "
    "that are held here; nothing was removed: deliver them under another name (anchor push … --as "
    "NAME)"
)
_DIGEST_BYTES: Final = 16
_PLAIN: Final = {"step": 0, "pass_index": 0, "call": 0, "order": 0, "time_ns": 0, "count": 1}


class HeldRows(NamedTuple):
    """The table rows of the records in one frame (message) that a writer still holds.

    first: the number of the first record. columns: the rows, column by column.
    definitions: messages that define the series, layouts (dtype and shape) and phases that the rows
        refer to.
    """

    first: int
    columns: Columns
    definitions: Sequence[bytes]


class StoredRange(NamedTuple):
    """Records `first` … `end` - 1 of a writer, which the store has in attempt number `attempt`.

    An attempt is one recording of a rank, stored under a number. The first record of this attempt
    is the writer's record number `first`.
    """

    attempt: int
    first: int
    end: int


class UnconfirmedRange(NamedTuple):
    """Records that writer and store both have, and that are not known to be equal yet.

    attempt: the number of the attempt in the store that has them.
    first, end: the range is records `first` … `end` - 1 of the attempt, counted from its start.
    fingerprint: the hash of the writer's records, which the hash of the store's must equal.
    """

    attempt: int
    first: int
    end: int
    fingerprint: bytes

    @property
    def last(self) -> int:
        """The number, in the attempt, of the last of these records."""
        return self.end - 1


def held_frame(message: bytes, definitions: Sequence[bytes]) -> HeldRows | None:
    """Return the table rows of the frame (a message with records) in a serialised message.

    definitions: messages that define what the rows refer to. Returns None for a frame with a later
    fragment of a large record, as the record's row is in the frame with its first fragment. Raises
    FrameError if `message` is no frame.
    """
    head = kept_frame(message).head
    if head.HasField("fragment") and head.fragment.offset:
        return None
    return HeldRows(head.first, head.columns, definitions)


def unconfirmed_ranges(
    held: Iterable[HeldRows], links: Sequence[StoredRange]
) -> Iterator[UnconfirmedRange]:
    """Yield the ranges of records in the `held` frames (messages) that the store has too.

    links: which of the writer's records the store has, in which attempt (recording of the rank).
    """
    end = max((link.end for link in links), default=0)
    tables = _Tables()
    for one in held:
        if one.first >= end:
            return
        records = tables.records(one)
        for link in links:
            start = max(link.first, one.first)
            stop = min(link.end, one.first + len(records))
            if start < stop:
                part = records[start - one.first : stop - one.first]
                yield UnconfirmedRange(
                    link.attempt, start - link.first, stop - link.first, fingerprint_of(part)
                )


class ConfirmRequests:
    """Asks a collector to confirm, one after the other, that its records equal the writer's.

    ranges: the records to ask about. The iterator is advanced only as questions are sent, because
        the records may have to be read from a disk.

    answered: how many ranges the collector has confirmed.
    """

    def __init__(self, ranges: Iterator[UnconfirmedRange]) -> None:
        self._ranges = ranges
        self._ahead = next(ranges, None)
        self._asked: deque[UnconfirmedRange] = deque()
        self.answered = 0

    @property
    def open(self) -> bool:
        """Whether the collector has yet to confirm any of the records in question."""
        return bool(self._ahead or self._asked)

    def next(self) -> bytes | None:
        """Return the next serialised Confirm message, and count it as sent.

        Returns None if there are no more ranges to ask about, or if too many questions wait for an
        answer.
        """
        if self._ahead is None or len(self._asked) >= WINDOW:
            return None
        asked, self._ahead = self._ahead, next(self._ranges, None)
        self._asked.append(asked)
        question = Confirm(attempt=asked.attempt, first=asked.first, end=asked.end)
        return sealed(PushRequest(confirm=question))

    def take(self, answer: Confirmed) -> None:
        """Compare the collector's answer to the oldest open question with the writer's fingerprint.

        If they are equal, the range counts as confirmed. Raises RunExistsError if the collector has
        other records, FrameError if no answer was due.
        """
        if not self._asked:
            raise FrameError("it sent an answer that no question asked for")
        asked = self._asked.popleft()
        if answer.fingerprint != asked.fingerprint:
            raise RunExistsError(OTHER_RECORDS.format(records=asked))
        self.answered += 1


class _Tables:
    """The series, layouts (dtype, shape) and phases defined so far; rows refer to their numbers."""

    def __init__(self) -> None:
        self._read = 0
        self._series: list[tuple[str, str, str]] = []
        self._layouts: list[tuple[str, tuple[int, ...]]] = []
        self._phases: list[str] = []

    def records(self, held: HeldRows) -> np.ndarray[Any, Any]:
        """Return the rows of a frame as an array of dtype RECORD, of which fingerprints are made.

        Raises FrameError if the rows refer to something that was not defined.
        """
        self._learn(held.definitions)
        columns = held.columns
        rows = len(columns.digest) // _DIGEST_BYTES
        records = np.empty(rows, RECORD)
        records["tensor"] = self._tensors(columns, rows)
        for name, default in _PLAIN.items():
            dtype = RECORD.fields[name][0].type if RECORD.fields else np.int64
            records[name] = entries(getattr(columns, name), rows, name, dtype, default)
        halves = np.frombuffer(columns.digest, ">u8").reshape(rows, 2)
        records["digest_high"], records["digest_low"] = halves[:, 0], halves[:, 1]
        return records

    def _learn(self, definitions: Sequence[bytes]) -> None:
        for message in definitions[self._read :]:
            definition = kept_definition(message)
            self._series += [(one.name, one.kind, one.mode) for one in definition.series]
            self._layouts += [(one.dtype, tuple(one.shape)) for one in definition.layouts]
            self._phases += definition.phases
            self._read += 1

    def _tensors(self, columns: Columns, rows: int) -> np.ndarray[Any, Any]:
        numbers = np.stack(
            [
                entries(getattr(columns, name), rows, name, np.int64)
                for name in ("series", "layout", "phase")
            ],
            axis=1,
        )
        kinds, which = np.unique(numbers, axis=0, return_inverse=True)
        try:
            codes = [
                tensor_code(self._series[series], self._phases[phase], *self._layouts[layout])
                for series, layout, phase in kinds.tolist()
            ]
        except IndexError:
            raise FrameError("a row names a series, layout or phase that was not defined") from None
        return np.array(codes, np.uint64)[which.reshape(-1)]
