"""Keeps from a sink what no store or message could hold, such as records with an invalid name.

A block of records is written as a whole, so that one record that cannot be written would cost all
others. Such a record is taken out of its block before, and counted as a gap: a statement of how
many records of a series were not recorded, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import numpy as np

from anchorlib.block import RowBlock
from anchorlib.errors import AnchorError, StoreError
from anchorlib.modes import parse_mode
from anchorlib.names import check_name, escape, is_kind
from anchorlib.record import UNKNOWN, Edges, Gap
from anchorlib.store import check_series, check_stated

__all__ = ["Admission", "check_edges", "statable"]

Array: TypeAlias = np.ndarray[Any, Any]
K = TypeVar("K", bound=Hashable)

_MOST = (1 << 63) - 1
_BELOW = "a pass or call below 0, for which a store has no room"


class Admission:
    """Takes records that cannot be stored out of blocks; checks each series and phase once only."""

    def __init__(self) -> None:
        self._refused: dict[Hashable, str | None] = {}

    def admit(self, block: RowBlock) -> RowBlock:
        """Return a block of the records in `block` that can be stored.

        The records left out have an invalid series or phase, or a negative pass or call. They are
        added to the `misfits` of the returned block, with the reasons.
        """
        columns, tables = block.columns, block.tables
        refused = self._unfit(columns["series"], tables.series, check_series)
        refused |= self._unfit(columns["phase"], tables.phases, check_name)
        below = (columns["pass_index"] < 0) | (columns["call"] < 0)
        refused |= dict.fromkeys(np.flatnonzero(below).tolist(), _BELOW)
        if not refused:
            return block
        fit = np.ones(len(block), bool)
        fit[list(refused)] = False
        misfits = [block.misfit(row, reason) for row, reason in sorted(refused.items())]
        return replace(block.only(fit), misfits=(*block.misfits, *misfits))

    def _unfit(
        self, column: Array, table: Sequence[K], check: Callable[[K], object]
    ) -> dict[int, str]:
        """Return {row: reason} for each record of a block whose series, or phase, fails `check`.

        table: the distinct series, or phases. column: for each record, its index in `table`.
        check: raises AnchorError for a series or phase that cannot be stored.
        """
        unfit: dict[int, str] = {}
        for number in np.unique(column).tolist():
            reason = self._reason(table[number], check)
            if reason is not None:
                unfit |= dict.fromkeys(np.flatnonzero(column == number).tolist(), reason)
        return unfit

    def _reason(self, key: K, check: Callable[[K], object]) -> str | None:
        if key not in self._refused:
            try:
                check(key)
                self._refused[key] = None
            except AnchorError as error:
                self._refused[key] = str(error)[:200]
        return self._refused[key]


def check_edges(edges: Edges) -> Edges:
    """Return the lineage of a value unchanged, or raise if it cannot be stored.

    Lineage that is malformed or too large would make the whole catalogue, the file with the
    lineage, unreadable. Raises InvalidNameError for a name that cannot be stored, StoreError for
    anything else.
    edges: the value, and the tensors and operations that it was computed from.
    """
    check_stated(edges)
    for name in (edges.name, edges.phase, *(parent.name for parent in edges.parents)):
        check_name(name)
    if not all(abs(number) <= _MOST for number in (edges.step, edges.pass_index, edges.call)):
        raise StoreError(f"the lineage of {escape(edges.name)} has a step or call beyond 64 bits")
    return edges


def statable(gap: Gap) -> Gap:
    """Return `gap` with each field that cannot be stored replaced by one that can.

    An invalid name becomes "*", a kind "value", a mode ""; numbers are brought within bounds. A gap
    may count records that were left out just because their name or step cannot be stored; the gap
    itself must be stored nonetheless.
    """
    return Gap(
        _name(gap.name),
        gap.kind if is_kind(gap.kind) and _name(gap.kind) == gap.kind else "value",
        _mode(gap.mode),
        gap.reason.encode(errors="backslashreplace").decode(),
        _number(gap.count, 0),
        *(_number(step, -_MOST) for step in (gap.first_step, gap.last_step)),
    )


def _number(value: int, least: int) -> int:
    """Return `value` as an int, brought between `least` and 2^63 - 1; 0 if it is no number."""
    try:
        return min(max(int(value), least), _MOST)
    except Exception:  # noqa: BLE001  # torch raises its own errors for a symbol
        return 0


def _name(name: str) -> str:
    try:
        return check_name(name)
    except AnchorError:
        return UNKNOWN


@lru_cache(maxsize=1024)
def _mode(mode: str) -> str:
    """Return `mode` if it is the canonical text of a mode, such as "sum:window=2"; else ""."""
    try:
        return mode if str(parse_mode(mode)) == mode else ""
    except AnchorError:
        return ""
