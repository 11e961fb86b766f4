"""Numbers as people read them: counts of things, measured values, sizes in bytes."""

from __future__ import annotations

__all__ = ["counted", "figure", "in_units"]


def counted(number: int, word: str) -> str:
    """Return a number with its noun in the singular or plural: "1 record", "2,000 records".

    word: the noun in the singular; its plural must be formed by adding "s".
    """
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def figure(value: float) -> str:
    """Return a number as text: rounded to a whole number, or to three significant digits.

    Numbers whose magnitude is from 1,000 up to 1e6 become whole, with commas (5,310). All others
    have at most three significant digits: 0.35 or 6.1e+06.
    """
    if 1000 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def in_units(nbytes: int) -> str:
    """Return a size as text, in B, KiB, MiB, GiB or TiB: `12.3 MiB`.

    The unit is the smallest in which the number is below 1,024; TiB if there is none.
    """
    amount = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
