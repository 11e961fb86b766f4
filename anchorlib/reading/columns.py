"""The columns of a series, each read when it is first asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from anchorlib.store import RankReader

__all__ = ["COLUMN_NAMES", "Columns"]

COLUMN_NAMES = (
    "step", "pass_index", "call", "phase", "attempt", "order", "time_ns", "count", "digest",
    "zero", "nan", "inf", "subnormal", "min", "max", "sum", "l2",
)  # fmt: skip

Array = np.ndarray[Any, Any]


class Columns(Mapping[str, Array]):
    """One entry per record: integers, floats, and text for `phase` and `digest` (32 hex digits)."""

    def __init__(self, reader: RankReader, rows: Array) -> None:
        self._reader = reader
        self._rows = rows

    def __getitem__(self, name: str) -> Array:
        if name not in COLUMN_NAMES:
            raise KeyError(name)
        if name == "phase":
            phases = np.array(self._reader.catalogue.phases, dtype=object)
            codes = self._reader.column("phase")[self._rows]
            return phases[codes].astype(str) if len(codes) else np.empty(0, "U1")
        if name == "digest":
            return self._digests()
        values: Array = self._reader.column(name)[self._rows]
        # Signed, so that users may subtract; nothing here comes near 2**63.
        return values.astype(np.int64) if values.dtype.kind == "u" else values

    def __iter__(self) -> Iterator[str]:
        return iter(COLUMN_NAMES)

    def __len__(self) -> int:
        return len(COLUMN_NAMES)

    def __repr__(self) -> str:
        return f"Columns({', '.join(COLUMN_NAMES)}; {len(self._rows)} records)"

    def _digests(self) -> Array:
        high, low = (
            self._reader.column(name)[self._rows].tolist() for name in ("digest_high", "digest_low")
        )
        pairs = zip(high, low, strict=True)
        return np.array([f"{one:016x}{two:016x}" for one, two in pairs], "U32")
