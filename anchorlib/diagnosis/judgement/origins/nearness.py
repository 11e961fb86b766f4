"""Which of two records is nearer to a third, and whether that may be chance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from anchorlib.diagnosis.sizes import Measure

__all__ = ["Nearness", "nearness"]

CHANCE = 3.0
"""Standard deviations beyond which two errors differ by chance in one of 370 pairs."""
FAR = 10.0
"""From this ratio of two errors on, the larger error is no chance, however few the elements are."""


@dataclass(frozen=True, slots=True)
class Nearness:
    """How far A's and B's records of an origin are from the reference run's record.

    error_a, error_b: ‖record − reference‖₂ / (‖reference‖₂ · eps) over the elements that are
        finite in both; inf where other elements are finite than in the reference; nan of integers
        and bool, and where there is nothing to measure.
    relative_a, relative_b: ‖record − reference‖₂ / ‖reference‖₂.
    share_a, share_b: the share of elements that differ from the reference's. Where element types
        differ, both are rounded to the coarser type first.
    eps: the eps of the coarsest of the three element types.
    nearer: "a" or "b", by the errors, or by the shares for integers; None where these are equal or
        there is nothing to measure.
    clear: whether `nearer` is more than chance. Errors that both runs inherit from earlier records
        move both away from the reference, and favour one run by as much as random directions do.
    lacks: why nothing can be measured from the reference, in words; "" where something can.
    """

    error_a: float = math.nan
    error_b: float = math.nan
    relative_a: float = math.nan
    relative_b: float = math.nan
    share_a: float = math.nan
    share_b: float = math.nan
    eps: float = math.nan
    nearer: Literal["a", "b"] | None = None
    clear: bool = False
    lacks: str = ""


def nearness(measure_a: Measure, measure_b: Measure, apart: float) -> Nearness:
    """Return whether A's or B's record is nearer to the reference's, and by how much.

    measure_a, measure_b: how far A's record and B's are from the reference's.
    apart: ‖b − a‖₂ / ‖reference‖₂.
    """
    far_a, far_b = _relative(measure_a), _relative(measure_b)
    eps = max((m.eps for m in (measure_a, measure_b) if m.eps > 0), default=math.nan)
    nearer = _nearer(far_a, far_b)
    if math.isnan(eps):
        nearer = _nearer(measure_a.share_differing, measure_b.share_differing)
    return Nearness(
        error_a=far_a / eps,
        error_b=far_b / eps,
        relative_a=far_a,
        relative_b=far_b,
        share_a=measure_a.share_differing,
        share_b=measure_b.share_differing,
        eps=eps,
        nearer=nearer,
        clear=nearer is not None and _clear(far_a, far_b, apart, measure_a.numel),
    )


def _relative(measure: Measure) -> float:
    return math.inf if measure.nonfinite else measure.error_eps * measure.eps


def _nearer(a: float, b: float) -> Literal["a", "b"] | None:
    if a < b:
        return "a"
    return "b" if b < a else None


def _clear(a: float, b: float, apart: float, numel: int) -> bool:
    """Return whether A and B differ in their distance from the reference by more than chance.

    a, b: the distances of A and B from the reference R. apart: the distance between A and B.
    numel: the number of elements.

    a² − b² is the dot product of A − B and A + B − 2R. For two unrelated vectors, a dot product is
    as large as the product of their lengths over the root of the number of elements. The length of
    the second follows from the parallelogram law. Where one distance is ten times the other, no
    error that both have in common can explain the ratio.
    """
    if math.isnan(a) or math.isnan(b):  # shares of integers: each element is right or wrong
        return True
    if max(a, b) > FAR * min(a, b):
        return True
    both = math.sqrt(max(2 * a * a + 2 * b * b - apart * apart, 0.0))
    return abs(a * a - b * b) > CHANCE * apart * both / math.sqrt(max(numel, 1))
