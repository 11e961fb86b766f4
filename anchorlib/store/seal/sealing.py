"""A closed rank made into objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anchorlib.store.location import Location
from anchorlib.store.seal.manifest import Sealed
from anchorlib.store.seal.target import Target

if TYPE_CHECKING:
    from anchorlib.store.rank import RankReader

__all__ = ["seal"]


def seal(run: Location, reader: RankReader, into: Target) -> Sealed:
    """Puts the objects of one closed rank `into` a target, `sealed.json` last; what it has put.

    run: the location whose keys begin with "rank0/"; reader: reads the rank there.
    The same rank gives the same objects, byte by byte, so a target may leave alone what it has.
    Values are compared with their digests, rows with their checksums. The run's own `zarr.json` is
    no part of a rank: whoever makes a run of sealed ranks copies it.

    Memory: the values of one shard (64 MiB), and the same compressed.

    Raises StoreError where the rank was not closed, or is sealed already; DamagedError where rows
    or values are not those that were written, and whatever the target raises.
    """
    raise NotImplementedError
