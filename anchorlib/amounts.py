"""Numbers as people read them: counts of things, measured values, sizes in bytes."""

from __future__ import annotations

__all__ = ["counted", "figure", "in_units"]


def counted(number: int, word: str) -> str:
    """Return a number with its noun in the singular or plural: "1 record", "2,000 records"."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def figure(value: float) -> str:
    """Return a number as text: whole from 1,000 up to 1e6, else at most three significant digits.

    For example 0.35, 5,310 or 6.1e+06.
    """
    if 1000 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def in_units(nbytes: int) -> str:
    """Return a size as text, in the first of B, KiB, … that keeps it below 1,024: `12.3 MiB`."""
    amount = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
