"""Fingerprints of stored records: sender and store compare them to know what has arrived."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from anchorlib.errors import OptionError
from anchorlib.fingerprints import RECORD, fingerprint_of, tensor_code
from anchorlib.store.read.rank import RankReader

__all__ = ["stored_fingerprint"]

_SAME: Final = ("step", "pass_index", "call", "time_ns", "count", "digest_high", "digest_low")


def stored_fingerprint(reader: RankReader, attempt: int, first: int, end: int) -> bytes:
    """Return the 32-byte fingerprint of records first … end - 1 of an attempt.

    An attempt is what one writer recorded of the rank; its records are counted from 0. Raises
    OptionError where there is no such attempt or it has no such records, StoreError for a damaged
    store.
    """
    attempts = reader.catalogue.attempts
    if attempt < len(attempts):
        start = attempts[attempt].first_row
        after = attempts[attempt + 1].first_row if attempt + 1 < len(attempts) else None
        stop = reader.committed if after is None else after
        if first <= end <= stop - start:
            return fingerprint_of(_records(reader, attempt, start + first, start + end))
    raise OptionError(f"attempt {attempt} has no records {first} to {end - 1}")


def _records(reader: RankReader, attempt: int, start: int, stop: int) -> np.ndarray[Any, Any]:
    records = np.empty(stop - start, RECORD)
    for name in _SAME:
        records[name] = reader.span(name, start, stop)
    records["order"] = reader.span("order", start, stop)
    records["order"] -= reader.catalogue.attempts[attempt].order_base
    catalogue = reader.catalogue
    codes = (reader.span(name, start, stop).tolist() for name in ("series", "form", "phase"))
    shapes = reader.shapes_between(start, stop)
    known: dict[tuple[int, int, int, tuple[int, ...]], int] = {}
    for at, key in enumerate(zip(*codes, shapes, strict=True)):
        code = known.get(key)
        if code is None:
            series, form = catalogue.series[key[0]], catalogue.forms[key[1]]
            whose = (series.name, series.kind, series.mode)
            code = known[key] = tensor_code(whose, catalogue.phases[key[2]], form.dtype, key[3])
        records["tensor"][at] = code
    return records
