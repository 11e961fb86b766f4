"""The ranks and parts of a run, read from the names of their groups."""

from __future__ import annotations

from typing import TypeAlias

from anchorlib.store.format import part_of, rank_of
from anchorlib.store.locations.location import Location

__all__ = ["PartKey", "listed_parts", "listed_ranks"]

PartKey: TypeAlias = tuple[int, int]  # rank, part


def listed_ranks(run: Location) -> list[int]:
    """The ranks of the run at a location, ascending.

    A name of a rank counts even where it is no folder: opening that rank reports it.
    """
    return sorted({rank for rank, _ in listed_parts(run)})


def listed_parts(run: Location) -> list[PartKey]:
    """The rank and part of each group of a rank at a location, ascending; see `listed_ranks`."""
    names = (entry.rstrip("/") for entry in run.list(""))
    parts = ((rank_of(name), part_of(name)) for name in names)
    return sorted((rank, part) for rank, part in parts if rank is not None)
