"""Turns records in slots of the ring into columns, with digests and summaries of their values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np

from anchorlib.block import Buffer, RowBlock, payloads_of
from anchorlib.recorder.definitions import Definitions
from anchorlib.recorder.drain_requests import Host
from anchorlib.recorder.layout import KIND_SHIFT, SlotKind
from anchorlib.recorder.ring import Ring
from anchorlib.summary import figures_of

__all__ = ["SlotRecords"]

Array: TypeAlias = np.ndarray[Any, Any]

_FLAGS: Final = (1 << KIND_SHIFT) - 1


class SlotRecords:
    """Reads slots, the fixed-size entries of a ring that describe records, and the records' values.

    The methods take `heads`: an array of copies of slots, in the order of the ring.

    host: gives access to memory outside the ring, where values too large for the ring lie.
    definitions: which series, phase, dtype and shape the numbers in slots stand for.
    """

    def __init__(self, ring: Ring, host: Host, definitions: Definitions) -> None:
        self._ring, self._host, self._definitions = ring, host, definitions

    def values(self, heads: Array) -> list[Buffer]:
        """Return the bytes that each slot refers to: a record's values, or the JSON of a statement.

        The result has one view of memory for each slot. The memory is reused once the slots are
        consumed.
        """
        payload, size = self._ring.payload, np.uint64(self._ring.payload_bytes)
        starts = heads["pos"] % size
        ends = (starts + heads["nbytes"]).tolist()
        values: list[Buffer] = [
            payload[start:end] for start, end in zip(starts.tolist(), ends, strict=True)
        ]
        for at in np.flatnonzero(heads["flags"] >> KIND_SHIFT == SlotKind.OUTSIDE).tolist():
            values[at] = self._host.outside(int(heads["pos"][at]))
        return values

    def block(self, heads: Array) -> RowBlock:
        """Return the records of `heads` as columns, with digests and summaries of their values.

        heads: slots of records only, no statements. The block keeps a record's values if its
        series' mode stores values, unless the slot says that the values are to be dropped.
        """
        definitions = self._definitions
        values = self.values(heads)
        layout, stream = heads["layout"].astype(np.int64), heads["stream"]
        figures = figures_of(values, layout, definitions.counted)
        kept = definitions.keeps[stream]
        kept &= heads["flags"] >> KIND_SHIFT != SlotKind.SUMMARY_ONLY
        return RowBlock(
            definitions.tables,
            {
                "series": definitions.series[stream],
                "layout": layout,
                "phase": definitions.phase[stream],
                "step": heads["step"],
                "pass_index": heads["pass_index"].astype(np.int64),
                "call": heads["call"].astype(np.int64),
                "order": heads["order"].astype(np.int64),
                "time_ns": heads["time_ns"],
                "count": heads["count"].astype(np.uint64),
                "flags": heads["flags"] & _FLAGS,
                "scale": heads["scale"],
                **figures.columns,
            },
            figures.digest,
            kept,
            *payloads_of([one if keep else None for one, keep in zip(values, kept, strict=True)]),
            figures.exponents,
            figures.elements,
        )

    def named(self, heads: Array) -> Iterator[tuple[tuple[str, str, str], int, int]]:
        """Yield (series, step, size of the values) for the record of each slot in `heads`.

        A series is (name, kind, mode). The size is in bytes, and 0 for a series whose mode stores
        summaries and no values.
        """
        definitions = self._definitions
        for head in heads:
            series = definitions.tables.series[definitions.series[head["stream"]]]
            keeps = bool(definitions.keeps[head["stream"]])
            yield series, int(head["step"]), int(head["nbytes"]) if keeps else 0
