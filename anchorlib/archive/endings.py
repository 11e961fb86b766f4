"""Finds out whether the ranks of a run have ended, also if other collectors hold parts of them.

A part is what one collector holds of a rank. A session that goes on with another collector leaves
a part behind. When the session closes, it tells only its last collector. So only the last part
shows that the session has ended; that part may be in this store or in the archive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from anchorlib.errors import RunExistsError, StoreError
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
from anchorlib.store.format import ANEW
from anchorlib.store.objects import Shelf

__all__ = ["NotEndedError", "check_ended", "check_recording", "is_spread", "open_ranks"]


class NotEndedError(StoreError):
    """The session of a rank has not ended, as far as the store and the archive show."""


def open_ranks(run: str, parts: Sequence[RankReader], shelf: Shelf) -> list[int]:
    """Return the ranks whose sessions have not ended, as far as `parts` and the archive show.

    run: the run's name. parts: readers of what a store holds of each rank; other collectors may
        hold the rest. shelf: the archive; it is read only for ranks whose end `parts` do not show.

    Raises StoreError or CollectorError where the archive cannot be read.
    """
    there = Within(shelf.location, f"{run}.zarr")
    return [rank for rank, here in _by_rank(parts).items() if not _has_ended(here, there)]


def _by_rank(parts: Sequence[RankReader]) -> dict[int, list[RankReader]]:
    own: dict[int, list[RankReader]] = {}
    for part in parts:
        own.setdefault(part.rank, []).append(part)
    return own


def check_recording(run: str, parts: Sequence[RankReader], shelf: Shelf) -> None:
    """Raise RunExistsError where the archive has parts of another recording with this run's name.

    Parts of two recordings have different keys, so the archive could hold both. But readers would
    join these parts to one rank, and could not read that rank.
    Nothing is checked for a run that a single collector recorded, nor for a rank if one of its
    parts in `parts` was recorded over an earlier recording.
    run: the run's name. parts: readers of what a store holds of each rank. shelf: the archive.
    """
    if not is_spread(parts):
        return
    there = Within(shelf.location, f"{run}.zarr")
    for here in _by_rank(parts).values():
        together = [*here, *_others(here, there)]
        news = {
            one.claim for part in together for one in part.catalogue.attempts if one.begins == "new"
        }
        is_anew = any(one.begins == ANEW for part in here for one in part.catalogue.attempts)
        if len(news) > 1 and not is_anew:
            raise RunExistsError(
                f"{escape(shelf.place)} has another recording of rank {here[0].rank} of "
                f"{escape(run)}: what is archived never changes; take another --to, or rename one "
                "of the two (anchor mv)"
            )


def is_spread(parts: Sequence[RankReader]) -> bool:
    """Return whether the run was recorded through several collectors.

    Each of them may hold parts of the run's ranks.
    parts: readers of what one store holds of each rank of the run.
    """
    return any(one.begins for part in parts for one in part.catalogue.attempts)


def check_ended(run: str, parts: Sequence[RankReader], shelf: Shelf) -> None:
    """Raise NotEndedError where a rank was not closed: its training may still add records.

    run: the run's name. parts: readers of what a store holds of each rank. shelf: the archive,
        which may show the end of a rank that several collectors recorded.

    Raises RunExistsError where the archive has parts of another recording with this run's name.
    """
    check_recording(run, parts, shelf)
    for rank in open_ranks(run, parts, shelf):
        todo = f"make a closed run of it (anchor repair {escape(run)} --as NAME) and archive that"
        if is_spread(parts):
            todo = (
                "archive it from all of its collectors (--store grpc://a,b,c); if its training "
                f"died, make one run of it first (anchor push {escape(run)} --to DIR)"
            )
        raise NotEndedError(
            f"rank {rank} of {escape(run)} was not closed: wait until its training ends, or {todo}"
        )


def _has_ended(here: Sequence[RankReader], there: Location) -> bool:
    if is_whole(here) and here[0].catalogue.state == "closed":
        return True
    if has_ended(here):
        return True
    if not is_spread(here):
        return False
    return has_ended([*here, *(one for one in _others(here, there) if _goes_on(one, here))])


def _goes_on(other: RankReader, here: Sequence[RankReader]) -> bool:
    """Return whether `other` shares a session with the parts `here`, or has only later sessions.

    `other` and `here` are parts of one rank, each held by one collector. A session is later if it
    resumed the rank after the newest session of `here` had started. False is returned for a part of
    an earlier recording with this run's name.
    """
    own = [one for part in here for one in part.catalogue.attempts]
    claims, newest = {one.claim for one in own}, max(one.started_ns for one in own)
    theirs = other.catalogue.attempts
    return any(one.claim in claims for one in theirs) or all(
        one.begins == "resumed" and one.started_ns > newest for one in theirs
    )


def _others(here: Sequence[RankReader], there: Location) -> Iterator[RankReader]:
    """Yield readers of a rank's parts that are complete in the archive and not among `here`.

    here: readers of parts of the rank, at least one. there: the run's folder in the archive.
    """
    own = {(one.rank, one.part) for one in here}
    for rank, part in listed_parts(there):
        is_other = rank == here[0].rank and (rank, part) not in own
        if is_other and read_sealed(there, rank, part) is not None:
            yield RankReader(there, rank, part=part)
