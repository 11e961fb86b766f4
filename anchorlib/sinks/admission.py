"""Which records and gaps may go on to a sink: those that all stores and messages have room for.

A batch is written in one go, so one record that cannot be written would take the others with it.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any

from anchorlib.errors import AnchorError, StoreError
from anchorlib.modes import parse_mode
from anchorlib.names import check_name, escape, is_kind, join
from anchorlib.record import UNKNOWN, Edges, Gap, Record
from anchorlib.store import check_record

__all__ = ["Admission", "check_edges", "statable"]

_MOST = (1 << 63) - 1
_FIELDS = {"step": "q", "pass": "q", "call": "q", "order": "q", "time": "q", "count": "Q"}
_pack = struct.Struct(f"<{''.join(_FIELDS.values())}d").pack


class Admission:
    """Looks at each record by itself; what it says of a series is asked once."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str, str, str, str]] = set()

    def check(self, record: Record) -> Record:
        """`record` itself. Raises InvalidNameError, UnknownDTypeError or StoreError."""
        at = record.coordinates
        told = (at.step, at.pass_index, at.call, record.order, record.time_ns, record.count)
        try:
            _pack(*told, record.scale)
            fits = at.pass_index >= 0 <= at.call
        except (struct.error, OverflowError):
            fits = False
        if not fits:
            raise StoreError(_misfit(record, dict(zip(_FIELDS, told, strict=True))))
        key = (record.name, record.kind, record.mode, at.phase, record.dtype)
        if key not in self._known:
            check_record(record)
            check_name(at.phase)
            self._known.add(key)
        return record


def check_edges(edges: Edges) -> Edges:
    """`edges` themselves. Raises InvalidNameError or StoreError where they have no room."""
    for name in (edges.name, edges.phase, *(parent.name for parent in edges.parents)):
        check_name(name)
    if not all(abs(number) <= _MOST for number in (edges.step, edges.pass_index, edges.call)):
        raise StoreError(f"what {escape(edges.name)} was computed from has a place beyond 64 bits")
    return edges


def _misfit(record: Record, told: dict[str, Any]) -> str:
    """Which figure of a record no store has room for."""
    where = escape(join(record.name, record.kind))
    for name, value in told.items():
        least = 0 if name in ("pass", "call", "count") else -_MOST - 1
        if not isinstance(value, int) or not least <= value <= _MOST:
            return f"{where} has the {name} {value!r}, for which a store has no room"
    return f"{where} has the loss scale {record.scale!r}, for which a store has no room"


def statable(gap: Gap) -> Gap:
    """`gap` as any store and any message can state it: a gap may be of what cannot be recorded."""
    return Gap(
        _name(gap.name),
        gap.kind if is_kind(gap.kind) and _name(gap.kind) == gap.kind else "value",
        _mode(gap.mode),
        gap.reason.encode(errors="backslashreplace").decode(),
        gap.count,
        *(min(max(step, -_MOST), _MOST) for step in (gap.first_step, gap.last_step)),
    )


def _name(name: str) -> str:
    try:
        return check_name(name)
    except AnchorError:
        return UNKNOWN


@lru_cache(maxsize=1024)
def _mode(mode: str) -> str:
    """`mode` as records carry it, "" where it is none."""
    try:
        return mode if str(parse_mode(mode)) == mode else ""
    except AnchorError:
        return ""
