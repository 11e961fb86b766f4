"""Shows numbers of bytes in units that people read."""

from __future__ import annotations

__all__ = ["in_units"]


def in_units(nbytes: int) -> str:
    """A number of bytes in the smallest binary unit that gives a figure below 1,024: `12.3 MiB`."""
    amount = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
