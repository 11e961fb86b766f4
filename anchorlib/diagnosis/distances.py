"""Which of A and B is nearer to a reference run, in words and as cells of a table."""

from __future__ import annotations

import math

from anchorlib.amounts import figure
from anchorlib.diagnosis.judgement import Nearness

__all__ = ["NEARNESS", "nearer_text", "nearness_cells"]

NEARNESS = ("A", "B", "A rel.", "B rel.", "nearer")
"""The heads of the columns that `nearness_cells` fills."""


def nearness_cells(near: Nearness) -> tuple[str, ...]:
    """Return the cells of one origin in the table of the reference run, under the heads NEARNESS.

    The cells are the errors of A and B in eps, their errors relative to the norm, and the nearer
    run. Integers have no eps: their first two cells are the shares of elements that differ. Where
    nothing can be measured, the last cell says why, and the other cells are "-".
    """
    if near.lacks:
        return ("-", "-", "-", "-", near.lacks)
    relative = (near.relative_a, near.relative_b)
    shown = ("-" if math.isnan(error) else f"{error:.1e}" for error in relative)
    return (*_errors(near), *shown, _which(near))


def nearer_text(near: Nearness | None) -> str:
    """Return a clause that says which of A and B is nearer to the reference run, and by how much.

    near: how far both are from it, for one origin; None gives "".
    """
    if near is None:
        return ""
    if near.lacks:
        return f"the reference cannot tell: {near.lacks}"
    a, b = _errors(near)
    unit = " eps" if not math.isnan(near.eps) else ""
    if near.nearer is None:
        return f"A and B are as near to the reference: {a}{unit}"
    chance = "" if near.clear else ", which may be chance"
    low, high = (a, b) if near.nearer == "a" else (b, a)
    return f"{near.nearer.upper()} is nearer to the reference: {low} against {high}{unit}{chance}"


def _errors(near: Nearness) -> list[str]:
    if math.isnan(near.eps):
        return [f"{100 * share:.3g} %" for share in (near.share_a, near.share_b)]
    return [figure(error) for error in (near.error_a, near.error_b)]


def _which(near: Nearness) -> str:
    if near.nearer is None:
        return "equal"
    return near.nearer.upper() if near.clear else f"{near.nearer.upper()}, or chance"
