"""Numbers in sentences: one record, two records; step 4, steps 4-5."""

from __future__ import annotations

__all__ = ["counted", "figure", "shown_shape", "spans_of", "steps_of"]


def counted(number: int, word: str) -> str:
    """As "1 record" or "2,000 records"."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def steps_of(first: int, last: int) -> str:
    """As "step 4" or "steps 4-5"."""
    return f"step{'' if first == last else 's'} {spans_of(first, last)}"


def spans_of(first: int, last: int) -> str:
    """The numbers first … last, as 0-99."""
    return str(first) if first == last else f"{first}-{last}"


def figure(value: float) -> str:
    """Three digits, as 0.35, 12.4, 5,310 or 6.1e+06."""
    if 1000 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def shown_shape(shape: tuple[int | None, ...] | None) -> str:
    """A shape as 32x10; () for a single number, ? where records differ."""
    if shape is None:
        return "?"
    return "x".join("?" if extent is None else str(extent) for extent in shape) or "()"
