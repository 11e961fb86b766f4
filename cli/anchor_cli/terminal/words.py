"""Formats steps and shapes for sentences and tables: "step 4", "steps 4-5", "32x10"."""

from __future__ import annotations

__all__ = ["shown_shape", "spans_of", "steps_of"]


def steps_of(first: int, last: int) -> str:
    """Formats the steps first … last, as "step 4" or "steps 4-5"."""
    return f"step{'' if first == last else 's'} {spans_of(first, last)}"


def spans_of(first: int, last: int) -> str:
    """Formats the numbers first … last as "0-99", or as one number where both are equal."""
    return str(first) if first == last else f"{first}-{last}"


def shown_shape(shape: tuple[int | None, ...] | None) -> str:
    """Formats a shape as "32x10"; "()" for a single number.

    "?" stands for a size that differs between records (None), and for a shape that is None.
    """
    if shape is None:
        return "?"
    return "x".join("?" if extent is None else str(extent) for extent in shape) or "()"
