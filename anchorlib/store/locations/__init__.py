"""Locations, from which stored bytes are read: a directory, a collector, or several collectors."""

from anchorlib.store.locations.listing import PartKey, listed_parts, listed_ranks
from anchorlib.store.locations.location import (
    CollectorLocation,
    LocalLocation,
    Location,
    RowLocation,
    RowSource,
    Within,
    read_into,
    rows_at,
)
from anchorlib.store.locations.safe_open import names_beneath, open_beneath
from anchorlib.store.locations.several import SeveralCollectors

__all__ = [
    "CollectorLocation",
    "LocalLocation",
    "Location",
    "PartKey",
    "RowLocation",
    "RowSource",
    "SeveralCollectors",
    "Within",
    "listed_parts",
    "listed_ranks",
    "names_beneath",
    "open_beneath",
    "read_into",
    "rows_at",
]
