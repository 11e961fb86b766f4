"""The digests of archived ranks compared with the rows that they were made from."""

from __future__ import annotations

from collections.abc import Iterator

from anchorlib.errors import DamagedError, StoreError
from anchorlib.store.format import INDEX, digests_key
from anchorlib.store.locations import Location
from anchorlib.store.read import RankReader, RunFigures, digests_of_run, parsed_index
from anchorlib.store.seal import RankDigests, digests_of, read_index

__all__ = ["rank_digest_faults", "run_digest_faults"]


def run_digest_faults(run: Location) -> Iterator[str]:
    """The faults of the object that has the digests of all ranks of an archived run, in words."""
    figures = _figures(run)
    known = digests_of_run(run, figures)
    # An archiver that adds a rank meanwhile swaps the index, then removes the digests before it.
    while known is None and figures != (now := _figures(run)):
        figures, known = now, digests_of_run(run, now)
    key = "" if figures is None else digests_key(figures.digests)
    if known is None:
        yield f"{key} is not what the index says of it: archive the run again"
    for rank, one in (known or {}).items():
        parts = () if figures is None else figures.parts_of(rank)
        if parts == ((rank, 0),) and not _is_of(one, run, rank):
            yield f"{key} tells another recording than rank {rank}: archive the run again"


def rank_digest_faults(run: Location, reader: RankReader) -> Iterator[str]:
    """The faults of the digests in one sealed rank's index, in words."""
    told = _digests(run, reader.rank, reader.part)
    if told is None:
        return
    try:
        made = digests_of(reader).of_width(told.width)
    except StoreError:  # its rows or its log are damaged, which is told of each
        return
    if made != told:
        yield "the digests of its steps are not those of its rows"


def _figures(run: Location) -> RunFigures | None:
    """What the index says; None without one that can be read: its digests are not read either."""
    data = run.get(INDEX)
    try:
        return None if data is None else parsed_index(data)
    except StoreError:
        return None


def _is_of(known: RankDigests, run: Location, rank: int) -> bool:
    """Whether these digests are those in the rank's own index; one that has none says nothing."""
    own = _digests(run, rank, 0)
    return own is None or own.of_width(known.width) == known


def _digests(run: Location, rank: int, part: int) -> RankDigests | None:
    try:
        found = read_index(run, rank, part)
    except DamagedError:  # it does not fit its SHA-256 either, which is told
        return None
    return None if found is None else found.digests
