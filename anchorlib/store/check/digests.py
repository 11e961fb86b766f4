"""The digests of archived ranks compared with the rows that they were made from."""

from __future__ import annotations

from collections.abc import Iterator

from anchorlib.errors import DamagedError, StoreError
from anchorlib.store.format import DIGESTS, INDEX
from anchorlib.store.locations import Location
from anchorlib.store.read import RankReader, digests_of_run, parsed_index
from anchorlib.store.seal import RankDigests, read_index, step_digests
from anchorlib.store.stored import visible_rows

__all__ = ["rank_digest_faults", "run_digest_faults"]


def run_digest_faults(run: Location) -> Iterator[str]:
    """The faults of the object that has the digests of all ranks of an archived run, in words."""
    data = run.get(INDEX)
    try:
        figures = None if data is None else parsed_index(data)
    except StoreError:  # readers then read the ranks themselves, and compare them unabridged
        return
    if figures is None or not figures.digests:
        return
    known = digests_of_run(run, figures)
    if not known:
        yield f"{DIGESTS} is not what the index says of it: archive the run again"
    for rank in figures.ranks:
        parts = figures.parts_of(rank)
        if rank in known and parts == ((rank, 0),) and not _is_of(known[rank], run, rank):
            yield f"{DIGESTS} tells another recording than rank {rank}: archive the run again"


def rank_digest_faults(run: Location, reader: RankReader) -> Iterator[str]:
    """The faults of the digests in one sealed rank's index, in words."""
    told = _digests(run, reader.rank, reader.part)
    if told is None:
        return
    try:
        steps = step_digests(reader, visible_rows(reader))
    except StoreError:  # its rows are damaged, which is told of each
        return
    made = RankDigests(told.outline, told.is_traced, 1, steps).of_width(told.width)
    if made.stretches != told.stretches:
        yield "the digests of its steps are not those of its rows"


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
