"""To which norm each run clips its gradients, computed from the norms of all of them.

Clipping makes each gradient the same multiple of what backward made of it, so that the norm of all
together is the limit itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.pairing import Table

__all__ = ["clipped_otherwise"]

Array = np.ndarray[Any, Any]
CLEAR = 1e-4  # relative difference from which two norms are two: clipping divides by norm + 1e-6


def clipped_otherwise(frontier: Frontier, row: int) -> list[str]:
    """Says to which norm each run clips the gradients of the row's step; [] where both alike.

    Both runs have to have one backward in the step, and gradients of equal norms from it.
    """
    alignment = frontier.alignment
    a, rank = alignment.a, alignment.a.tensors[alignment.a.tensor[row]].rank
    sides = ((a, int(a.step[row])), (alignment.b, int(a.step[row]) + alignment.step_offset))
    first, second = (_norms(table, step, rank) for table, step in sides)
    if first is None or second is None or alignment.merged:
        return []
    (before, one), (other, two) = first, second
    if abs(before - other) > CLEAR * before or abs(one - two) <= CLEAR * max(one, two):
        return []
    told = ["" if abs(after - before) <= CLEAR * before else _limit(after) for after in (one, two)]
    if None in told or max(one, two) > before * (1 + CLEAR):
        return []
    words = f"clips the gradients' norm of {before:.4g}"
    if told[0] and told[1]:
        return [f"A {words} {told[0]}, B {told[1]}"]
    return [f"A alone {words} {told[0]}" if told[0] else f"B alone {words} {told[1]}"]


def _limit(norm: float) -> str | None:
    """A norm as the limit that a program states, of two digits; None where it is no such number."""
    limit = f"{norm:.2g}"
    return f"to {float(limit):g}" if abs(float(limit) - norm) <= CLEAR * norm else None


def _norms(table: Table, step: int, rank: int) -> tuple[float, float] | None:
    """The norm of all gradients of a step, as backward made them and as the optimizer took them.

    None where a parameter has several of either, or one alone, and where one was scaled.
    """
    names: list[set[str]] = []
    found = []
    for kind in ("pass_grad", "grad"):
        which = [
            n
            for n, one in enumerate(table.tensors)
            if one.kind == kind and one.rank == rank and (not names or one.name in names[0])
        ]
        rows = np.flatnonzero(np.isin(table.tensor, which) & (table.step == step))
        told = [table.tensors[one].name for one in table.tensor[rows].tolist()]
        if not told or len(set(told)) < len(told) or (table.scale[rows] != 1).any():
            return None
        names.append(set(told))
        found.append(float(np.linalg.norm(table.figures["l2"][rows])))
    if names[0] != names[1] or not (np.isfinite(found).all() and all(found)):
        return None
    return found[0], found[1]
