"""A batch of records as table rows: checked, numbered and packed before anything is written."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

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

Array = np.ndarray[Any, Any]


def _pair_formats(length: int) -> tuple[Callable[..., bytes], Callable[..., bytes]]:
    return struct.Struct(f"<{length}h").pack, struct.Struct(f"<{length}Q").pack


_PAIRS = [_pair_formats(length) for length in range(64)]  # of as many bins as most tensors have


@dataclass(slots=True)
class Batch:
    """What one write puts down: rows, histogram pairs, touched variants, and values left out.

    pairs: where the next histogram's pairs go.
    """

    pairs: int
    rows: list[bytes] = field(default_factory=list)
    checks: list[int] = field(default_factory=list)
    exponents: list[bytes] = field(default_factory=list)
    counts: list[bytes] = field(default_factory=list)
    touched: dict[OpenVariant, None] = field(default_factory=dict)
    nbytes: int = 0
    left_out: list[tuple[Record, str]] = field(default_factory=list)

    def add_pairs(self, bins: Mapping[int, int]) -> bytes:
        """Takes the pairs of one histogram; as its row's checksum covers them."""
        length = len(bins)
        exponents, counts = _PAIRS[length] if length < len(_PAIRS) else _pair_formats(length)
        one, two = exponents(*bins), counts(*bins.values())
        self.exponents.append(one)
        self.counts.append(two)
        self.pairs += length
        return one + two

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
        # Asked once: each record by itself only where not all of them fit.
        fits = self._budget.refusal(sum([record.nbytes for record in records])) is None
        for record in records:
            try:
                raw, flags = record.raw, record.flags
                variant = self._shelf.find(record)
                if raw is not None:
                    raw = check_raw(record, raw, variant.storage)
                    if not fits and (refusal := self._budget.refusal(batch.nbytes + raw.nbytes)):
                        batch.left_out.append((record, refusal))
                        raw, flags = None, flags | Flag.VALUE_DROPPED
                self._add(batch, record, variant, raw, flags)
            except (struct.error, OverflowError) as error:
                raise StoreError(f"{record.name!r} has a figure out of range: {error}") from error

    def _add(
        self, batch: Batch, record: Record, variant: OpenVariant, raw: Array | None, flags: int
    ) -> None:
        summary = _summary(record)
        at = record.coordinates
        if raw is None:
            flags, nbytes = flags | NOT_KEPT, 0
        else:
            nbytes = raw.nbytes
            batch.nbytes += nbytes
        batch.touched[variant] = None
        histogram = summary.histogram
        bins = histogram.bins
        # Stored only where smaller than the values, from which anyone can count again.
        if nbytes and PAIR_BYTES * len(bins) >= nbytes:
            offset, length, pairs = 0, -1, b""
        else:
            offset, length, pairs = batch.pairs, len(bins), batch.add_pairs(bins)
        phase = self._phases.get(at.phase)
        row = _pack(
            variant.number,
            self.attempt,
            variant.take(raw, record.shape),
            at.step,
            at.pass_index,
            at.call,
            self.order_base + record.order,
            record.time_ns,
            record.count,
            self.phase(at.phase) if phase is None else phase,
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

    def phase(self, name: str) -> int:
        """The number of a phase, which is given one where it is new."""
        if name in self._phases:
            return self._phases[name]
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
