"""What is known of each record beside its values, a mapping each: rows for people and programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anchorlib import Series

__all__ = ["summarised"]


def summarised(series: Series) -> Iterator[dict[str, Any]]:
    """Which tensor, and every column under its own name, a record after the other.

    Raises DamagedError where a row is not the one that was written.
    """
    head = {"tensor": series.name, "kind": series.kind, "mode": series.mode, "rank": series.rank}
    columns = {name: column.tolist() for name, column in series.columns.checked().items()}
    for values in zip(*columns.values(), strict=True):
        yield {**head, **dict(zip(columns, values, strict=True))}
