"""How B's operand follows from A's, computed from figures that describe both: mean, spread, first.

    AddmmBackward0 mat1 (160 of mean 0.515, std 0.108, first 0.537) | (160 of mean 0.277, …, first
    0.288), the square of A's

The stored edges of a value (`anchorlib.record.Edges`) do not hold the elements of an operand, but
its size, its mean, its spread and its first element, each in three digits. The mean of squares is
the square of the mean plus the square of the spread. A factor multiplies mean, spread and first
element. A shift does not change the spread. A formula must explain all figures that are stated.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from anchorlib.amounts import figure

__all__ = ["follows"]

DESCRIBED = re.compile(
    r"(\w+)=\((\d+) of mean ([-\d.e+]+), std ([-\d.e+]+)(?:, first ([-\d.e+]+))?\)"
)
NEAR = 0.01
"""The relative difference up to which two figures of three digits are equal."""
CLEAR = 0.02
"""The relative difference from 1 from which a factor is more than rounding to three digits."""


class _Figures(NamedTuple):
    elements: int
    mean: float
    spread: float
    first: float


def follows(a: str, b: str) -> str:
    """Return how B's operand follows from A's (", the square of A's"); "" if it is not known.

    a, b: the arguments of an operation in A and in B, as text. Exactly one of the operands that
    they describe must differ.
    """
    sides = [{match[1]: match for match in DESCRIBED.finditer(text)} for text in (a, b)]
    names = [
        name for name in sides[0] if name in sides[1] and sides[0][name][0] != sides[1][name][0]
    ]
    if len(names) != 1:
        return ""
    texts = [side[names[0]] for side in sides]
    if not all(text[5] for text in texts) or texts[0][2] != texts[1][2]:
        return ""
    figures_a, figures_b = (
        _Figures(int(text[2]), *map(float, text.groups()[2:])) for text in texts
    )
    formula = _formula(figures_a, figures_b)
    return f", {formula}" if formula and figures_a.elements > 1 else ""


def _formula(a: _Figures, b: _Figures) -> str:
    if _is_square(a, b):
        return "the square of A's"
    if _is_square(b, a):
        return "the square root of A's"
    factor = b.spread / a.spread if a.spread else 0.0
    for sign in (factor, -factor) if factor else ():
        scaled = _near(b.mean, sign * a.mean, a.spread) and _near(b.first, sign * a.first, a.spread)
        if scaled and abs(sign - 1) > CLEAR:
            return f"{figure(sign)} times A's"
    shift = b.mean - a.mean
    still = a.spread and _near(b.spread, a.spread, 0.0) and abs(shift) > CLEAR * a.spread
    if still and _near(b.first - a.first, shift, a.spread):
        return f"A's {'plus' if shift > 0 else 'minus'} {figure(abs(shift))}"
    return ""


def _is_square(a: _Figures, b: _Figures) -> bool:
    """Return whether the elements of `b` may be the squares of those of `a`.

    a, b: the figures (mean, spread, first element) of both.
    """
    mean, first = a.mean**2 + a.spread**2, a.first**2
    other = abs(b.mean - a.mean) > CLEAR * abs(a.mean) and a.first != 0
    return other and _near(b.mean, mean, 0.0) and _near(b.first, first, 0.0)


def _near(left: float, right: float, spread: float) -> bool:
    """Return whether two figures are equal, up to the share NEAR of the larger of them.

    left, right: two means, spreads or first elements. spread: differences are also allowed up to
    the share NEAR of it, so that figures small beside the spread count as equal.
    """
    return abs(left - right) <= NEAR * max(abs(left), abs(right), spread)
