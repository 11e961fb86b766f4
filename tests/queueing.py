"""Records that are made already, put into a queue as an anchor puts them."""

from __future__ import annotations

import numpy as np

from anchorlib.record import Record
from anchorlib.recorder import RecordQueue


def put(queue: RecordQueue, record: Record, *, keeps: bool = True) -> None:
    """Place `record` in the ring of `queue`."""
    raw = np.ascontiguousarray(record.raw)
    at = record.coordinates
    with queue.lock:
        queue.records.put(
            raw.ctypes.data,
            raw.nbytes,
            queue.stream(record.name, record.kind, record.mode, at.phase, keeps=keeps),
            queue.layout(record.dtype, record.shape),
            (at.step, at.pass_index, at.call),
            record.order,
            record.scale,
            int(record.flags),
            record.count,
        )
