"""A batch of records as table rows: checked, numbered and packed before anything is written."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from anchorlib.errors import OptionError, StoreError
from anchorlib.names import check_name
from anchorlib.record import Flag, Record
from anchorlib.store.budget import Budget
from anchorlib.store.catalog import encode
from anchorlib.store.checks import row_check
from anchorlib.store.layout import NOT_KEPT, ROW_FORMAT
from anchorlib.store.series import SeriesShelf, check_raw
from anchorlib.store.table import CatalogFile
from anchorlib.store.variants import OpenVariant

if TYPE_CHECKING:
    from anchorlib.summary import Summary

__all__ = ["Batch", "Packer"]

DIGEST_BYTES = 16
PAIR_BYTES = 10  # of one histogram bin on disk
_pack = struct.Struct(ROW_FORMAT).pack


@dataclass(slots=True)
class Batch:
    """What one write puts down: rows, histogram pairs, touched variants, and values left out."""

    pairs: int
    rows: list[bytes] = field(default_factory=list)
    checks: array[int] = field(default_factory=lambda: array("Q"))
    exponents: array[int] = field(default_factory=lambda: array("h"))
    counts: array[int] = field(default_factory=lambda: array("Q"))
    touched: dict[OpenVariant, None] = field(default_factory=dict)
    nbytes: int = 0
    left_out: list[tuple[Record, str]] = field(default_factory=list)

    def discard(self) -> None:
        """The batch never was."""
        for variant in self.touched:
            variant.discard()


class Packer:
    """Packs records of one attempt."""

    def __init__(
        self, shelf: SeriesShelf, file: CatalogFile, budget: Budget, phases: Sequence[str]
    ) -> None:
        self._shelf = shelf
        self._file = file
        self._budget = budget
        self._phases = {name: number for number, name in enumerate(phases)}
        self.attempt = 0
        self.order_base = 0

    def pack(self, batch: Batch, records: Sequence[Record]) -> None:
        """Adds `records` to `batch`.

        Raises StoreError for figures that the table has no room for, OptionError for a record
        without its summary, and what `check_record` raises.
        """
        for record in records:
            try:
                self._add(batch, record)
            except (struct.error, OverflowError) as error:
                raise StoreError(f"{record.name!r} has a figure out of range: {error}") from error

    def _add(self, batch: Batch, record: Record) -> None:
        summary = _summary(record)
        at = record.coordinates
        variant = self._shelf.find(record)
        flags = int(record.flags)
        raw = record.raw
        if raw is not None:
            raw = check_raw(record, variant.storage)
            refusal = self._budget.refusal(batch.nbytes + raw.nbytes)
            if refusal is None:
                batch.nbytes += raw.nbytes
            else:
                batch.left_out.append((record, refusal))
                raw = None
                flags |= Flag.VALUE_DROPPED
        if raw is None:
            flags |= NOT_KEPT
        batch.touched[variant] = None
        offset, length, pairs = self._histogram(batch, summary, 0 if raw is None else raw.nbytes)
        histogram = summary.histogram
        phase = self._phases.get(at.phase)
        row = _pack(
            variant.entry.id,
            self.attempt,
            variant.take(raw, record.shape),
            at.step,
            at.pass_index,
            at.call,
            self.order_base + record.order,
            record.time_ns,
            record.count,
            self._new_phase(at.phase) if phase is None else phase,
            flags,
            record.scale,
            summary.digest,
            histogram.zero,
            histogram.nan,
            histogram.inf,
            histogram.subnormal,
            summary.min,
            summary.max,
            summary.sum,
            summary.l2,
            offset,
            length,
        )
        batch.rows.append(row)
        batch.checks.append(row_check(row + pairs, variant.seed))

    def _histogram(self, batch: Batch, summary: Summary, kept_bytes: int) -> tuple[int, int, bytes]:
        bins = summary.histogram.bins
        # Stored only where smaller than the values, from which anyone can count again.
        if kept_bytes and PAIR_BYTES * len(bins) >= kept_bytes:
            return 0, -1, b""
        offset = batch.pairs + len(batch.counts)
        exponents, counts = array("h", bins), array("Q", bins.values())
        batch.exponents += exponents
        batch.counts += counts
        return offset, len(bins), exponents.tobytes() + counts.tobytes()

    def _new_phase(self, name: str) -> int:
        check_name(name)
        number = len(self._phases)
        self._file.append(encode({"phase": number, "name": name}))
        self._phases[name] = number
        return number


def _summary(record: Record) -> Summary:
    summary = record.summary
    if summary is None:
        raise OptionError(f"{record.name!r} came to the store without its summary")
    if len(summary.digest) != DIGEST_BYTES:
        raise StoreError(f"the digest of {record.name!r} has {len(summary.digest)} bytes")
    return summary
