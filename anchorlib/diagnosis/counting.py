"""Counts of a comparison in words: how many records both runs have, and how many only one has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anchorlib.names import escape, join

if TYPE_CHECKING:
    from anchorlib.diagnosis.findings import Findings
    from anchorlib.diagnosis.pairing import Table

__all__ = ["how_many", "listed"]

Array = np.ndarray[Any, Any]
NAMED = 2
LISTED = 8


def listed(names: Sequence[str], mark: str) -> str:
    """Return text: the first eight names, escaped and joined by `mark`, and how many follow."""
    shown = mark.join(map(escape, names[:LISTED]))
    return f"{shown} and {len(names) - LISTED:,} more" if len(names) > LISTED else shown


def how_many(comparison: Findings) -> tuple[str, str]:
    """Return two lines: how many records were paired, and how many are in one run alone."""
    counts, (in_a, in_b) = comparison.counts, _alone(comparison)
    return (
        f"{counts.matched:,} matched: {counts.identical:,} identical, "
        f"{counts.differing:,} differing;",
        f"only in A {counts.only_a:,}{in_a}, only in B {counts.only_b:,}{in_b}",
    )


def _alone(comparison: Findings) -> tuple[str, str]:
    """Return, for A and for B, a text in brackets on the records that the run alone has; else "".

    The text names the tensors of which no record was paired: " (drop)". Where there are none, the
    text names the steps of the lone records, " (steps 6-11)", if all of these lie before or after
    all paired records. "" where lone and paired records lie in the same steps, where the run has no
    lone record, and where nothing was paired.
    """
    alignment = comparison.alignment
    if alignment is None:
        return "", ""
    a = _alone_in(alignment.a, alignment.only_a, alignment.a_row)
    return a, _alone_in(alignment.b, alignment.only_b, alignment.b_row)


def _alone_in(table: Table, only: Array, matched: Array) -> str:
    if not len(only) or not len(matched):
        return ""
    shared = {table.tensors[at][:2] for at in np.unique(table.tensor[matched])}
    both = {name for name, _ in shared}
    own = [table.tensors[at][:2] for at in np.unique(table.tensor[only])]
    names = [escape(name if name not in both else join(name, kind))
             for name, kind in own if (name, kind) not in shared]  # fmt: skip
    if names := list(dict.fromkeys(names)):
        more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
        return f" ({', '.join(names[:NAMED])}{more})"
    first, last = int(table.step[only].min()), int(table.step[only].max())
    steps = table.step[matched]
    return "" if first <= steps.max() and last >= steps.min() else f" ({_steps_of(first, last)})"


def _steps_of(first: int, last: int) -> str:
    return f"step {first}" if first == last else f"steps {first}-{last}"
