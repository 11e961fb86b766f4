"""Lists the ranks of a run and their parts, from the names of their groups."""

from __future__ import annotations

from typing import TypeAlias

from anchorlib.store.format import part_of, rank_of
from anchorlib.store.locations.location import Location

__all__ = ["PartKey", "listed_parts", "listed_ranks"]

PartKey: TypeAlias = tuple[int, int]  # rank, part


def listed_ranks(run: Location) -> list[int]:
    """Return the ranks of the run at a location, ascending.

    A name such as "rank3" counts even where it is no folder: opening that rank raises an error.
    """
    return sorted({rank for rank, _ in listed_parts(run)})


def listed_parts(run: Location) -> list[PartKey]:
    """Return (rank, part) for each group of a rank at a run's location, ascending.

    Where several collectors share a rank, each holds a part of it; a whole rank is part 0. A name
    such as "rank3" counts even where it is no folder: opening that rank raises an error.
    """
    names = (entry.rstrip("/") for entry in run.list(""))
    parts = ((rank_of(name), part_of(name)) for name in names)
    return sorted((rank, part) for rank, part in parts if rank is not None)
