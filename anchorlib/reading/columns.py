"""The columns of a series (such as step and digest), each read from the store when asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from anchorlib.record import Flag
from anchorlib.store import RankReader

__all__ = ["Columns"]

COLUMN_NAMES = (
    "step", "pass_index", "call", "phase", "attempt", "order", "time_ns", "count", "digest",
    "zero", "nan", "inf", "subnormal", "min", "max", "sum", "l2", "flags", "scale",
)  # fmt: skip
FLAG_WORDS = {
    Flag.STEP_SKIPPED: "skipped",
    Flag.VALUE_DROPPED: "values dropped",
    Flag.SCALED: "scaled",
}

Array = np.ndarray[Any, Any]


class Columns(Mapping[str, Array]):
    """Arrays by column name, each with one entry a record: integers, floats, or text.

    step, pass_index, call, phase, attempt, order, time_ns, count: as in `Record`.
    digest: the digest of the values, as 32 hex digits.
    zero, nan, inf, subnormal: how many elements are zero, NaN, infinite and subnormal.
    min, max, sum, l2: the extremes, sum and L2 norm of the finite elements; nan without any.
    flags: "skipped" (the optimizer skipped the step), "values dropped" (the summary alone was
        kept), "scaled" (the values still carry the loss scale), joined by commas; mostly "".
    scale: the loss scale that values are multiplied by, 1.0 where there is none.
    """

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
        if name == "flags":
            return self._flags()
        values: Array = self._reader.column(name)[self._rows]
        # Signed, so that users may subtract: unsigned differences wrap. No column nears 2**63.
        return values.astype(np.int64) if values.dtype.kind == "u" else values

    def checked(self) -> Columns:
        """Compare the row of each record with its checksum, and return these columns themselves.

        Raises DamagedError where a row does not fit its checksum.
        """
        self._reader.check_rows(self._rows)
        return self

    def __iter__(self) -> Iterator[str]:
        return iter(COLUMN_NAMES)

    def __len__(self) -> int:
        return len(COLUMN_NAMES)

    def __repr__(self) -> str:
        records = f"{len(self._rows)} record{'s' * (len(self._rows) != 1)}"
        return f"Columns({', '.join(COLUMN_NAMES)}; {records})"

    def _flags(self) -> Array:
        codes: Array = self._reader.column("flags")[self._rows]
        # Few combinations occur, so each is spelled once.
        different, places = np.unique(codes, return_inverse=True)
        texts = np.array([flag_text(code) for code in different.tolist()], dtype=np.str_)
        spelled: Array = texts[places] if len(codes) else np.empty(0, "U1")
        return spelled

    def _digests(self) -> Array:
        high, low = (
            self._reader.column(name)[self._rows].tolist() for name in ("digest_high", "digest_low")
        )
        pairs = zip(high, low, strict=True)
        return np.array([f"{one:016x}{two:016x}" for one, two in pairs], "U32")


def flag_text(code: int) -> str:
    """Return a record's flags in words, joined by commas; "" for none.

    code: the flags as bits. Bits that this version does not know are left out.
    """
    return ",".join(word for flag, word in FLAG_WORDS.items() if code & flag)
