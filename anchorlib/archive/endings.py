"""Whether the ranks of a run have ended, of which other collectors may hold parts.

A session tells that it is closed to the one collector that it uses at its end. So a part that the
session had left before never says so itself: a later part says it, which may be in this store or
in the archive already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from anchorlib.errors import StoreError
from anchorlib.names import escape
from anchorlib.store import (
    Location,
    RankReader,
    Within,
    has_ended,
    is_whole,
    listed_parts,
    read_sealed,
)
from anchorlib.store.objects import Shelf

__all__ = ["check_ended", "is_spread", "open_ranks"]


def open_ranks(run: str, parts: Sequence[RankReader], shelf: Shelf) -> list[int]:
    """The ranks that were not closed, as far as these parts and the parts in the archive tell.

    The archive is asked only for ranks that are open in these parts. Raises StoreError,
    CollectorError.
    """
    there = Within(shelf.location, f"{run}.zarr")
    own: dict[int, list[RankReader]] = {}
    for part in parts:
        own.setdefault(part.rank, []).append(part)
    return [rank for rank, here in own.items() if not _has_ended(here, there)]


def is_spread(parts: Sequence[RankReader]) -> bool:
    """Whether the run was recorded by several collectors, so that others may hold parts of it."""
    return any(one.begins for part in parts for one in part.catalogue.attempts)


def check_ended(run: str, parts: Sequence[RankReader], shelf: Shelf) -> None:
    """Raises StoreError where a rank was not closed, so that its training may still add records."""
    for rank in open_ranks(run, parts, shelf):
        todo = f"make a closed run of it (anchor repair {escape(run)} --as NAME) and archive that"
        if is_spread(parts):
            todo = (
                "archive it from all of its collectors (--store grpc://a,b,c); if its training "
                f"died, make one run of it first (anchor push {escape(run)} --to DIR)"
            )
        raise StoreError(
            f"rank {rank} of {escape(run)} was not closed: wait until its training ends, or {todo}"
        )


def _has_ended(here: Sequence[RankReader], there: Location) -> bool:
    if is_whole(here) and here[0].catalogue.state == "closed":
        return True
    if has_ended(here):
        return True
    return is_spread(here) and has_ended([*here, *_others(here, there)])


def _others(here: Sequence[RankReader], there: Location) -> Iterator[RankReader]:
    """The parts of the same rank that are whole in the archive and not among `here`."""
    own = {(one.rank, one.part) for one in here}
    for rank, part in listed_parts(there):
        is_other = rank == here[0].rank and (rank, part) not in own
        if is_other and read_sealed(there, rank, part) is not None:
            yield RankReader(there, rank, part=part)
