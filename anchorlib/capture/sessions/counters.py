"""How much a session has recorded so far, and how much it could not record."""

from __future__ import annotations

from dataclasses import dataclass, field

from anchorlib.capture.recording import Recorder
from anchorlib.recorder import RecordQueue

__all__ = ["Counters", "counters_of"]


@dataclass(frozen=True, slots=True)
class Counters:
    """How much a session has recorded, and how much it could not record.

    records: how many records were made so far and not lost; `flush` brings them into the store.
    bytes: the bytes of these records' values.
    dropped: how many records were lost, or kept without their values.
    gaps: how many gaps are stored: one for each series that lacks observations and each reason.
    skipped: how many observations could not be recorded, by reason.
    retries: how often delivery to a collector was tried again.
    """

    records: int = 0
    bytes: int = 0
    dropped: int = 0
    gaps: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    retries: int = 0


def counters_of(recorder: Recorder, queue: RecordQueue) -> Counters:
    """Return the counters of the session that has this recorder and this queue."""
    records, nbytes = recorder.emitted
    return Counters(
        records - queue.lost,
        nbytes - queue.dropped_bytes,
        queue.dropped,
        queue.gaps,
        dict(recorder.skipped),
        queue.retries,
    )
