"""How many records two compared runs share, and which tensors or steps one has alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from anchor_cli.sections import wrapped
from anchor_cli.table import width_of
from anchor_cli.words import steps_of
from anchorlib.names import escape, join

if TYPE_CHECKING:
    from anchorlib.diagnosis import Comparison
    from anchorlib.diagnosis.pairing import Table
    from anchorlib.diagnosis.sizes.measures import Array

__all__ = ["how_many"]

_NAMED = 2


def how_many(found: Comparison, width: int) -> list[str]:
    """The lines that count records; what one run has alone is not torn from its number."""
    counts, (in_a, in_b) = found.counts, _alone(found)
    matched = (
        f"  {counts.matched:,} matched: {counts.identical:,} identical, "
        f"{counts.differing:,} differing;"
    )
    others = f"only in A {counts.only_a:,}{in_a}, only in B {counts.only_b:,}{in_b}"
    fits = width_of(f"{matched} {others}") <= width
    lines = [f"{matched} {others}"] if fits else [matched, f"    {others}"]
    return [part for line in lines for part in wrapped(line, width, 2, "    ")]


def _alone(found: Comparison) -> tuple[str, str]:
    """Of A and of B as " (drop)" or " (steps 6-11)"; "" where neither tells it.

    A tensor counts as one run's alone where none of its records has a partner; records of other
    tensors are told by their steps where the other run has none of these.
    """
    alignment = found.alignment
    if alignment is None:
        return "", ""
    a = _told(alignment.a, alignment.only_a, alignment.a_row)
    return a, _told(alignment.b, alignment.only_b, alignment.b_row)


def _told(table: Table, only: Array, matched: Array) -> str:
    if not len(only) or not len(matched):
        return ""
    shared = {table.tensors[at][:2] for at in np.unique(table.tensor[matched])}
    both = {name for name, _ in shared}
    own = [table.tensors[at][:2] for at in np.unique(table.tensor[only])]
    names = [escape(name if name not in both else join(name, kind))
             for name, kind in own if (name, kind) not in shared]  # fmt: skip
    if names := list(dict.fromkeys(names)):
        more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        return f" ({', '.join(names[:_NAMED])}{more})"
    first, last = int(table.step[only].min()), int(table.step[only].max())
    steps = table.step[matched]
    return "" if first <= steps.max() and last >= steps.min() else f" ({steps_of(first, last)})"
