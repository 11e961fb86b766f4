"""Compares an archive's digests and figures of steps with the rows that they were made from.

Archiving a run writes an index, a file of totals, for the run and for each rank in one part (a part
is what one collector holds of a rank). An index has or names two kinds of data about steps: digests
are hashes of the records of each range of steps; figures are counts, extremes and histograms of the
records of each step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from anchorlib.errors import DamagedError, StoreError
from anchorlib.store.format import INDEX, digests_key, steps_key
from anchorlib.store.locations import Location
from anchorlib.store.read import (
    RankReader,
    RunFigures,
    digests_of_run,
    parsed_index,
    sealed_figures,
    steps_of_run,
)
from anchorlib.store.seal import (
    RankDigests,
    RankFigures,
    StepFigures,
    StepPool,
    digests_of,
    read_index,
    step_figures_of,
)

__all__ = ["rank_digest_faults", "run_digest_faults"]

_ANEW = "archive the run again"


def run_digest_faults(run: Location) -> Iterator[str]:
    """Check an archived run's digests and figures of steps; yield each fault as a sentence.

    The run's digests and figures are compared with those in its ranks' indices. A rank in several
    parts has no index, so its digests and figures are computed again from the rows of its parts.
    Yield nothing for a run without an index.
    """
    figures, digests, steps = _stated_digests(run)
    # An archiver that adds a rank meanwhile swaps the index, then removes the objects before it.
    while (digests is None or steps is None) and figures != (now := _figures(run)):
        figures, digests, steps = _stated_digests(run, now)
    if figures is None:
        return
    keys = digests_key(figures.digests), steps_key(figures.by_step)
    for key, contents in zip(keys, (digests, steps), strict=True):
        if contents is None:
            yield f"{key} is not what the index says of it: {_ANEW}"
    pool = StepPool()
    for rank in figures.ranks if digests or steps else ():
        own = _indexed(run, rank, figures)
        pool.add(None if own is None else own.by_step)
        known = (digests or {}).get(rank)
        if known and own and own.digests and own.digests.of_width(known.width) != known:
            yield f"{keys[0]} tells another recording than rank {rank}: {_ANEW}"
    total = pool.total()
    if steps and total is not None and [total] != [*steps]:
        yield f"{keys[1]} tells other figures than the ranks: {_ANEW}"


def rank_digest_faults(run: Location, reader: RankReader) -> Iterator[str]:
    """Check the digests and figures of steps in an archived rank's index; yield faults in words.

    Both are compared with those computed from the rank's rows. Yield nothing where there is no
    readable index, or the rows are damaged: other checks report that.
    """
    index = _index(run, reader.rank, reader.part)
    if index is None:
        return
    try:
        if index.digests and digests_of(reader).of_width(index.digests.width) != index.digests:
            yield "the digests of its steps are not those of its rows"
        if index.by_step and step_figures_of(reader) != index.by_step:
            yield "the figures of its steps are not those of its rows"
    except StoreError:  # damaged rows or a damaged log: the audit names them itself
        return


def _stated_digests(
    run: Location, figures: RunFigures | None = None
) -> tuple[RunFigures | None, dict[int, RankDigests] | None, Sequence[StepFigures] | None]:
    """Return the run's index, its digests by rank, and its figures of steps.

    The index is None where the run has none, or it is damaged. The figures are one object, returned
    in a list. Digests or figures are None where their file is missing or damaged, and empty where
    the index refers to no such file.

    figures: the index, if it was read already.
    """
    figures = figures or _figures(run)
    steps = steps_of_run(run, figures)
    named = figures is not None and bool(figures.by_step)
    return figures, digests_of_run(run, figures), [steps] if steps else None if named else []


def _figures(run: Location) -> RunFigures | None:
    """Return what the run's index says; None where there is no index, or it is damaged."""
    data = run.get(INDEX)
    try:
        return None if data is None else parsed_index(data)
    except StoreError:
        return None


def _indexed(run: Location, rank: int, figures: RunFigures) -> RankFigures | None:
    """Return the totals of one rank: from its index, or for a rank in several parts from its rows.

    None where these cannot be read. figures: the index of the run, which says what parts the rank
    has.
    """
    parts = figures.parts_of(rank)
    if parts == ((rank, 0),):
        return _index(run, rank, 0)
    try:
        return next(iter(sealed_figures(run, [rank], parts)), None)
    except StoreError:  # a damaged part: its own audit says so
        return None


def _index(run: Location, rank: int, part: int) -> RankFigures | None:
    try:
        return read_index(run, rank, part)
    except DamagedError:  # the audit of SHA-256 names the damaged index
        return None
